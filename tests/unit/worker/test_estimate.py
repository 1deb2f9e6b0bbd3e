"""The remaining time of a run is estimated, to decide whether it may continue when the worker must stop."""

import pytest

from comfyrelay.worker.estimate import MAX_WORKFLOWS, TypicalDurations, fits, seconds_left


@pytest.mark.parametrize(
    ("elapsed", "progress", "typical", "left"),
    [
        # nothing is known
        (0, 0.0, None, None),
        (500, 0.0, None, None),
        # only progress
        (10, 0.5, None, 10),
        (30, 0.25, None, 90),
        (99, 0.99, None, 1),
        (0, 0.5, None, 0),
        # only the typical duration
        (0, 0.0, 60, 60),
        (20, 0.0, 60, 40),
        (60, 0.0, 60, 0),
        # longer than usual: expect the same delay again
        (61, 0.0, 60, 1),
        (200, 0.0, 60, 140),
        # both are known: the larger estimate applies
        (1, 0.5, 60, 59),
        (20, 0.1, 60, 180),
        (20, 0.5, 40, 20),
        # longer than usual, but nearly done: only the progress counts
        (297, 0.99, 60, 3),
        (60, 0.5, 60, 60),
        # done earlier than usual, because much of the run was cached
        (1, 1.0, 60, 0),
        (1, 1.01, 60, 0),
    ],
)
def test_remaining_seconds_of_a_run(elapsed: float, progress: float, typical: float | None, left: float | None) -> None:
    assert seconds_left(elapsed=elapsed, progress=progress, typical=typical) == (
        None if left is None else pytest.approx(left)
    )


@pytest.mark.parametrize(
    ("left", "notice", "margin", "fits_notice"),
    [
        (60, 120, 10, True),
        (110, 120, 10, True),
        (110.1, 120, 10, False),
        (0, 0, 0, True),
        (0, 5, 10, False),
        # the end is unknown
        (None, 120, 0, False),
        (None, 0, 0, False),
        # there is no deadline
        (None, None, 10, True),
        (100_000, None, 10, True),
    ],
)
def test_job_fits_into_a_notice_with_its_margin(
    left: float | None, notice: float | None, margin: float, fits_notice: bool
) -> None:
    assert fits(left, notice, margin=margin) is fits_notice


def test_typical_duration_is_learned_per_workflow() -> None:
    typical = TypicalDurations()
    assert typical.run_seconds("a") is None
    assert typical.upload_seconds("a") is None
    typical.record_run("a", 100)
    typical.record_run("b", 5)
    typical.record_upload("a", 2)
    assert (typical.run_seconds("a"), typical.run_seconds("b")) == (100, 5)
    assert (typical.upload_seconds("a"), typical.upload_seconds("b")) == (2, None)


def test_typical_duration_follows_recent_runs_and_ignores_a_cold_start() -> None:
    typical = TypicalDurations()
    typical.record_run("a", 100)
    typical.record_run("a", 10)
    after_one = typical.run_seconds("a")
    assert after_one is not None
    assert 50 < after_one < 100
    for _ in range(10):
        typical.record_run("a", 10)
    assert typical.run_seconds("a") == pytest.approx(10, rel=0.2)


def test_oldest_workflow_is_dropped_beyond_the_limit() -> None:
    typical = TypicalDurations()
    typical.record_run("first", 1)
    typical.record_run("second", 1)
    typical.record_run("first", 1)
    for number in range(MAX_WORKFLOWS - 1):
        typical.record_run(f"more-{number}", 1)
    assert typical.run_seconds("first") is not None
    assert typical.run_seconds("second") is None
