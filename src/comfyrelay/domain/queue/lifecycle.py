"""The dispatch lifecycle as pure functions from a dispatch and an event to a `Transition`.

A function returns `None` if the event changes nothing, such as a stale call or a terminal dispatch. The caller holds
the row lock from reading the dispatch until it has written the transition.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.memory import OutOfMemoryStep, every_gpu_failed, larger_gpu_reason, ran_out_reason
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Outcome, PauseMode, Provider
from comfyrelay.errors import Fault

CANCELED_BY_ADMINISTRATOR = "An administrator canceled it."
MOVED_AFTER_CLOUD_FAILURE = "Moved back from Comfy Cloud: it failed there, but the job was not the cause."

UNLEASED: dict[str, Any] = {
    "worker_id": None,
    "lease_token": None,
    "lease_request_id": None,
    "leased_at": None,
    "lease_expires_at": None,
    "is_prefetch": False,
    "cancel_requested_at": None,
    "pause_requested_at": None,
    "pause_mode": None,
    "release_requested_at": None,
}


def holds_lease(dispatch: Dispatch, lease_token: str) -> bool:
    return dispatch.is_leased and dispatch.lease_token == lease_token


def lease(
    dispatch: Dispatch,
    *,
    worker_id: str,
    lease_token: str,
    request_id: str | None,
    is_prefetch: bool,
    ttl: timedelta,
    now: datetime,
) -> Transition:
    """Lease a queued dispatch to a worker. Only this function increments `attempts` and `epoch`."""
    return _transition(
        dispatch,
        JobEventType.STARTED,
        status=DispatchStatus.LEASED,
        attempts=dispatch.attempts + 1,
        epoch=dispatch.epoch + 1,
        worker_id=worker_id,
        lease_token=lease_token,
        lease_request_id=request_id,
        is_prefetch=is_prefetch,
        leased_at=now,
        lease_expires_at=now + ttl,
    )


def began_at(dispatch: Dispatch, *, after_seconds: float | None, now: datetime) -> datetime | None:
    """Return the start of the run. The worker reports the seconds between lease and start."""
    if after_seconds is None or dispatch.leased_at is None:
        return dispatch.leased_at
    return min(now, dispatch.leased_at + timedelta(seconds=after_seconds))


def ran_seconds(transition: Transition, *, began_at: datetime | None, now: datetime) -> float:
    """Return the seconds that the ended lease kept a slot busy; 0 for a prefetched job that never ran."""
    leased = transition.before
    began = began_at or leased.leased_at
    if began is None or (
        leased.is_prefetch and began == leased.leased_at and transition.lease_outcome is not Outcome.COMPLETED
    ):
        return 0.0
    return round((now - began).total_seconds(), 3)


def complete(dispatch: Dispatch, *, now: datetime, began_at: datetime | None = None) -> Transition | None:
    if not dispatch.is_leased:
        return None
    finished = _finished(dispatch, DispatchStatus.COMPLETED, now, began_at=began_at)
    return _transition(dispatch, JobEventType.COMPLETED, lease_outcome=Outcome.COMPLETED, **finished)


def fail(
    dispatch: Dispatch,
    *,
    fault: Fault,
    error: str,
    now: datetime,
    retry_after: timedelta = timedelta(0),
    began_at: datetime | None = None,
) -> Transition | None:
    """Fail on a job fault, retry on a worker fault, and requeue without penalty on an interruption."""
    if not dispatch.is_leased:
        return None
    if fault is Fault.INTERRUPTED:
        return requeue(dispatch, reason=error, now=now, retry_after=retry_after, began_at=began_at)
    if dispatch.cancel_requested_at is not None:
        return _canceled(dispatch, now, began_at=began_at)
    return _fail_attempt(
        dispatch, Outcome.FAILED, fault=fault, error=error, now=now, retry_after=retry_after, began_at=began_at
    )


def run_out_of_memory(
    dispatch: Dispatch,
    *,
    gpu_bytes: int | None,
    failed: Sequence[int | None],
    step: OutOfMemoryStep,
    error: str,
    now: datetime,
    began_at: datetime | None = None,
) -> Transition | None:
    """Move a job that ran out of memory alone on a GPU of `gpu_bytes` to another worker, without penalty, or fail it.

    It never runs again on a worker that it ran out of memory on. The worker is blocked if it seems to be the cause.
    `failed` are the GPU sizes of the other workers that ran out of memory.
    """
    failures = {**dispatch.memory_failures, str(dispatch.worker_id): gpu_bytes}
    if step is OutOfMemoryStep.NONE:
        error = every_gpu_failed(error, [*failed, gpu_bytes])
        end = fail(dispatch, fault=Fault.JOB, error=error, now=now, began_at=began_at)
        return None if end is None else replace(end, acquitted=tuple(failures))
    is_too_small = step is OutOfMemoryStep.LARGER and gpu_bytes is not None
    reason = larger_gpu_reason(gpu_bytes) if is_too_small and gpu_bytes else ran_out_reason(gpu_bytes)
    transition = requeue(dispatch, reason=reason, now=now, began_at=began_at)
    if transition is None or transition.lease_outcome is not Outcome.REQUEUED:
        return transition
    return replace(
        transition,
        after=transition.after._replace(ran_out_on=json.dumps(failures)),
        block=None if is_too_small else reason,
        acquitted=tuple(failures) if is_too_small else (),
    )


def fail_out_of_memory(dispatch: Dispatch, *, now: datetime) -> Transition | None:
    """Fail a queued dispatch that ran out of memory on every worker that can run it."""
    if dispatch.status != DispatchStatus.QUEUED or not dispatch.ran_out_on:
        return None
    error = every_gpu_failed("There was not enough memory.", list(dispatch.memory_failures.values()))
    finished = _finished(dispatch, DispatchStatus.FAILED, now, error=error)
    return _transition(dispatch, JobEventType.FAILED, error=error, fault=Fault.JOB, **finished)


def requeue(
    dispatch: Dispatch,
    *,
    reason: str,
    now: datetime,
    retry_after: timedelta = timedelta(0),
    began_at: datetime | None = None,
) -> Transition | None:
    """Return a dispatch to the queue without counting the attempt: the infrastructure ended the lease, not the job."""
    if not dispatch.is_leased:
        return None
    if dispatch.cancel_requested_at is not None:
        return _canceled(dispatch, now, began_at=began_at)
    unpenalised = max(0, dispatch.attempts - 1)
    event_type, requeued = _requeued(dispatch, JobEventType.REQUEUED, now + retry_after, f"Requeued: {reason}")
    return _transition(
        dispatch, event_type, lease_outcome=Outcome.REQUEUED, reason=reason, attempts=unpenalised, **requeued
    )


def requeue_abandoned(dispatch: Dispatch, *, reason: str, now: datetime) -> Transition | None:
    """Requeue a dispatch whose worker was removed and will not report the cost of the run."""
    transition = requeue(dispatch, reason=reason, now=now)
    return None if transition is None else _with_unknown_cost(transition)


def defer(dispatch: Dispatch, *, reason: str, now: datetime, base: timedelta, longest: timedelta) -> Transition | None:
    """Requeue a job whose payload cannot be built now, with exponential backoff and without penalty."""
    wait = min(longest, base * 2 ** min(dispatch.deferrals, 16))
    transition = requeue(dispatch, reason=reason, now=now, retry_after=wait)
    if transition is None or transition.lease_outcome is not Outcome.REQUEUED:
        return transition
    after = transition.after._replace(deferrals=dispatch.deferrals + 1)
    return replace(transition, after=after, lease_outcome=Outcome.DEFERRED)


def expire(dispatch: Dispatch, *, now: datetime, grace: timedelta, has_idle_worker: bool) -> Transition | None:
    """Expire an overdue lease. The deadline is checked again, because a heartbeat may have extended the lease."""
    if not dispatch.is_leased or dispatch.lease_expires_at is None or dispatch.lease_expires_at > now:
        return None
    if is_in_grace(dispatch, now=now, grace=grace, has_idle_worker=has_idle_worker):
        return None
    return expire_lost(dispatch, now=now)


def expire_lost(dispatch: Dispatch, *, now: datetime) -> Transition | None:
    """Expire the lease of a worker that is gone, also before its deadline."""
    if not dispatch.is_leased:
        return None
    if dispatch.cancel_requested_at is not None:
        return _with_unknown_cost(_canceled(dispatch, now, lease_outcome=Outcome.EXPIRED))
    error = "The worker stopped responding."
    return _with_unknown_cost(_fail_attempt(dispatch, Outcome.EXPIRED, fault=Fault.WORKER, error=error, now=now))


def is_in_grace(dispatch: Dispatch, *, now: datetime, grace: timedelta, has_idle_worker: bool) -> bool:
    """Whether the worker of an expired lease may still report its result, so that finished work is not lost.

    The grace period ends early if the job was canceled, or if an idle worker could restart it now.
    """
    if dispatch.cancel_requested_at is not None or dispatch.lease_expires_at is None:
        return False
    can_restart = not dispatch.attempts_used_up and dispatch.pause_requested_at is None
    return now < dispatch.lease_expires_at + grace and not (has_idle_worker and can_restart)


def fail_exhausted(dispatch: Dispatch, *, now: datetime) -> Transition | None:
    """Fail a queued or paused dispatch that has no attempts left, because no worker may lease it."""
    if dispatch.is_leased or dispatch.is_terminal or not dispatch.attempts_used_up:
        return None
    error = dispatch.last_error or "All attempts were used up."
    finished = _finished(dispatch, DispatchStatus.FAILED, now, error=error)
    return _transition(dispatch, JobEventType.FAILED, error=error, fault=Fault.WORKER, **finished)


def fail_permanently(dispatch: Dispatch, *, error: str, now: datetime) -> Transition | None:
    """Fail a dispatch whose payload can never be built, in any non-terminal state."""
    if dispatch.is_terminal:
        return None
    outcome = Outcome.FAILED if dispatch.is_leased else None
    finished = _finished(dispatch, DispatchStatus.FAILED, now, error=error)
    return _transition(dispatch, JobEventType.FAILED, lease_outcome=outcome, error=error, fault=Fault.JOB, **finished)


def finish_like_job(dispatch: Dispatch, *, status: DispatchStatus, now: datetime) -> Transition:
    """Bring a dispatch to the terminal status of its job, whose tokens are settled. Used by the reconciler."""
    event_type = {
        DispatchStatus.COMPLETED: JobEventType.COMPLETED,
        DispatchStatus.FAILED: JobEventType.FAILED,
        DispatchStatus.CANCELED: JobEventType.CANCELED,
    }[status]
    outcome = Outcome(status) if dispatch.is_leased else None
    return _transition(dispatch, event_type, lease_outcome=outcome, **_finished(dispatch, status, now))


def cancel(dispatch: Dispatch, *, now: datetime, reason: str | None = None) -> Transition | None:
    """Cancel an unleased dispatch at once, and request the worker of a leased one to stop.

    `reason` is set if another person than the user cancels.
    """
    if dispatch.is_terminal or dispatch.cancel_requested_at is not None:
        return None
    if dispatch.is_leased:
        return _transition(dispatch, JobEventType.CANCEL_REQUESTED, reason=reason, cancel_requested_at=now)
    return replace(_canceled(dispatch, now, lease_outcome=None), reason=reason)


def allowed_pause(dispatch: Dispatch, mode: PauseMode, *, are_own_runs_charged: bool) -> PauseMode:
    """Return the mode to use for a pause. A run that is charged by the second may finish: if it were interrupted, it
    would be repeated, and its seconds would not be charged."""
    return PauseMode.AFTER if are_own_runs_charged and dispatch.effect_id is None else mode


def pause(dispatch: Dispatch, *, mode: PauseMode, now: datetime) -> Transition | None:
    """Pause a queued dispatch at once. For a leased one, `after` lets it finish and `now` asks the worker to stop.

    The worker also releases a prefetched dispatch that it has not started.
    """
    if dispatch.is_terminal or dispatch.status == DispatchStatus.PAUSED:
        return None
    if not dispatch.is_leased:
        return _transition(dispatch, JobEventType.PAUSED, status=DispatchStatus.PAUSED)
    if dispatch.pause_requested_at is not None and dispatch.pause_mode in {mode, PauseMode.NOW}:
        return None
    return _transition(
        dispatch,
        JobEventType.PAUSE_REQUESTED,
        reason=mode,
        pause_requested_at=now,
        # A pause of the queue may already have interrupted the run.
        pause_mode=dispatch.pause_mode or mode if mode is PauseMode.AFTER else mode,
        release_requested_at=now if dispatch.is_prefetch else dispatch.release_requested_at,
    )


def hold(dispatch: Dispatch, *, workflow_hash: str, reason: str, now: datetime) -> Transition | None:
    """Hold another item of a batch after a failure that all items with this hash share.

    A queued item is paused with the reason. A running one may finish, and is paused if it is requeued.
    """
    if dispatch.workflow_hash != workflow_hash:
        return None
    transition = pause(dispatch, mode=PauseMode.AFTER, now=now)
    return transition if transition is None or dispatch.is_leased else replace(transition, reason=reason)


def resume(dispatch: Dispatch, *, is_queue_paused: bool = False, now: datetime) -> Transition | None:
    """Return a paused dispatch to its old place, or withdraw the pause request of a leased one.

    A paused queue still interrupts a running dispatch, and then holds it.
    """
    if dispatch.status == DispatchStatus.PAUSED:
        available_at = max(dispatch.available_at, now)
        return _transition(
            dispatch, JobEventType.RESUMED, status=DispatchStatus.QUEUED, available_at=available_at, resumed_at=now
        )
    if dispatch.is_leased and dispatch.pause_requested_at is not None:
        mode = PauseMode.NOW if is_queue_paused and dispatch.pause_mode == PauseMode.NOW else None
        return _transition(dispatch, JobEventType.RESUMED, pause_requested_at=None, pause_mode=mode, resumed_at=now)
    return None


def set_priority(dispatch: Dispatch, *, priority: int) -> Transition | None:
    if dispatch.is_terminal or dispatch.priority == priority:
        return None
    return _transition(dispatch, JobEventType.PRIORITY, priority=priority)


def burst(dispatch: Dispatch, *, expected_cost_micros: int, reason: str) -> Transition | None:
    """Move a queued, self-hosted dispatch to the cloud; at most once per dispatch."""
    if dispatch.status != DispatchStatus.QUEUED or dispatch.provider != Provider.SELF_HOSTED or dispatch.has_burst:
        return None
    return _transition(
        dispatch,
        JobEventType.PROVIDER,
        reason=reason,
        provider=Provider.CLOUD,
        expected_cost_micros=expected_cost_micros,
    )


def return_from_cloud(dispatch: Dispatch, *, reason: str) -> Transition | None:
    """Move a dispatch that waits in the cloud back to self-hosted, for good."""
    if dispatch.status != DispatchStatus.QUEUED or dispatch.provider != Provider.CLOUD or not dispatch.has_burst:
        return None
    return _transition(dispatch, JobEventType.PROVIDER, reason=reason, provider=Provider.SELF_HOSTED)


def charge(transition: Transition, *, ran_from: datetime | None, now: datetime) -> Transition:
    """Add the cost of the ended lease, by run time; nothing if the run never began."""
    price = transition.before.micros_per_second
    if transition.lease_outcome is None or price is None or ran_from is None:
        return transition
    micros = ceil(price * max(0.0, (now - ran_from).total_seconds()))
    return replace(transition, after=transition.after._replace(cost_micros=transition.before.cost_micros + micros))


def stop_request(
    *,
    cancel_requested_at: datetime | None,
    pause_mode: str | None,
    release_requested_at: datetime | None,
) -> str | None:
    """Return the stop request that a heartbeat sends to the worker: `cancel`, `pause`, `release` or `None`."""
    if cancel_requested_at is not None:
        return "cancel"
    if pause_mode == PauseMode.NOW:
        return "pause"
    return "release" if release_requested_at is not None else None


def _transition(
    dispatch: Dispatch,
    event_type: JobEventType,
    *,
    lease_outcome: Outcome | None = None,
    error: str | None = None,
    fault: Fault | None = None,
    reason: str | None = None,
    **changes: Any,
) -> Transition:
    return Transition(
        before=dispatch,
        after=dispatch._replace(version=dispatch.version + 1, **changes),
        event_type=event_type,
        lease_outcome=lease_outcome,
        error=error,
        fault=fault,
        reason=reason,
    )


def _fail_attempt(
    dispatch: Dispatch,
    outcome: Outcome,
    *,
    fault: Fault,
    error: str,
    now: datetime,
    retry_after: timedelta = timedelta(0),
    began_at: datetime | None = None,
) -> Transition:
    """Fail on a job fault or without attempts left. Otherwise retry; after a failure in the cloud, self-hosted."""
    details: dict[str, Any] = {"lease_outcome": outcome, "error": error, "fault": fault}
    if fault is Fault.JOB or dispatch.attempts_used_up:
        details |= _finished(dispatch, DispatchStatus.FAILED, now, error=error, began_at=began_at)
        return _transition(dispatch, JobEventType.FAILED, **details)
    if dispatch.provider == Provider.CLOUD and dispatch.has_burst:
        details |= {"provider": Provider.SELF_HOSTED, "reason": MOVED_AFTER_CLOUD_FAILURE}
    event_type, requeued = _requeued(dispatch, JobEventType.RETRYING, now + retry_after, error)
    return _transition(dispatch, event_type, **details, **requeued)


def _with_unknown_cost(transition: Transition) -> Transition:
    """Charge the estimate for a cloud run with an unknown result, because it may have been billed."""
    before = transition.before
    expected = before.expected_cost_micros if before.provider == Provider.CLOUD else None
    return replace(transition, after=transition.after._replace(cost_micros=before.cost_micros + (expected or 0)))


def _canceled(
    dispatch: Dispatch,
    now: datetime,
    *,
    lease_outcome: Outcome | None = Outcome.CANCELED,
    began_at: datetime | None = None,
) -> Transition:
    finished = _finished(dispatch, DispatchStatus.CANCELED, now, began_at=began_at)
    return _transition(dispatch, JobEventType.CANCELED, lease_outcome=lease_outcome, **finished)


def _requeued(
    dispatch: Dispatch, event_type: JobEventType, available_at: datetime, error: str
) -> tuple[JobEventType, dict[str, Any]]:
    """Return the event and the changes of a requeued dispatch. It is paused if that was requested."""
    is_paused = dispatch.pause_requested_at is not None
    status = DispatchStatus.PAUSED if is_paused else DispatchStatus.QUEUED
    changes = {**UNLEASED, "status": status, "available_at": available_at, "last_error": error}
    return JobEventType.PAUSED if is_paused else event_type, changes


def _finished(
    dispatch: Dispatch,
    status: DispatchStatus,
    now: datetime,
    *,
    error: str | None = None,
    began_at: datetime | None = None,
) -> dict[str, Any]:
    """Return the changes of a finished dispatch."""
    started = (began_at or dispatch.leased_at) if dispatch.is_leased else None
    return {
        **UNLEASED,
        "status": status,
        "finished_at": now,
        "duration_seconds": (now - started).total_seconds() if started else None,
        "last_error": error if error is not None else dispatch.last_error,
    }
