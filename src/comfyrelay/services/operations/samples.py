"""Load samples, one per minute, kept for eight days.

Each process counts events in memory and adds them to the current minute every few seconds. One process per minute reads
the current load. Neither gets slower with the number of past jobs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.operations import ActivityCounts, IntervalAggregate, LoadSample
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import samples
from comfyrelay.store.central.autoscaling import cursors
from comfyrelay.store.database import Tx

KEPT_MINUTES = 8 * 24 * 60
HOUR_MINUTES = 60
NO_ACTIVITY = ActivityCounts()
CACHE_SECONDS = 2.0
TURN = "samples"


class Range(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


# Minutes per range, and minutes per interval.
MINUTES = {Range.HOUR: (60, 1), Range.DAY: (24 * 60, 10), Range.WEEK: (7 * 24 * 60, 60)}


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentLoad:
    standing: LoadSample
    hour: ActivityCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Aggregates by interval, oldest first; `None` for intervals without data."""

    at: Sequence[datetime]
    times: Sequence[IntervalAggregate | None]


class Samples:
    def __init__(self, databases: Databases, *, worker_stale_seconds: float) -> None:
        self._databases = databases
        self._stale_seconds = worker_stale_seconds
        self._counted = NO_ACTIVITY
        self._cached: tuple[float, asyncio.Future[CurrentLoad]] | None = None

    def count_begun(self, leased: Sequence[Dispatch]) -> None:
        """Count leased jobs and their wait."""
        waited = sum((each.leased_at - each.available_at).total_seconds() for each in leased if each.leased_at)
        self._count(ActivityCounts(begun=len(leased), waited_seconds=max(0.0, waited)))

    def count_ended(self, ended: Sequence[JobState]) -> None:
        """Count finished jobs. Only the process that applied the end counts it."""
        done = [each for each in ended if each.status == JobStatus.COMPLETED]
        failed = sum(each.status == JobStatus.FAILED for each in ended)
        self._count(ActivityCounts(done=len(done), failed=failed, tokens=sum(each.reserved_tokens for each in done)))

    def _count(self, more: ActivityCounts) -> None:
        self._counted = self._counted.plus(more)

    async def run_once(self) -> None:
        """Store this process's counts since the last run, and the load if no process has in this minute."""
        counted, self._counted = self._counted, NO_ACTIVITY

        async def work(tx: Tx) -> None:
            minute = _minute(await tx.now())
            if counted != NO_ACTIVITY:
                await samples.add(tx, minute, counted)
            if await samples.is_noted(tx, minute) or await cursors.lock(tx, TURN) >= minute:
                return
            await cursors.move(tx, TURN, minute)
            await samples.note(tx, minute, await samples.standing(tx, stale_seconds=self._stale_seconds))

        try:
            await self._databases.central.run(TransactionStep.MINUTE, work)
        except BaseException:
            self._count(counted)
            raise

    async def delete_old(self) -> None:
        async def work(tx: Tx) -> None:
            await samples.forget(tx, _minute(await tx.now()) - KEPT_MINUTES)

        await self._databases.central.run(TransactionStep.RETENTION_REMOVE, work)

    async def now(self) -> CurrentLoad:
        """The current load and the counts of the last hour, cached for two seconds."""
        clock = asyncio.get_running_loop().time()
        if self._cached is None or self._cached[0] <= clock:
            self._cached = (clock + CACHE_SECONDS, asyncio.ensure_future(self._now()))
        return await asyncio.shield(self._cached[1])

    async def _now(self) -> CurrentLoad:
        async with self._databases.central.read() as tx:
            minute = _minute(await tx.now())
            standing = await samples.standing(tx, stale_seconds=self._stale_seconds)
            hour = await samples.total(tx, minute - HOUR_MINUTES + 1)
        return CurrentLoad(standing=standing, hour=hour.plus(self._counted))

    async def series(self, range_: Range) -> Series:
        """All intervals of a range up to now."""
        minutes, together = MINUTES[range_]
        async with self._databases.central.read() as tx:
            last = _minute(await tx.now()) // together
            first = last - minutes // together + 1
            found = {each.number: each for each in await samples.since(tx, first * together, minutes=together)}
        numbers = range(first, last + 1)
        return Series(
            at=[datetime.fromtimestamp(number * together * 60, UTC) for number in numbers],
            times=[found.get(number) for number in numbers],
        )


def _minute(at: datetime) -> int:
    return int(at.timestamp() // 60)
