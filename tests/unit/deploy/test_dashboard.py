"""The dashboard shows every exported fleet metric, every gauge has an alert, and no other metrics are used."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from comfyrelay.server.http.metrics import FLEET_METRICS, SCALING_METRICS
from tests.support.paths import ROOT

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "comfyrelay-fleets.json").read_text("utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text("utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
GAUGES = {f"comfyrelay_fleet_{name}" for name, _ in FLEET_METRICS.values()}
COUNTERS = {"comfyrelay_fleet_gpu_seconds_total", "comfyrelay_fleet_cost_total"}
SCALING = {"comfyrelay_fleet_machines", *(f"comfyrelay_fleet_{name}" for name in SCALING_METRICS)} | {
    "comfyrelay_fleet_launches_refused_total",
    "comfyrelay_fleet_provider_errors_total",
    "comfyrelay_bursts_total",
}
SERVERS = {"comfyrelay_autoscaling_has_leader", "comfyrelay_database_up"}
EXPORTED = GAUGES | COUNTERS | SCALING | SERVERS
# Grafana's names of units.
UNITS = {"short", "s", "percentunit"}


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\bcomfyrelay_\w+", expression))


def labels(expression: str) -> set[str]:
    inside = [*re.findall(r"\{([^}]*)\}", expression)]
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    chosen = {found for selector in inside for found in re.findall(r"(\w+)\s*=", selector)}
    return chosen | {name.strip() for clause in grouped for name in clause.split(",")}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in RULES)


def test_all_metrics_are_documented() -> None:
    assert len(GAUGES) == 8
    page = (ROOT / "docs" / "howto" / "operate.md").read_text("utf-8")
    assert [metric for metric in EXPORTED if f"| `{metric}` |" not in page] == []


@pytest.mark.parametrize("expression", list(expressions()))
def test_expressions_use_only_exported_metrics(expression: str) -> None:
    assert metrics_of(expression) or 'up{job="comfyrelay"}' in expression
    assert metrics_of(expression) <= EXPORTED
    assert labels(expression) <= {"fleet", "stage", "kind", "state", "call", "to", "database", "job"}
    assert expression.count("(") == expression.count(")")


def test_every_metric_is_shown() -> None:
    shown = {
        name for panel in DASHBOARD["panels"] for target in panel["targets"] for name in metrics_of(target["expr"])
    }
    assert shown == GAUGES | COUNTERS | SCALING


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_panels_have_titles_units_and_a_source(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["legendFormat"] for target in panel["targets"])


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_fleet_and_stage_are_variables() -> None:
    chosen = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert chosen.keys() == {"datasource", "stage", "fleet"}
    assert all(metrics_of(chosen[name]["query"]) <= GAUGES for name in ("stage", "fleet"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_have_a_severity_and_a_description(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"ComfyRelay\w+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    named = {name for clause in re.findall(r"by \(([^)]*)\)", rule["expr"])[:1] for name in clause.split(", ")}
    assert named <= set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert rule["annotations"]["description"].endswith(".")


def test_every_alert_has_a_section_in_the_runbook() -> None:
    page = (ROOT / "docs" / "howto" / "runbook.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=\n## |\Z)", page, re.M | re.S))
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in RULES}
    assert urls == {name: f"docs/howto/runbook.md#{name.lower()}" for name in sections}


def test_alert_names_are_unique() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_every_gauge_has_an_alert() -> None:
    watched = {name for rule in RULES for name in metrics_of(rule["expr"])}
    assert watched >= (GAUGES | SCALING | SERVERS) - {"comfyrelay_fleet_failed_rounds"}
