"""Progress is estimated for workers that report none."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue.progress import Progress, with_estimate

START = datetime(2026, 1, 1, tzinfo=UTC)


def progress_after(
    seconds: float,
    report: dict[str, Any] | None = None,
    *,
    expected_seconds: float | None = 100.0,
    is_prefetch: bool = False,
) -> Any:
    return with_estimate(
        report,
        is_prefetch=is_prefetch,
        leased_at=START,
        expected_seconds=expected_seconds,
        now=START + timedelta(seconds=seconds),
    )


def test_estimate_follows_the_expected_time() -> None:
    assert progress_after(0) == {"value": 0.0, "is_estimated": True}
    assert progress_after(50)["value"] == 0.45
    assert progress_after(100)["value"] == 0.9
    assert Progress.from_report(progress_after(1)).is_estimated


@given(first=st.floats(-10, 1e9), second=st.floats(-10, 1e9), expected=st.floats(1e-3, 1e6, exclude_min=False))
def test_estimate_never_decreases_and_stays_below_one(first: float, second: float, expected: float) -> None:
    before, after = (progress_after(seconds, expected_seconds=expected)["value"] for seconds in sorted((first, second)))
    assert 0 <= before <= after < 1


@pytest.mark.parametrize(
    "report", [{"value": 0.03}, {"value": 0}, {"phase": "fetching"}, {"phase": "waiting"}, {"phase": "storing"}]
)
def test_report_of_a_worker_is_not_replaced(report: dict[str, Any]) -> None:
    assert progress_after(50, report) == report


def test_report_without_a_value_keeps_its_other_fields() -> None:
    began_at = (START + timedelta(seconds=20)).isoformat()
    assert progress_after(70, {"phase": "running", "began_at": began_at, "node": "KSampler"}) == {
        "phase": "running",
        "began_at": began_at,
        "node": "KSampler",
        "value": 0.45,
        "is_estimated": True,
    }


def test_prefetched_job_and_unknown_duration_have_no_estimate() -> None:
    assert progress_after(50, is_prefetch=True) is None
    assert progress_after(50, expected_seconds=None) is None
    assert progress_after(50, expected_seconds=0.0) is None
