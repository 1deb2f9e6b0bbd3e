"""The dispatch's life as pure functions: a dispatch and what happened go in, the moved dispatch comes out.

Every function returns `None` when the event changes nothing (a stale call, a terminal dispatch). The caller holds the
row's lock between reading the dispatch and writing what these functions return.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

from comfyrelay.domain.queue.memory import Relief, needs_more_than, relief
from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus, JobEventType, Outcome, PauseMode, Provider
from comfyrelay.errors import Fault


class Dispatch(NamedTuple):
    """One row of the queue. A tuple, because thousands are made and changed in a second."""

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
    # as of when it was queued; money is in millionths of a currency
    self_hosted_micros_per_second: int | None = None
    cloud_micros_per_second: int | None = None
    # what its leases have cost so far
    cost_micros: int = 0
    # what going to the cloud should cost; `None` if it never went
    expected_cost_micros: int | None = None
    # nobody else may lease it
    only_worker: str | None = None
    # the memory of the GPU that was too small for it, once it was given back for a larger one
    ran_out_bytes: int | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_DISPATCH

    @property
    def is_leased(self) -> bool:
        return self.status == DispatchStatus.LEASED

    @property
    def has_burst(self) -> bool:
        """Whether it went to the cloud because of a long wait, be it back or not."""
        return self.expected_cost_micros is not None

    @property
    def micros_per_second(self) -> int | None:
        """What a second costs where it is."""
        is_cloud = self.provider == Provider.CLOUD
        return self.cloud_micros_per_second if is_cloud else self.self_hosted_micros_per_second

    @property
    def attempts_used_up(self) -> bool:
        return self.attempts >= self.max_attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A dispatch before and after an event, what the shard gets to know, and how the lease ended if it did."""

    before: Dispatch
    after: Dispatch
    event_type: JobEventType
    ended: Outcome | None = None
    error: str | None = None
    fault: Fault | None = None
    reason: str | None = None
    # with a failure: why the rest of its batch is held
    hold: str | None = None


# Why jobs are canceled that their users did not cancel.
BY_ADMINISTRATOR = "An administrator canceled it."


def holds(dispatch: Dispatch, lease_token: str) -> bool:
    """Only the current lease speaks."""
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
) -> Move:
    """A queued dispatch goes to a worker: the attempt is counted and the epoch grows, here and nowhere else."""
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
    return Move(before=dispatch, after=after, event_type=JobEventType.STARTED)


def began_at(dispatch: Dispatch, *, after_seconds: float | None, now: datetime) -> datetime | None:
    """When a leased dispatch began to run: its holder tells how long that was after it was handed over."""
    if after_seconds is None or dispatch.leased_at is None:
        return dispatch.leased_at
    return min(now, dispatch.leased_at + timedelta(seconds=after_seconds))


def ran_seconds(move: Move, *, began_at: datetime | None, now: datetime) -> float:
    """How long a lease that ends here kept a machine busy. One that was fetched ahead and given back did not."""
    leased = move.before
    began = began_at or leased.leased_at
    if began is None or (leased.is_prefetch and began == leased.leased_at and move.ended is not Outcome.COMPLETED):
        return 0.0
    return round((now - began).total_seconds(), 3)


def complete(dispatch: Dispatch, *, now: datetime, began_at: datetime | None = None) -> Move | None:
    if not dispatch.is_leased:
        return None
    after = _finished(dispatch, DispatchStatus.COMPLETED, now, error=None, began_at=began_at)
    return Move(before=dispatch, after=after, event_type=JobEventType.COMPLETED, ended=Outcome.COMPLETED)


def fail(
    dispatch: Dispatch,
    *,
    fault: Fault,
    error: str,
    now: datetime,
    retry_after: timedelta = timedelta(0),
    began_at: datetime | None = None,
) -> Move | None:
    """A job's own fault is final; a worker's is tried elsewhere; an interruption costs nothing."""
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
        after, event_type = _back(dispatch, now, retry_after, error, JobEventType.RETRYING)
        after, reason = _home(after, FAILED_IN_THE_CLOUD)
    return Move(
        before=dispatch,
        after=after,
        event_type=event_type,
        ended=Outcome.FAILED,
        error=error,
        fault=fault,
        reason=reason,
    )


def run_out(
    dispatch: Dispatch,
    *,
    gpu_bytes: int,
    is_larger_there: bool,
    error: str,
    now: datetime,
    began_at: datetime | None = None,
) -> Move | None:
    """A job that had a GPU of this size to itself had not enough memory: once in its life it goes back, unpenalised,
    for a larger GPU that is there; else that is its own failure."""
    next_step = relief(ran_alone=True, has_moved=dispatch.ran_out_bytes is not None, is_larger_there=is_larger_there)
    if next_step is not Relief.LARGER:
        return fail(dispatch, fault=Fault.JOB, error=error, now=now, began_at=began_at)
    move = requeue(dispatch, reason=needs_more_than(gpu_bytes), now=now, began_at=began_at)
    if move is None or move.ended is not Outcome.REQUEUED:
        return move
    return replace(move, after=move.after._replace(ran_out_bytes=gpu_bytes))


def requeue(
    dispatch: Dispatch,
    *,
    reason: str,
    now: datetime,
    retry_after: timedelta = timedelta(0),
    began_at: datetime | None = None,
) -> Move | None:
    """Back to the queue with the attempt given back: infrastructure ended the lease, not the job."""
    if not dispatch.is_leased:
        return None
    if dispatch.cancel_requested_at is not None:
        return _canceled(dispatch, now, began_at=began_at)
    unpenalised = max(0, dispatch.attempts - 1)
    after, event_type = _back(
        dispatch, now, retry_after, f"Requeued: {reason}", JobEventType.REQUEUED, attempts=unpenalised
    )
    return Move(before=dispatch, after=after, event_type=event_type, ended=Outcome.REQUEUED, reason=reason)


def cut_off(dispatch: Dispatch, *, reason: str, now: datetime) -> Move | None:
    """The same for one whose worker was sent away while it ran, and will not tell what that cost."""
    move = requeue(dispatch, reason=reason, now=now)
    return None if move is None else _with_unknown_cost(move)


def defer(dispatch: Dispatch, *, reason: str, now: datetime, base: timedelta, longest: timedelta) -> Move | None:
    """A job whose payload cannot be built now goes back unpenalised, each time a little longer."""
    wait = min(longest, base * 2 ** min(dispatch.deferrals, 16))
    move = requeue(dispatch, reason=reason, now=now, retry_after=wait)
    if move is None or move.ended is not Outcome.REQUEUED:
        return move
    return replace(move, after=move.after._replace(deferrals=dispatch.deferrals + 1), ended=Outcome.DEFERRED)


def may_be_late(dispatch: Dispatch, *, now: datetime, grace: timedelta, is_wanted: bool) -> bool:
    """Whether a lease past its end may still be spoken for: work that is late but whole is not thrown away.

    It costs nobody anything until somebody could begin the job anew, or when its user does not want it any more.
    `is_wanted` says that a worker waits that could run it.
    """
    if dispatch.cancel_requested_at is not None or dispatch.lease_expires_at is None:
        return False
    can_begin_anew = not dispatch.attempts_used_up and dispatch.pause_requested_at is None
    return now < dispatch.lease_expires_at + grace and not (is_wanted and can_begin_anew)


def expire(dispatch: Dispatch, *, now: datetime, grace: timedelta, is_wanted: bool) -> Move | None:
    """The reaper's decision. Expiry is checked here once more: a heartbeat may have come meanwhile."""
    if not dispatch.is_leased or dispatch.lease_expires_at is None or dispatch.lease_expires_at > now:
        return None
    if may_be_late(dispatch, now=now, grace=grace, is_wanted=is_wanted):
        return None
    return _with_unknown_cost(_expired(dispatch, now))


def _expired(dispatch: Dispatch, now: datetime) -> Move:
    if dispatch.cancel_requested_at is not None:
        return _canceled(dispatch, now, ended=Outcome.EXPIRED)
    error, reason = "The worker stopped responding.", None
    if dispatch.attempts_used_up:
        after = _finished(dispatch, DispatchStatus.FAILED, now, error=error)
        event_type = JobEventType.FAILED
    else:
        after, event_type = _back(dispatch, now, timedelta(0), error, JobEventType.RETRYING)
        after, reason = _home(after, FAILED_IN_THE_CLOUD)
    return Move(
        before=dispatch,
        after=after,
        event_type=event_type,
        ended=Outcome.EXPIRED,
        error=error,
        fault=Fault.WORKER,
        reason=reason,
    )


def exhaust(dispatch: Dispatch, *, now: datetime) -> Move | None:
    """Queued or paused with no attempt left, however that came about: nobody may lease it, so it fails."""
    if dispatch.is_leased or dispatch.is_terminal or not dispatch.attempts_used_up:
        return None
    error = dispatch.last_error or "All attempts were used up."
    return Move(
        before=dispatch,
        after=_finished(dispatch, DispatchStatus.FAILED, now, error=error),
        event_type=JobEventType.FAILED,
        error=error,
        fault=Fault.WORKER,
    )


def fail_permanently(dispatch: Dispatch, *, error: str, now: datetime) -> Move | None:
    """A dispatch that can never be built fails, in whatever state it is."""
    if dispatch.is_terminal:
        return None
    return Move(
        before=dispatch,
        after=_finished(dispatch, DispatchStatus.FAILED, now, error=error),
        event_type=JobEventType.FAILED,
        ended=Outcome.FAILED if dispatch.is_leased else None,
        error=error,
        fault=Fault.JOB,
    )


def end_like_job(dispatch: Dispatch, *, status: DispatchStatus, now: datetime) -> Move:
    """For the reconciler: the job has ended and its tokens are settled, so the dispatch ends likewise."""
    after = _finished(dispatch, status, now, error=dispatch.last_error)
    event_type = {
        DispatchStatus.COMPLETED: JobEventType.COMPLETED,
        DispatchStatus.FAILED: JobEventType.FAILED,
        DispatchStatus.CANCELED: JobEventType.CANCELED,
    }[status]
    ended = Outcome(status) if dispatch.is_leased else None
    return Move(before=dispatch, after=after, event_type=event_type, ended=ended)


def cancel(dispatch: Dispatch, *, now: datetime, reason: str | None = None) -> Move | None:
    """At once when nobody works on it; a request to the worker when somebody does. With a `reason` where it is not its
    user who wants it."""
    if dispatch.is_terminal or dispatch.cancel_requested_at is not None:
        return None
    if dispatch.is_leased:
        after = dispatch._replace(cancel_requested_at=now, version=dispatch.version + 1)
        return Move(before=dispatch, after=after, event_type=JobEventType.CANCEL_REQUESTED, reason=reason)
    return replace(_canceled(dispatch, now, ended=None), reason=reason)


def pause(dispatch: Dispatch, *, mode: PauseMode, now: datetime) -> Move | None:
    """Queued: paused at once. Leased: `after` lets it finish, `now` asks the worker to stop.

    What was only fetched, to run next, is given back: the worker does so unless it has begun meanwhile.
    """
    if dispatch.is_terminal or dispatch.status == DispatchStatus.PAUSED:
        return None
    if not dispatch.is_leased:
        after = dispatch._replace(status=DispatchStatus.PAUSED, version=dispatch.version + 1)
        return Move(before=dispatch, after=after, event_type=JobEventType.PAUSED)
    if dispatch.pause_mode in {mode, PauseMode.NOW}:
        return None
    release = now if dispatch.is_prefetch else dispatch.release_requested_at
    after = dispatch._replace(
        pause_requested_at=now, pause_mode=mode, release_requested_at=release, version=dispatch.version + 1
    )
    return Move(before=dispatch, after=after, event_type=JobEventType.PAUSE_REQUESTED, reason=mode)


def hold(dispatch: Dispatch, *, workflow_hash: str, reason: str, now: datetime) -> Move | None:
    """The rest of a batch, when one of its items failed for a reason that all of this hash share: what waits is paused,
    with that reason; what runs may finish, and is paused if it comes back."""
    if dispatch.workflow_hash != workflow_hash:
        return None
    move = pause(dispatch, mode=PauseMode.AFTER, now=now)
    return move if move is None or dispatch.is_leased else replace(move, reason=reason)


def resume(dispatch: Dispatch, *, now: datetime) -> Move | None:
    """Paused: back into its old place. Leased with a pause asked for: the request is withdrawn."""
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
    return Move(before=dispatch, after=after, event_type=JobEventType.RESUMED)


def set_priority(dispatch: Dispatch, *, priority: int) -> Move | None:
    if dispatch.is_terminal or dispatch.priority == priority:
        return None
    after = dispatch._replace(priority=priority, version=dispatch.version + 1)
    return Move(before=dispatch, after=after, event_type=JobEventType.PRIORITY)


def burst(dispatch: Dispatch, *, expected_cost_micros: int, reason: str) -> Move | None:
    """A queued, self-hosted dispatch goes to the cloud, once in its life."""
    if dispatch.status != DispatchStatus.QUEUED or dispatch.provider != Provider.SELF_HOSTED or dispatch.has_burst:
        return None
    after = dispatch._replace(
        provider=Provider.CLOUD, expected_cost_micros=expected_cost_micros, version=dispatch.version + 1
    )
    return Move(before=dispatch, after=after, event_type=JobEventType.PROVIDER, reason=reason)


def come_back(dispatch: Dispatch, *, reason: str) -> Move | None:
    """A dispatch that went to the cloud and waits there is self-hosted again, for good."""
    if dispatch.status != DispatchStatus.QUEUED or dispatch.provider != Provider.CLOUD or not dispatch.has_burst:
        return None
    after = dispatch._replace(provider=Provider.SELF_HOSTED, version=dispatch.version + 1)
    return Move(before=dispatch, after=after, event_type=JobEventType.PROVIDER, reason=reason)


def charge(move: Move, *, ran_from: datetime | None, now: datetime) -> Move:
    """Add what the run of the lease that ended cost, by the time it took; nothing if it never began."""
    price = move.before.micros_per_second
    if move.ended is None or price is None or ran_from is None:
        return move
    micros = ceil(price * max(0.0, (now - ran_from).total_seconds()))
    return replace(move, after=move.after._replace(cost_micros=move.before.cost_micros + micros))


def _with_unknown_cost(move: Move) -> Move:
    """Nobody tells what became of the run. In the cloud it may have been paid for, so it counts as was expected."""
    expected = move.before.expected_cost_micros if move.before.provider == Provider.CLOUD else None
    return replace(move, after=move.after._replace(cost_micros=move.before.cost_micros + (expected or 0)))


def _home(dispatch: Dispatch, reason: str) -> tuple[Dispatch, str | None]:
    """What went to the cloud and failed there through a worker's fault is tried here next."""
    if dispatch.provider != Provider.CLOUD or not dispatch.has_burst:
        return dispatch, None
    return dispatch._replace(provider=Provider.SELF_HOSTED), reason


def stop_request(
    *,
    cancel_requested_at: datetime | None,
    pause_mode: str | None,
    release_requested_at: datetime | None,
) -> str | None:
    """What a heartbeat answers the worker that holds the lease: `cancel`, `pause`, `release` or nothing."""
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
    ended: Outcome | None = Outcome.CANCELED,
    began_at: datetime | None = None,
) -> Move:
    after = _finished(dispatch, DispatchStatus.CANCELED, now, error=None, began_at=began_at)
    return Move(before=dispatch, after=after, event_type=JobEventType.CANCELED, ended=ended)


def _back(
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


FAILED_IN_THE_CLOUD = "Comes back from Comfy Cloud: it failed there through no fault of its own."

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
