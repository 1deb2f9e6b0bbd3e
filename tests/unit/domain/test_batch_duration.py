"""The estimated start of a job behind other jobs. A batch ends when its last job has started and run."""

import pytest

from comfyrelay.domain.queue.wait_reasons import expected_start


def test_job_starts_after_the_running_job_and_all_jobs_ahead() -> None:
    assert expected_start([20.0], ahead=0, ahead_seconds=0.0) == 20
    assert expected_start([20.0], ahead=3, ahead_seconds=700.0) == 720


def test_job_starts_in_the_slot_that_is_free_first() -> None:
    assert expected_start([50.0, 10.0], ahead=0, ahead_seconds=0.0) == 10
    # The job ahead takes the second slot until 110.
    assert expected_start([50.0, 10.0], ahead=1, ahead_seconds=100.0) == 50


@pytest.mark.parametrize(("ahead", "expected"), [(0, 0), (1, 0), (2, 60), (3, 60), (4, 120)])
def test_jobs_ahead_share_the_slots(ahead: int, expected: float) -> None:
    assert expected_start([0.0, 0.0], ahead=ahead, ahead_seconds=60.0 * ahead) == expected


def test_start_without_a_slot_is_unknown() -> None:
    assert expected_start([], ahead=1, ahead_seconds=60.0) is None
