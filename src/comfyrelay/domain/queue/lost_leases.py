"""Leases of workers that missed their heartbeats: when one ends, and when a worker that returns gets it back."""

from datetime import datetime, timedelta

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Provider

# The reason why a lease ended that its worker may get back.
SILENT = "silent"


def was_heard(dispatch: Dispatch, *, since: datetime, ttl: timedelta) -> bool:
    """Whether the lease began or got a heartbeat since then. Each time it gets its full time."""
    return dispatch.lease_expires_at is not None and dispatch.lease_expires_at - ttl > since


def revive(
    dispatch: Dispatch,
    *,
    lease_token: str,
    epoch: int,
    worker_id: str,
    leased_at: datetime,
    ttl: timedelta,
    now: datetime,
) -> Transition | None:
    """Return a lease that ended in silence to its worker, if the job still waits and no later lease began.

    Epoch and attempts stay: it is the same lease. A job that was moved to another provider is not returned.
    """
    if dispatch.status != DispatchStatus.QUEUED or dispatch.epoch != epoch or dispatch.has_burst:
        return None
    if dispatch.provider != Provider.SELF_HOSTED:
        return None
    after = dispatch._replace(
        version=dispatch.version + 1,
        status=DispatchStatus.LEASED,
        worker_id=worker_id,
        lease_token=lease_token,
        leased_at=leased_at,
        lease_expires_at=now + ttl,
    )
    return Transition(before=dispatch, after=after, event_type=JobEventType.STARTED)
