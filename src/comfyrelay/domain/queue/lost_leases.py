"""Leases of workers that missed heartbeats: when such a lease ends, and when a returning worker gets it back."""

from datetime import datetime, timedelta

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Provider

# The end reason of leases that their worker may get back.
SILENT = "silent"


def was_heard(dispatch: Dispatch, *, since: datetime, ttl: timedelta) -> bool:
    """Whether the lease began or got a heartbeat after `since`. Each of these sets its expiry to `ttl` later."""
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
    """Return a lease that ended for lack of heartbeats to its worker, if the job still waits without a later lease.

    Epoch and attempts do not change, because it is the same lease. A job that was moved to another provider is not
    returned.
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
