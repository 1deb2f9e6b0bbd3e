"""Progress reports of workers are read tolerantly and sent strictly."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from comfyrelay.domain.queue.wait_reasons import is_prefetched
from comfyrelay.protocol.progress import Phase, Progress
from comfyrelay.protocol.worker import HeartbeatRequest

REPORT = {
    "value": 0.4,
    "phase": "running",
    "began_at": "2030-01-01T00:00:00+00:00",
    "server": "comfyui-1",
    "node_id": "3",
    "node": "Sampler",
    "node_class": "KSampler",
    "nodes_done": 2.0,
    "nodes_total": 7.0,
    "step": 8.0,
    "steps": 20.0,
    "is_estimated": True,
}


def test_progress_report_round_trips() -> None:
    assert set(REPORT) == {field.name for field in fields(Progress)}
    progress = Progress.from_report(REPORT)
    assert progress.began_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert progress.to_report() == REPORT
    assert list(progress.to_report()) == list(REPORT)


def test_unknown_fields_are_not_sent() -> None:
    assert Progress(value=0.0, phase=Phase.WAITING).to_report() == {"value": 0.0, "phase": "waiting"}
    assert Progress.from_report(None) == Progress.from_report({}) == Progress()


def test_invalid_progress_fields_are_ignored() -> None:
    strange = {"value": "x", "step": True, "steps": [], "node_id": 7, "node": {}, "began_at": "yesterday", "mine": 1}
    assert Progress.from_report(strange) == Progress()
    # without a time zone
    assert Progress.from_report({"began_at": "2030-01-01T00:00:00"}).began_at is None


@pytest.mark.parametrize(("value", "part"), [(None, None), (-1, 0.0), (0.25, 0.25), (12, 1.0)])
def test_progress_value_is_between_0_and_1(value: float | None, part: float | None) -> None:
    assert Progress(value=value).fraction == part


@pytest.mark.parametrize(
    ("phase", "has_begun"),
    [
        (None, False),
        *((known_phase, known_phase not in (Phase.FETCHING, Phase.WAITING)) for known_phase in Phase),
        ("a word of another worker", True),
        (7, True),
    ],
)
def test_job_counts_as_started_unless_its_phase_says_otherwise(phase: Any, has_begun: bool) -> None:
    report = {"phase": phase}
    assert Progress.from_report(report).has_begun is has_begun
    assert is_prefetched(is_prefetch=True, progress=report) is not has_begun
    assert not is_prefetched(is_prefetch=False, progress=report)


def test_heartbeat_example_is_valid() -> None:
    schema = HeartbeatRequest.model_json_schema()
    [example] = schema["examples"]
    progress = example["progress"]
    assert Progress.from_report(progress).to_report() == progress
    assert 0 <= progress["value"] <= 1
