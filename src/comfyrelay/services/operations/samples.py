"""Samples: how the service was doing, one a minute, kept for eight days.

What happens is counted in memory where it happens, and added to its minute every few seconds by each process. How
things stand is looked at once a minute, by whichever process comes first. Nothing is searched for: neither costs more
the more jobs there have been."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.operations import ActivityCounts, LoadSample, IntervalAggregate
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import samples
from comfyrelay.store.central.autoscaling import cursors
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.database import Tx

KEPT_MINUTES = 8 * 24 * 60
HOUR_MINUTES = 60
NOBODY = ActivityCounts()
# However many look, it is read once in so many seconds.
REMEMBER_SECONDS = 2.0
TURN = "samples"


class Range(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


# Of each, how many minutes it has, and how many of them are told of together.
MINUTES = {Range.HOUR: (60, 1), Range.DAY: (24 * 60, 10), Range.WEEK: (7 * 24 * 60, 60)}


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentLoad:
    standing: LoadSample
    hour: ActivityCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """By stretches of time, oldest first; of some nothing is known."""

    at: Sequence[datetime]
    times: Sequence[IntervalAggregate | None]


class Samples:
    def __init__(self, databases: Databases, *, worker_stale_seconds: float) -> None:
        self._databases = databases
        self._stale_seconds = worker_stale_seconds
        self._counted = NOBODY
        self._asked: tuple[float, asyncio.Future[CurrentLoad]] | None = None

    def count_begun(self, leased: Sequence[Dispatch]) -> None:
        """Jobs were handed to workers."""
        waited = sum((each.leased_at - each.available_at).total_seconds() for each in leased if each.leased_at)
        self._count(ActivityCounts(begun=len(leased), waited_seconds=max(0.0, waited)))

    def count_ended(self, ended: Sequence[JobState]) -> None:
        """Jobs have ended: over all processes, each counts once."""
        done = [each for each in ended if each.status == JobStatus.COMPLETED]
        failed = sum(each.status == JobStatus.FAILED for each in ended)
        self._count(ActivityCounts(done=len(done), failed=failed, tokens=sum(each.reserved_tokens for each in done)))

    def _count(self, more: ActivityCounts) -> None:
        self._counted = self._counted.plus(more)

    async def run_once(self) -> None:
        """Add what was counted here since the last time, and look at how things stand if nobody has in this minute."""
        counted, self._counted = self._counted, NOBODY

        async def work(tx: Tx) -> None:
            minute = _minute(await dispatches.now(tx))
            if counted != NOBODY:
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

    async def forget_old(self) -> None:
        async def work(tx: Tx) -> None:
            await samples.forget(tx, _minute(await dispatches.now(tx)) - KEPT_MINUTES)

        await self._databases.central.run(TransactionStep.RETENTION_REMOVE, work)

    async def now(self) -> CurrentLoad:
        """How things stand, and what was counted in the last hour; a moment old at most."""
        clock = asyncio.get_running_loop().time()
        if self._asked is None or self._asked[0] <= clock:
            self._asked = (clock + REMEMBER_SECONDS, asyncio.ensure_future(self._now()))
        return await asyncio.shield(self._asked[1])

    async def _now(self) -> CurrentLoad:
        async with self._databases.central.read() as tx:
            minute = _minute(await dispatches.now(tx))
            standing = await samples.standing(tx, stale_seconds=self._stale_seconds)
            hour = await samples.total(tx, minute - HOUR_MINUTES + 1)
        return CurrentLoad(standing=standing, hour=hour.plus(self._counted))

    async def series(self, range_: Range) -> Series:
        """All stretches of a time up to now."""
        minutes, together = MINUTES[range_]
        async with self._databases.central.read() as tx:
            last = _minute(await dispatches.now(tx)) // together
            first = last - minutes // together + 1
            found = {each.number: each for each in await samples.since(tx, first * together, minutes=together)}
        numbers = range(first, last + 1)
        return Series(
            at=[datetime.fromtimestamp(number * together * 60, UTC) for number in numbers],
            times=[found.get(number) for number in numbers],
        )


def _minute(at: datetime) -> int:
    return int(at.timestamp() // 60)
