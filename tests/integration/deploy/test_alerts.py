"""Prometheus accepts the alerts, and fires them when they should."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
WHERE = '{fleet="home", stage="production"}'

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts(name: str, at: str, *labels: dict[str, str]) -> dict[str, Any]:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]
    [rule] = [rule for rule in rules if rule["alert"] == name]
    expected = []
    for found in labels:
        texts = dict(rule["annotations"])
        for label, value in found.items():
            texts = {key: text.replace("{{ $labels." + label + " }}", value) for key, text in texts.items()}
        expected.append({"exp_labels": {**found, **rule["labels"]}, "exp_annotations": texts})
    return {"eval_time": at, "alertname": name, "exp_alerts": expected}


@needs_promtool
def test_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))


@needs_promtool
def test_alerts_fire_and_end(tmp_path: Path) -> None:
    home = {"fleet": "home", "stage": "production"}
    series = {
        # two servers export the same gauges; a worker becomes active after 20 minutes
        f"comfyrelay_fleet_queue_depth{WHERE}": "3x40",
        f"comfyrelay_fleet_active_workers{WHERE}": "0x20 1x20",
        'comfyrelay_database_up{database="main"}': "1x10 0x30",
        'up{job="comfyrelay", instance="relay-1"}': "1x10 0x30",
    }
    tests = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    alerts("ComfyRelayFleetHasNoWorkers", "9m"),
                    alerts("ComfyRelayFleetHasNoWorkers", "15m", home),
                    alerts("ComfyRelayFleetHasNoWorkers", "25m"),
                    alerts("ComfyRelayDatabaseDown", "10m"),
                    alerts("ComfyRelayDatabaseDown", "15m", {"database": "main"}),
                    alerts("ComfyRelayServerDown", "15m", {"job": "comfyrelay", "instance": "relay-1"}),
                ],
            }
        ],
    }
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump(tests), encoding="utf-8")
    assert "SUCCESS" in promtool("test", "rules", str(path))
