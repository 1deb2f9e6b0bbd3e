"""The dashboard and the alerts speak of what is exported, and of all of it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from comfyrelay.server.http.metrics import OF_FLEETS
from tests.support.paths import ROOT

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "comfyrelay-fleets.json").read_text("utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text("utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EIGHT = {f"comfyrelay_fleet_{name}" for name, _ in OF_FLEETS.values()}
MORE = {"comfyrelay_fleet_gpu_seconds_total", "comfyrelay_fleet_cost_total"}
# as Grafana writes them
UNITS = {"short", "s", "percentunit"}


def named(expression: str) -> set[str]:
    """The metrics of an expression."""
    return set(re.findall(r"\bcomfyrelay_\w+", expression))


def labels(expression: str) -> set[str]:
    inside = [*re.findall(r"\{([^}]*)\}", expression)]
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    chosen = {found for each in inside for found in re.findall(r"(\w+)\s*=", each)}
    return chosen | {name.strip() for each in grouped for name in each.split(",")}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in RULES)


def test_there_are_eight_and_two_of_usage() -> None:
    assert len(EIGHT) == 8
    page = (ROOT / "docs" / "howto" / "operate.md").read_text("utf-8")
    assert [each for each in EIGHT | MORE if f"| `{each}` |" not in page] == []


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_expression_names_only_what_is_exported(expression: str) -> None:
    assert named(expression)
    assert named(expression) <= EIGHT | MORE
    assert labels(expression) <= {"fleet", "stage", "kind"}
    assert expression.count("(") == expression.count(")")


def test_every_figure_is_shown() -> None:
    shown = {name for panel in DASHBOARD["panels"] for target in panel["targets"] for name in named(target["expr"])}
    assert shown == EIGHT | MORE


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_panels_have_titles_units_and_a_source(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["legendFormat"] for target in panel["targets"])


def test_panels_do_not_lie_on_each_other() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_fleet_and_stage_can_be_chosen() -> None:
    chosen = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert chosen.keys() == {"datasource", "stage", "fleet"}
    assert all(named(chosen[each]["query"]) <= EIGHT for each in ("stage", "fleet"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_say_how_grave_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"ComfyRelay\w+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert {"fleet", "stage"} <= set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert rule["annotations"]["description"].endswith(".")


def test_each_alert_has_a_name_of_its_own() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_every_figure_that_can_be_bad_has_an_alert() -> None:
    watched = {name for rule in RULES for name in named(rule["expr"])}
    assert watched >= EIGHT
