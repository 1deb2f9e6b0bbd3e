"""Drain a worker: finish jobs that can end within the notice period, and requeue the others."""

import asyncio
from collections.abc import Collection, Mapping

from comfyrelay.protocol.progress import BEFORE_RUN, Phase
from comfyrelay.worker.estimate import TypicalDurations, fits, seconds_left
from comfyrelay.worker.host.shutdown_notices import Notice, Notices
from comfyrelay.worker.jobs.job import JobRunner
from comfyrelay.worker.lease import LeaseStop

# Reserved at the end of the notice period for requeueing and deregistering.
MARGIN_SECONDS = 15.0
# The estimate is repeated, because progress counts nodes and the last node may be the slowest.
RECHECK_SECONDS = 2.0
# Requeueing takes one or two calls. After this time, the leases are left to expire.
REQUEUE_SECONDS = 8.0


def may_finish(runner: JobRunner, notice: Notice, durations: TypicalDurations) -> bool:
    """Whether a job may continue after a notice. A job that has not started loses nothing if it is requeued."""
    lease = runner.lease
    if notice.at_once or lease.phase in BEFORE_RUN:
        return False
    if notice.seconds is None or lease.phase is not Phase.RUNNING:
        return True
    left = seconds_left(
        elapsed=runner.running_seconds, progress=lease.progress, typical=durations.run_seconds(lease.workflow_hash)
    )
    if left is None:
        return False
    upload_seconds = durations.upload_seconds(lease.workflow_hash) or 0.0
    return fits(left + upload_seconds, notice.seconds_left or 0.0, margin=_margin(notice))


async def drain(
    notice: Notice, notices: Notices, runners: Mapping[JobRunner, asyncio.Task[None]], durations: TypicalDurations
) -> Notice:
    """Finish or requeue every job, and cancel jobs that take too long. Returns the last notice."""
    while unfinished := {runner: task for runner, task in runners.items() if not task.done()}:
        for runner in unfinished:
            if not may_finish(runner, notice, durations):
                _requeue(runner, notice)
        newer = await _wait_for_change(notice, notices, list(unfinished.values()))
        if newer is None:
            break
        notice = newer
    for runner in unfinished:
        _requeue(runner, notice)
    if unfinished:
        await asyncio.wait(unfinished.values(), timeout=REQUEUE_SECONDS)
    for task in unfinished.values():
        task.cancel()
    await asyncio.gather(*unfinished.values(), return_exceptions=True)
    return notice


async def _wait_for_change(notice: Notice, notices: Notices, tasks: Collection[asyncio.Task[None]]) -> Notice | None:
    """Wait until a job ends, a newer notice arrives or the next check is due. Returns the current notice, or `None`
    when the time is up."""
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


def _requeue(runner: JobRunner, notice: Notice) -> None:
    runner.drain_reason = notice.reason
    runner.lease.request_stop(LeaseStop.DRAINING)


def _margin(notice: Notice) -> float:
    return min(MARGIN_SECONDS, 0.2 * (notice.seconds or 0.0))
