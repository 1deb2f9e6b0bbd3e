"""A paused queue holds queued and prefetched jobs, and asks workers to return the jobs that it stops."""

import pytest

from comfyrelay.domain.queue import lifecycle, queue_pause
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.states import DispatchStatus, PauseMode
from tests.support.world import START as NOW
from tests.support.world import queued_dispatch
from tests.unit.domain.test_lifecycle import leased


def stop(dispatch: Dispatch, mode: PauseMode, *, is_prefetched: bool = False) -> str | None:
    """Return the stop request that the worker gets after a pause of the queue."""
    transition = queue_pause.stop_lease(dispatch, is_prefetched=is_prefetched, mode=mode, now=NOW)
    after = dispatch if transition is None else transition.after
    return lifecycle.stop_request(
        cancel_requested_at=after.cancel_requested_at,
        pause_mode=after.pause_mode,
        release_requested_at=after.release_requested_at,
    )


@pytest.mark.parametrize(
    ("status", "is_prefetched", "expected"),
    [
        (DispatchStatus.QUEUED, False, True),
        (DispatchStatus.LEASED, True, True),
        (DispatchStatus.LEASED, False, False),
        (DispatchStatus.PAUSED, False, False),
        (DispatchStatus.COMPLETED, False, False),
    ],
)
def test_paused_queue_holds_jobs_that_have_not_started(
    status: DispatchStatus, *, is_prefetched: bool, expected: bool
) -> None:
    assert queue_pause.is_held(status, is_prefetched=is_prefetched) is expected


def test_pause_after_lets_running_jobs_finish_and_returns_prefetched_ones() -> None:
    assert stop(leased(), PauseMode.AFTER) is None
    assert stop(leased(is_prefetch=True), PauseMode.AFTER, is_prefetched=True) == "release"


def test_pause_now_interrupts_running_jobs_and_returns_prefetched_ones() -> None:
    assert stop(leased(), PauseMode.NOW) == "pause"
    assert stop(leased(is_prefetch=True), PauseMode.NOW, is_prefetched=True) == "release"


def test_pause_of_the_queue_leaves_queued_jobs_unchanged() -> None:
    assert queue_pause.stop_lease(queued_dispatch(), is_prefetched=False, mode=PauseMode.NOW, now=NOW) is None


def test_interrupted_job_stays_queued_unless_it_was_paused_itself() -> None:
    interrupted = queue_pause.stop_lease(leased(), is_prefetched=False, mode=PauseMode.NOW, now=NOW)
    assert interrupted is not None
    requeued = lifecycle.requeue(interrupted.after, reason="pause", now=NOW)
    assert requeued is not None
    assert requeued.after.status == DispatchStatus.QUEUED
    paused = lifecycle.pause(interrupted.after, mode=PauseMode.AFTER, now=NOW)
    assert paused is not None
    assert paused.after.pause_mode == PauseMode.NOW
    requeued = lifecycle.requeue(paused.after, reason="pause", now=NOW)
    assert requeued is not None
    assert requeued.after.status == DispatchStatus.PAUSED


@pytest.mark.parametrize(("is_queue_paused", "request_of_worker"), [(True, "pause"), (False, None)])
def test_resumed_job_stays_interrupted_while_the_queue_is_paused(
    *, is_queue_paused: bool, request_of_worker: str | None
) -> None:
    paused = lifecycle.pause(leased(), mode=PauseMode.NOW, now=NOW)
    assert paused is not None
    resumed = lifecycle.resume(paused.after, is_queue_paused=is_queue_paused, now=NOW)
    assert resumed is not None
    assert stop(resumed.after, PauseMode.AFTER) == request_of_worker
    requeued = lifecycle.requeue(resumed.after, reason="pause", now=NOW)
    assert requeued is not None
    assert requeued.after.status == DispatchStatus.QUEUED
    freed = queue_pause.resume_lease(resumed.after)
    assert (freed is None) is not is_queue_paused


def test_repeated_pause_changes_nothing() -> None:
    first = queue_pause.stop_lease(leased(), is_prefetched=False, mode=PauseMode.NOW, now=NOW)
    assert first is not None
    assert queue_pause.stop_lease(first.after, is_prefetched=False, mode=PauseMode.NOW, now=NOW) is None


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (0, "The queue is paused. It holds no jobs yet. Resume it to run new ones."),
        (1, "The queue is paused. It holds 1 job. Resume it to continue."),
        (12, "The queue is paused. It holds 12 jobs. Resume it to continue."),
    ],
)
def test_pause_text_states_the_number_of_held_jobs(held: int, text: str) -> None:
    assert queue_pause.pause_text(held) == text
