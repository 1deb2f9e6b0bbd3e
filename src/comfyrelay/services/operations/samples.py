"""Sample the load once a minute, and keep the samples for eight days.

Each process counts jobs in memory, and adds its counts to the current minute every few seconds. One process per minute
reads the current load. The cost does not depend on the number of past jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.settlement import JobState
from comfyrelay.domain.queue.states import JobStatus, Provider
from comfyrelay.domain.records.operations import ActivityCounts, IntervalAggregate, LoadSample, WaitingGroup
from comfyrelay.services.databases import Databases
from comfyrelay.services.timed_cache import TimedCache
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import samples
from comfyrelay.store.central.autoscaling import bursts, cursors, observations
from comfyrelay.store.central.queue import missing_requirements
from comfyrelay.store.central.workers import fleets
from comfyrelay.store.central.workers.workers import serves
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


# By range: its minutes, and the minutes per interval.
MINUTES = {Range.HOUR: (60, 1), Range.DAY: (24 * 60, 10), Range.WEEK: (7 * 24 * 60, 60)}


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentLoad:
    standing: LoadSample
    hour: ActivityCounts
    # The number of waiting jobs that only offline workers can run.
    waiting_offline: int
    # The number of queued jobs that no worker can run, online or not.
    unrunnable: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Aggregates by interval, oldest first. An interval without data is `None`."""

    at: Sequence[datetime]
    times: Sequence[IntervalAggregate | None]


class Samples:
    def __init__(self, databases: Databases, *, worker_offline_seconds: float) -> None:
        self._databases = databases
        self._offline_seconds = worker_offline_seconds
        self._counted = NO_ACTIVITY
        self._cache = TimedCache(self._read_now)

    def count_begun(self, leased: Sequence[Dispatch]) -> None:
        """Count leased jobs and their waiting time."""
        waited = sum((job.leased_at - job.available_at).total_seconds() for job in leased if job.leased_at)
        self._count(ActivityCounts(begun=len(leased), waited_seconds=max(0.0, waited)))

    def count_ended(self, ended: Sequence[JobState]) -> None:
        """Count finished jobs, in the process that applied their end."""
        done = [job for job in ended if job.status == JobStatus.COMPLETED]
        failed = sum(job.status == JobStatus.FAILED for job in ended)
        self._count(ActivityCounts(done=len(done), failed=failed, tokens=sum(job.charged_tokens or 0 for job in ended)))

    def _count(self, more: ActivityCounts) -> None:
        self._counted = self._counted.plus(more)

    async def run_once(self) -> None:
        """Store the counts of this process, and the current load if no process has stored it in this minute."""
        counted, self._counted = self._counted, NO_ACTIVITY

        async def work(tx: Tx) -> None:
            minute = _minute(await tx.now())
            if counted != NO_ACTIVITY:
                await samples.add(tx, minute, counted)
            if await samples.has_load(tx, minute) or await cursors.lock(tx, TURN) >= minute:
                return
            await cursors.move(tx, TURN, minute)
            load, _waiting_offline, _unrunnable = await self._load(tx)
            await samples.record_load(tx, minute, load)

        try:
            await self._databases.central.run(TransactionStep.MINUTE, work)
        except BaseException:
            self._count(counted)
            raise

    async def delete_old(self) -> None:
        async def work(tx: Tx) -> None:
            await samples.delete_old(tx, _minute(await tx.now()) - KEPT_MINUTES)

        await self._databases.central.run(TransactionStep.RETENTION_REMOVE, work)

    async def now(self) -> CurrentLoad:
        """Return the current load and the counts of the last hour."""
        return await self._cache.get(seconds=CACHE_SECONDS)

    async def _read_now(self) -> CurrentLoad:
        async with self._databases.central.read() as tx:
            minute = _minute(await tx.now())
            standing, waiting_offline, unrunnable = await self._load(tx)
            hour = await samples.total(tx, minute - HOUR_MINUTES + 1)
        return CurrentLoad(
            standing=standing,
            hour=hour.plus(self._counted),
            waiting_offline=waiting_offline,
            unrunnable=unrunnable,
        )

    async def _load(self, tx: Tx) -> tuple[LoadSample, int, int]:
        """Return the load, the number of waiting jobs that only offline workers can run, and the number of queued jobs
        that no worker can run. The last ones do not count as waiting, because they need an operator."""
        queued = await samples.waiting_jobs(tx)
        online = await self._runnable(tx, queued, offline_seconds=self._offline_seconds)
        known = set(online)
        others = [group for group in queued if group not in known]
        offline = await self._runnable(tx, others, offline_seconds=None)
        runnable, now = [*online, *offline], await tx.now()
        workers, slots = await samples.online_slots(tx, offline_seconds=self._offline_seconds)
        oldest = min((group.oldest_at for group in runnable), default=now)
        load = LoadSample(
            waiting=_jobs(runnable),
            oldest_wait_seconds=max(0.0, (now - oldest).total_seconds()),
            busy=await samples.busy_slots(tx),
            slots=slots,
            workers=workers,
        )
        return load, _jobs(offline), _jobs(queued) - load.waiting

    async def _runnable(
        self, tx: Tx, waiting: Sequence[WaitingGroup], *, offline_seconds: float | None
    ) -> list[WaitingGroup]:
        """Return the jobs that a worker or a machine of an autoscaled fleet can run. Without `offline_seconds`, the
        worker may be offline."""
        if not waiting:
            return []
        scaled = {
            fleet.id: fleet
            for fleet in await observations.all_fleets(tx)
            if fleet.machine_spec.provider != MachineProviderName.STATIC
        }
        launched = {
            (scaled[fleet_id].stage, workflow_id)
            for fleet_id, mapped in (await fleets.workflows_of(tx, list(scaled))).items()
            for workflow_id in mapped
        }
        able = {
            stage: await bursts.serving(tx, stage=stage, offline_seconds=offline_seconds)
            for stage in {group.stage for group in waiting}
        }
        ids = [worker.worker_id for found in able.values() for worker in found]
        unmet = await missing_requirements.pairs_of(tx, ids)

        def is_runnable(group: WaitingGroup) -> bool:
            return (group.stage, group.workflow_id) in launched or any(
                group.workflow_id in worker.workflow_ids
                and serves(worker.providers, Provider(group.provider))
                and (worker.worker_id, group.workflow_hash) not in unmet
                for worker in able[group.stage]
            )

        return [group for group in waiting if is_runnable(group)]

    async def series(self, range_: Range) -> Series:
        """Return all intervals of a range up to now."""
        minutes, interval = MINUTES[range_]
        async with self._databases.central.read() as tx:
            last = _minute(await tx.now()) // interval
            first = last - minutes // interval + 1
            aggregates = await samples.aggregates_since(tx, first * interval, minutes=interval)
        found = {aggregate.number: aggregate for aggregate in aggregates}
        numbers = range(first, last + 1)
        return Series(
            at=[datetime.fromtimestamp(number * interval * 60, UTC) for number in numbers],
            times=[found.get(number) for number in numbers],
        )


def _jobs(groups: Sequence[WaitingGroup]) -> int:
    return sum(group.jobs for group in groups)


def _minute(at: datetime) -> int:
    return int(at.timestamp() // 60)
