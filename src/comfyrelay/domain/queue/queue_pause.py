"""The pause of a tenant's queue: it holds all queued jobs, also those added later, until the queue is resumed."""

from datetime import datetime

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, PauseMode


def is_held(status: str, *, is_prefetched: bool) -> bool:
    """Whether a paused queue holds a dispatch. A prefetched one is returned to the queue; a running one may finish."""
    return status == DispatchStatus.QUEUED or (status == DispatchStatus.LEASED and is_prefetched)


def stop_lease(dispatch: Dispatch, *, is_prefetched: bool, mode: PauseMode, now: datetime) -> Transition | None:
    """Ask the worker to return a dispatch to the queue: with `after` a prefetched one, with `now` also a running one.

    Unlike after the pause of a job, the dispatch remains queued, so resuming the queue is enough.
    """
    is_interrupted = mode is PauseMode.NOW and not is_prefetched
    is_requested = dispatch.pause_mode == PauseMode.NOW if is_interrupted else dispatch.release_requested_at is not None
    if not dispatch.is_leased or not (is_prefetched or is_interrupted) or is_requested:
        return None
    after = dispatch._replace(
        version=dispatch.version + 1,
        release_requested_at=dispatch.release_requested_at or now,
        pause_mode=PauseMode.NOW if is_interrupted else dispatch.pause_mode,
    )
    return Transition(before=dispatch, after=after, event_type=JobEventType.PAUSE_REQUESTED, reason=mode)


def resume_lease(dispatch: Dispatch) -> Transition | None:
    """Let a running dispatch finish if its worker has not interrupted it yet, unless the job itself was paused."""
    is_interrupted = dispatch.is_leased and dispatch.pause_mode == PauseMode.NOW
    if not is_interrupted or dispatch.pause_requested_at is not None:
        return None
    after = dispatch._replace(version=dispatch.version + 1, pause_mode=None, release_requested_at=None)
    return Transition(before=dispatch, after=after, event_type=JobEventType.RESUMED)


def pause_text(held: int) -> str:
    """Say that the queue is paused, and how many jobs it holds."""
    match held:
        case 0:
            return "The queue is paused. It holds no jobs yet. Resume it to run new ones."
        case 1:
            return "The queue is paused. It holds 1 job. Resume it to continue."
        case _:
            return f"The queue is paused. It holds {held} jobs. Resume it to continue."
