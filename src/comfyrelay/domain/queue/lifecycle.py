"""The dispatch lifecycle as pure functions from a dispatch and an event to a `Transition`.

A function returns `None` if the event changes nothing, such as a stale call or a terminal dispatch. The caller holds
the row lock from reading the dispatch until it has written the transition.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

from comfyrelay.domain.queue.memory import OutOfMemoryStep, larger_gpu_reason, next_memory_step
from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus, JobEventType, Outcome, PauseMode, Provider
from comfyrelay.errors import Fault


class Dispatch(NamedTuple):
    """A row of the queue. A named tuple, because thousands are created and changed per second."""

    id: int
    tenant_id: str
    tenant_job_id: str
    shard: str
    workflow_id: int
    workflow_hash: str
    effect_id: int | None
    provider: str
    stage: str
    status: str
    priority: int
    rank: int
    attempts: int
    max_attempts: int
    epoch: int
    version: int
    deferrals: int
    batch_id: str | None
    worker_id: str | None
    lease_token: str | None
    lease_request_id: str | None
    leased_at: datetime | None
    lease_expires_at: datetime | None
    is_prefetch: bool
    cancel_requested_at: datetime | None
    pause_requested_at: datetime | None
    pause_mode: str | None
    release_requested_at: datetime | None
    available_at: datetime
    created_at: datetime
    finished_at: datetime | None
    duration_seconds: float | None
    last_error: str | None
    max_wait_seconds: int | None = None
    # prices when it was queued, in millionths of the currency unit
    self_hosted_micros_per_second: int | None = None
    cloud_micros_per_second: int | None = None
    # cost of all leases so far
    cost_micros: int = 0
    # estimated cost of the cloud run; `None` if it never went to the cloud
    expected_cost_micros: int | None = None
    # the only worker that may lease it
    only_worker: str | None = None
    # memory of the GPU that was too small, set when it was requeued for a larger one
    ran_out_bytes: int | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_DISPATCH

    @property
    def is_leased(self) -> bool:
        return self.status == DispatchStatus.LEASED

    @property
    def has_burst(self) -> bool:
        """Whether it ever went to the cloud because of a long wait."""
        return self.expected_cost_micros is not None

    @property
    def micros_per_second(self) -> int | None:
        """Price per second at its current provider."""
        is_cloud = self.provider == Provider.CLOUD
        return self.cloud_micros_per_second if is_cloud else self.self_hosted_micros_per_second

    @property
    def attempts_used_up(self) -> bool:
        return self.attempts >= self.max_attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """A dispatch before and after an event, with the data for the shard. `lease_outcome` is set if a lease ended."""

    before: Dispatch
    after: Dispatch
    event_type: JobEventType
    lease_outcome: Outcome | None = None
    error: str | None = None
    fault: Fault | None = None
    reason: str | None = None
    # why this failure holds the rest of the batch
    hold: str | None = None


CANCELED_BY_ADMINISTRATOR = "An administrator canceled it."


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
    after = dispatch._replace(
        status=DispatchStatus.LEASED,
        attempts=dispatch.attempts + 1,
        epoch=dispatch.epoch + 1,
        version=dispatch.version + 1,
        worker_id=worker_id,
        lease_token=lease_token,
        lease_request_id=request_id,
        is_prefetch=is_prefetch,
        leased_at=now,
        lease_expires_at=now + ttl,
    )
    return Transition(before=dispatch, after=after, event_type=JobEventType.STARTED)


def began_at(dispatch: Dispatch, *, after_seconds: float | None, now: datetime) -> datetime | None:
    """When the run began: the worker reports the seconds between lease and start."""
    if after_seconds is None or dispatch.leased_at is None:
        return dispatch.leased_at
    return min(now, dispatch.leased_at + timedelta(seconds=after_seconds))


def ran_seconds(transition: Transition, *, began_at: datetime | None, now: datetime) -> float:
    """Seconds that the ended lease kept a slot busy; 0 for a prefetched job that never ran."""
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
    after = _finished(dispatch, DispatchStatus.COMPLETED, now, error=None, began_at=began_at)
    return Transition(before=dispatch, after=after, event_type=JobEventType.COMPLETED, lease_outcome=Outcome.COMPLETED)


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
    reason = None
    if fault is Fault.JOB or dispatch.attempts_used_up:
        after = _finished(dispatch, DispatchStatus.FAILED, now, error=error, began_at=began_at)
        event_type = JobEventType.FAILED
    else:
        after, event_type = _requeued(dispatch, now, retry_after, error, JobEventType.RETRYING)
        after, reason = _without_burst(after, MOVED_AFTER_CLOUD_FAILURE)
    return Transition(
        before=dispatch,
        after=after,
        event_type=event_type,
        lease_outcome=Outcome.FAILED,
        error=error,
        fault=fault,
        reason=reason,
    )


def run_out_of_memory(
    dispatch: Dispatch,
    *,
    gpu_bytes: int,
    has_larger_gpu: bool,
    error: str,
    now: datetime,
    began_at: datetime | None = None,
) -> Transition | None:
    """Handle a job that ran out of memory alone on a GPU of `gpu_bytes`.

    It is requeued once for a larger GPU, without penalty. Otherwise it fails with a job fault.
    """
    next_step = next_memory_step(
        ran_alone=True, has_moved=dispatch.ran_out_bytes is not None, has_larger_gpu=has_larger_gpu
    )
    if next_step is not OutOfMemoryStep.LARGER:
        return fail(dispatch, fault=Fault.JOB, error=error, now=now, began_at=began_at)
    transition = requeue(dispatch, reason=larger_gpu_reason(gpu_bytes), now=now, began_at=began_at)
    if transition is None or transition.lease_outcome is not Outcome.REQUEUED:
        return transition
    return replace(transition, after=transition.after._replace(ran_out_bytes=gpu_bytes))


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
    after, event_type = _requeued(
        dispatch, now, retry_after, f"Requeued: {reason}", JobEventType.REQUEUED, attempts=unpenalised
    )
    return Transition(
        before=dispatch, after=after, event_type=event_type, lease_outcome=Outcome.REQUEUED, reason=reason
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
    return replace(
        transition, after=transition.after._replace(deferrals=dispatch.deferrals + 1), lease_outcome=Outcome.DEFERRED
    )


def is_in_grace(dispatch: Dispatch, *, now: datetime, grace: timedelta, has_idle_worker: bool) -> bool:
    """Whether the worker of an expired lease may still report its result, so that finished work is not lost.

    The grace period ends early if the job was canceled, or if an idle worker could restart it now.
    """
    if dispatch.cancel_requested_at is not None or dispatch.lease_expires_at is None:
        return False
    can_restart = not dispatch.attempts_used_up and dispatch.pause_requested_at is None
    return now < dispatch.lease_expires_at + grace and not (has_idle_worker and can_restart)


def expire(dispatch: Dispatch, *, now: datetime, grace: timedelta, has_idle_worker: bool) -> Transition | None:
    """Expire an overdue lease. The deadline is checked again, because a heartbeat may have extended the lease."""
    if not dispatch.is_leased or dispatch.lease_expires_at is None or dispatch.lease_expires_at > now:
        return None
    if is_in_grace(dispatch, now=now, grace=grace, has_idle_worker=has_idle_worker):
        return None
    return _with_unknown_cost(_expired(dispatch, now))


def _expired(dispatch: Dispatch, now: datetime) -> Transition:
    if dispatch.cancel_requested_at is not None:
        return _canceled(dispatch, now, lease_outcome=Outcome.EXPIRED)
    error, reason = "The worker stopped responding.", None
    if dispatch.attempts_used_up:
        after = _finished(dispatch, DispatchStatus.FAILED, now, error=error)
        event_type = JobEventType.FAILED
    else:
        after, event_type = _requeued(dispatch, now, timedelta(0), error, JobEventType.RETRYING)
        after, reason = _without_burst(after, MOVED_AFTER_CLOUD_FAILURE)
    return Transition(
        before=dispatch,
        after=after,
        event_type=event_type,
        lease_outcome=Outcome.EXPIRED,
        error=error,
        fault=Fault.WORKER,
        reason=reason,
    )


def fail_exhausted(dispatch: Dispatch, *, now: datetime) -> Transition | None:
    """Fail a queued or paused dispatch that has no attempts left, because no worker may lease it."""
    if dispatch.is_leased or dispatch.is_terminal or not dispatch.attempts_used_up:
        return None
    error = dispatch.last_error or "All attempts were used up."
    return Transition(
        before=dispatch,
        after=_finished(dispatch, DispatchStatus.FAILED, now, error=error),
        event_type=JobEventType.FAILED,
        error=error,
        fault=Fault.WORKER,
    )


def fail_permanently(dispatch: Dispatch, *, error: str, now: datetime) -> Transition | None:
    """Fail a dispatch whose payload can never be built, in any non-terminal state."""
    if dispatch.is_terminal:
        return None
    return Transition(
        before=dispatch,
        after=_finished(dispatch, DispatchStatus.FAILED, now, error=error),
        event_type=JobEventType.FAILED,
        lease_outcome=Outcome.FAILED if dispatch.is_leased else None,
        error=error,
        fault=Fault.JOB,
    )


def finish_like_job(dispatch: Dispatch, *, status: DispatchStatus, now: datetime) -> Transition:
    """Bring a dispatch to the terminal status of its job, whose tokens are settled. Used by the reconciler."""
    after = _finished(dispatch, status, now, error=dispatch.last_error)
    event_type = {
        DispatchStatus.COMPLETED: JobEventType.COMPLETED,
        DispatchStatus.FAILED: JobEventType.FAILED,
        DispatchStatus.CANCELED: JobEventType.CANCELED,
    }[status]
    lease_outcome = Outcome(status) if dispatch.is_leased else None
    return Transition(before=dispatch, after=after, event_type=event_type, lease_outcome=lease_outcome)


def cancel(dispatch: Dispatch, *, now: datetime, reason: str | None = None) -> Transition | None:
    """Cancel an unleased dispatch at once; ask the worker to stop a leased one.

    `reason` is given if it is not the user who cancels.
    """
    if dispatch.is_terminal or dispatch.cancel_requested_at is not None:
        return None
    if dispatch.is_leased:
        after = dispatch._replace(cancel_requested_at=now, version=dispatch.version + 1)
        return Transition(before=dispatch, after=after, event_type=JobEventType.CANCEL_REQUESTED, reason=reason)
    return replace(_canceled(dispatch, now, lease_outcome=None), reason=reason)


def pause(dispatch: Dispatch, *, mode: PauseMode, now: datetime) -> Transition | None:
    """Pause a queued dispatch at once. For a leased one, `after` lets it finish and `now` asks the worker to stop.

    The worker also releases a prefetched dispatch that it has not started.
    """
    if dispatch.is_terminal or dispatch.status == DispatchStatus.PAUSED:
        return None
    if not dispatch.is_leased:
        after = dispatch._replace(status=DispatchStatus.PAUSED, version=dispatch.version + 1)
        return Transition(before=dispatch, after=after, event_type=JobEventType.PAUSED)
    if dispatch.pause_mode in {mode, PauseMode.NOW}:
        return None
    release = now if dispatch.is_prefetch else dispatch.release_requested_at
    after = dispatch._replace(
        pause_requested_at=now, pause_mode=mode, release_requested_at=release, version=dispatch.version + 1
    )
    return Transition(before=dispatch, after=after, event_type=JobEventType.PAUSE_REQUESTED, reason=mode)


def hold(dispatch: Dispatch, *, workflow_hash: str, reason: str, now: datetime) -> Transition | None:
    """Hold another item of a batch after a failure that all items with this hash share.

    A queued item is paused with the reason. A running one may finish, and is paused if it is requeued.
    """
    if dispatch.workflow_hash != workflow_hash:
        return None
    transition = pause(dispatch, mode=PauseMode.AFTER, now=now)
    return transition if transition is None or dispatch.is_leased else replace(transition, reason=reason)


def resume(dispatch: Dispatch, *, now: datetime) -> Transition | None:
    """Return a paused dispatch to its old place, or withdraw the pause request of a leased one."""
    if dispatch.status == DispatchStatus.PAUSED:
        after = dispatch._replace(
            status=DispatchStatus.QUEUED,
            available_at=max(dispatch.available_at, now),
            version=dispatch.version + 1,
        )
    elif dispatch.is_leased and dispatch.pause_requested_at is not None:
        after = dispatch._replace(pause_requested_at=None, pause_mode=None, version=dispatch.version + 1)
    else:
        return None
    return Transition(before=dispatch, after=after, event_type=JobEventType.RESUMED)


def set_priority(dispatch: Dispatch, *, priority: int) -> Transition | None:
    if dispatch.is_terminal or dispatch.priority == priority:
        return None
    after = dispatch._replace(priority=priority, version=dispatch.version + 1)
    return Transition(before=dispatch, after=after, event_type=JobEventType.PRIORITY)


def burst(dispatch: Dispatch, *, expected_cost_micros: int, reason: str) -> Transition | None:
    """Move a queued, self-hosted dispatch to the cloud; at most once per dispatch."""
    if dispatch.status != DispatchStatus.QUEUED or dispatch.provider != Provider.SELF_HOSTED or dispatch.has_burst:
        return None
    after = dispatch._replace(
        provider=Provider.CLOUD, expected_cost_micros=expected_cost_micros, version=dispatch.version + 1
    )
    return Transition(before=dispatch, after=after, event_type=JobEventType.PROVIDER, reason=reason)


def return_from_cloud(dispatch: Dispatch, *, reason: str) -> Transition | None:
    """Move a dispatch that waits in the cloud back to self-hosted, for good."""
    if dispatch.status != DispatchStatus.QUEUED or dispatch.provider != Provider.CLOUD or not dispatch.has_burst:
        return None
    after = dispatch._replace(provider=Provider.SELF_HOSTED, version=dispatch.version + 1)
    return Transition(before=dispatch, after=after, event_type=JobEventType.PROVIDER, reason=reason)


def charge(transition: Transition, *, ran_from: datetime | None, now: datetime) -> Transition:
    """Add the cost of the ended lease, by run time; nothing if the run never began."""
    price = transition.before.micros_per_second
    if transition.lease_outcome is None or price is None or ran_from is None:
        return transition
    micros = ceil(price * max(0.0, (now - ran_from).total_seconds()))
    return replace(transition, after=transition.after._replace(cost_micros=transition.before.cost_micros + micros))


def _with_unknown_cost(transition: Transition) -> Transition:
    """Charge the estimate for a cloud run with an unknown result, because it may have been billed."""
    expected = transition.before.expected_cost_micros if transition.before.provider == Provider.CLOUD else None
    return replace(
        transition, after=transition.after._replace(cost_micros=transition.before.cost_micros + (expected or 0))
    )


def _without_burst(dispatch: Dispatch, reason: str) -> tuple[Dispatch, str | None]:
    """Retry on our own workers after a worker fault in the cloud."""
    if dispatch.provider != Provider.CLOUD or not dispatch.has_burst:
        return dispatch, None
    return dispatch._replace(provider=Provider.SELF_HOSTED), reason


def stop_request(
    *,
    cancel_requested_at: datetime | None,
    pause_mode: str | None,
    release_requested_at: datetime | None,
) -> str | None:
    """The stop request that a heartbeat returns to the worker: `cancel`, `pause`, `release` or `None`."""
    if cancel_requested_at is not None:
        return "cancel"
    if pause_mode == PauseMode.NOW:
        return "pause"
    if release_requested_at is not None:
        return "release"
    return None


def _canceled(
    dispatch: Dispatch,
    now: datetime,
    *,
    lease_outcome: Outcome | None = Outcome.CANCELED,
    began_at: datetime | None = None,
) -> Transition:
    after = _finished(dispatch, DispatchStatus.CANCELED, now, error=None, began_at=began_at)
    return Transition(before=dispatch, after=after, event_type=JobEventType.CANCELED, lease_outcome=lease_outcome)


def _requeued(
    dispatch: Dispatch,
    now: datetime,
    wait: timedelta,
    error: str,
    event_type: JobEventType,
    *,
    attempts: int | None = None,
) -> tuple[Dispatch, JobEventType]:
    paused = dispatch.pause_requested_at is not None
    after = dispatch._replace(
        **UNLEASED,
        version=dispatch.version + 1,
        status=DispatchStatus.PAUSED if paused else DispatchStatus.QUEUED,
        attempts=dispatch.attempts if attempts is None else attempts,
        available_at=now + wait,
        last_error=error,
    )
    return after, (JobEventType.PAUSED if paused else event_type)


def _finished(
    dispatch: Dispatch,
    status: DispatchStatus,
    now: datetime,
    *,
    error: str | None,
    began_at: datetime | None = None,
) -> Dispatch:
    started = (began_at or dispatch.leased_at) if dispatch.is_leased else None
    return dispatch._replace(
        **UNLEASED,
        version=dispatch.version + 1,
        status=status,
        finished_at=now,
        duration_seconds=(now - started).total_seconds() if started else None,
        last_error=error if error is not None else dispatch.last_error,
    )


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
