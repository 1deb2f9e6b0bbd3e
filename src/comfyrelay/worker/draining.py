"""Drain a worker: finish jobs that fit into the notice and requeue the others."""

import asyncio
from collections.abc import Collection, Mapping

from comfyrelay.protocol.progress import BEFORE_RUN, Phase
from comfyrelay.worker.estimate import Typical, fits, seconds_left
from comfyrelay.worker.host.shutdown_notices import Notice, Notices
from comfyrelay.worker.job import Work
from comfyrelay.worker.lease import LeaseStop

# Reserved at the end of the notice for requeueing and deregistering.
MARGIN_SECONDS = 15.0
# Progress counts nodes and the last may be the slowest, so the estimate is repeated.
RECHECK_SECONDS = 2.0
# Requeueing takes a call or two; after this time leases are left to expire.
GIVE_BACK_SECONDS = 8.0


def may_finish(work: Work, notice: Notice, typical: Typical) -> bool:
    """Whether a job may continue after a notice. A job that has not started loses nothing by requeueing."""
    lease = work.lease
    if notice.at_once or lease.phase in BEFORE_RUN:
        return False
    if notice.seconds is None or lease.phase is not Phase.RUNNING:
        return True
    left = seconds_left(
        elapsed=work.running_seconds, progress=lease.progress, typical=typical.run_seconds(lease.workflow_hash)
    )
    if left is None:
        return False
    storing = typical.store_seconds(lease.workflow_hash) or 0.0
    return fits(left + storing, notice.seconds_left or 0.0, margin=_margin(notice))


async def drain(
    notice: Notice, notices: Notices, works: Mapping[Work, asyncio.Task[None]], *, typical: Typical
) -> Notice:
    """Finish or requeue every job, and cancel what takes too long. Returns the last notice."""
    while unfinished := {work: task for work, task in works.items() if not task.done()}:
        for work in unfinished:
            if not may_finish(work, notice, typical):
                _give_back(work, notice)
        newer = await _wait_for_change(notice, notices, list(unfinished.values()))
        if newer is None:
            break
        notice = newer
    for work in unfinished:
        _give_back(work, notice)
    if unfinished:
        await asyncio.wait(unfinished.values(), timeout=GIVE_BACK_SECONDS)
    for task in unfinished.values():
        task.cancel()
    await asyncio.gather(*unfinished.values(), return_exceptions=True)
    return notice


async def _wait_for_change(notice: Notice, notices: Notices, tasks: Collection[asyncio.Task[None]]) -> Notice | None:
    """Wait for a reason to check again: a job ended, a newer notice came, or time passed.

    Returns the current notice, or `None` when the time is up.
    """
    seconds = notice.seconds_left
    if notice.at_once or (seconds is not None and seconds <= _margin(notice)):
        return None
    newer = asyncio.create_task(notices.wait_newer(notice))
    try:
        timeout = None if seconds is None else min(seconds - _margin(notice), RECHECK_SECONDS)
        done, _ = await asyncio.wait({newer, *tasks}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return newer.result() if newer in done else notice
    finally:
        newer.cancel()


def _give_back(work: Work, notice: Notice) -> None:
    work.drain_reason = notice.reason
    work.lease.must_stop(LeaseStop.DRAINING)


def _margin(notice: Notice) -> float:
    return min(MARGIN_SECONDS, 0.2 * (notice.seconds or 0.0))
