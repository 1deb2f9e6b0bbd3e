"""Observe all fleets of a stage for a decision: queue, machines and limits."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

import structlog

from comfyrelay.domain.autoscaling import baseline, learning
from comfyrelay.domain.autoscaling.observation import (
    MachineState,
    ObservedFleet,
    ObservedMachine,
    QueuedWork,
    StageSnapshot,
)
from comfyrelay.domain.autoscaling.spec import LAST_IDLE_SECONDS, InstanceType, Policy, ScalingSpec
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.services.autoscaling.durations import Predictions
from comfyrelay.services.autoscaling.fleet_observation import (
    FleetRows,
    WorkerLimits,
    group_by_field,
    observe_fleet,
    read_rows,
    seconds_since,
)
from comfyrelay.services.databases import Databases
from comfyrelay.store.central.autoscaling import observations
from comfyrelay.store.database import Tx

log = structlog.get_logger(__name__)

ARRIVALS_BATCH_SIZE = 5000
# Ids are assigned before the commit, so this many of the last ids are read again.
LATE_IDS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class StageObservation:
    """A snapshot of a stage, and the records of its fleets by slug."""

    snapshot: StageSnapshot
    fleets: Mapping[str, FleetRecord]


@dataclass(slots=True)
class _Arrivals:
    """The newest arrivals of a stage. `count` is the number of all arrivals."""

    newest: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=ARRIVALS_BATCH_SIZE))
    count: int = 0

    def add(self, at: datetime, workflow: int) -> None:
        self.newest.append((at, workflow))
        self.count += 1

    def after(self, count: int) -> Sequence[tuple[datetime, int]]:
        return list(islice(self.newest, max(0, len(self.newest) - (self.count - count)), None))


@dataclass(slots=True)
class _FleetArrivals:
    """The combined arrivals of a fleet's workflows."""

    workflows: frozenset[int]
    rate: learning.Rate = field(default_factory=learning.Rate)
    regularity: learning.Regularity = field(default_factory=learning.Regularity)
    following: learning.FollowingJobs = field(default_factory=learning.FollowingJobs)
    counted: int = 0


@dataclass(slots=True)
class _Memory:
    """State outside the database, such as arrival rates and idle times of fleets."""

    rates: dict[tuple[str, int], learning.Rate] = field(default_factory=lambda: defaultdict(learning.Rate))
    arrivals: dict[str, _Arrivals] = field(default_factory=lambda: defaultdict(_Arrivals))
    of_fleets: dict[int, _FleetArrivals] = field(default_factory=dict)
    idle_gaps: dict[int, learning.IdleGaps] = field(default_factory=lambda: defaultdict(learning.IdleGaps))
    last_id: int | None = None
    counted: set[int] = field(default_factory=set)
    idle_since: dict[int, datetime] = field(default_factory=dict)
    alarms: dict[int, baseline.Alarms] = field(default_factory=lambda: defaultdict(baseline.Alarms))


class Observations:
    def __init__(self, databases: Databases, *, offline_seconds: float, worker_limits: WorkerLimits) -> None:
        self._databases = databases
        self._offline_seconds = offline_seconds
        self._worker_limits = worker_limits
        self._memory = _Memory()
        self._counting = asyncio.Lock()

    async def fleets(self) -> list[FleetRecord]:
        async with self._databases.central.read() as tx:
            return await observations.all_fleets(tx)

    async def take(
        self,
        stage: str,
        *,
        can_launch: Callable[[FleetRecord], bool] = lambda _fleet: True,
        types_of: Callable[[FleetRecord], Sequence[InstanceType]] = lambda fleet: fleet.machine_spec.instance_types,
    ) -> StageObservation:
        """Observe a stage. `types_of` returns the instance types of a fleet with current prices.

        Reads take no locks, so a job that moves in the meantime may count twice until the next observation.
        """
        async with self._databases.central.read() as tx:
            fleets = [fleet for fleet in await observations.all_fleets(tx) if fleet.stage == stage]
            rows = await self._read(tx, stage, fleets)
            # The loop and the API observe concurrently, but each arrival must count once.
            async with self._counting:
                await self._count_arrivals(tx)
        found = [self._observe_or_pause(fleet, rows, can_launch=can_launch, types_of=types_of) for fleet in fleets]
        return StageObservation(
            snapshot=StageSnapshot(now=rows.now, work=self._work(stage, rows), fleets=found),
            fleets={fleet.slug: fleet for fleet in fleets},
        )

    async def _read(self, tx: Tx, stage: str, fleets: Sequence[FleetRecord]) -> FleetRows:
        workflows = await observations.workflows_of(tx, [fleet.id for fleet in fleets])
        all_workflows = {workflow_id for found in workflows.values() for workflow_id in found}
        rows = await read_rows(
            tx,
            fleets,
            workflows=workflows,
            predictions=await Predictions.read(tx, all_workflows),
            offline_seconds=self._offline_seconds,
            worker_limits=self._worker_limits,
        )
        waiting = await observations.waiting(tx, stage, all_workflows, down_shards=self._databases.down())
        return replace(rows, waiting=waiting)

    async def _count_arrivals(self, tx: Tx) -> None:
        memory = self._memory
        while True:
            after = None if memory.last_id is None else max(0, memory.last_id - LATE_IDS)
            found = await observations.arrivals(tx, after=after, limit=ARRIVALS_BATCH_SIZE)
            for job in found:
                if job.id not in memory.counted:
                    memory.rates[job.stage, job.workflow_id].add(job.created_at)
                    memory.arrivals[job.stage].add(job.created_at, job.workflow_id)
            memory.last_id = last = max(memory.last_id or 0, found[-1].id if found else 0)
            # Keep the ids of earlier reads, because an older transaction may see fewer jobs.
            counted = memory.counted | {job.id for job in found}
            memory.counted = {id_ for id_ in counted if id_ > last - LATE_IDS}
            if after is None or len(found) < ARRIVALS_BATCH_SIZE:
                return

    def _work(self, stage: str, rows: FleetRows) -> list[QueuedWork]:
        waiting = group_by_field(rows.waiting, "workflow_id")
        found = []
        for workflow in sorted({workflow_id for ids in rows.workflows.values() for workflow_id in ids}):
            queued = waiting.get(workflow, ())
            rate = self._memory.rates[stage, workflow]
            # Correct the rate by the arrivals of the whole fleet: a single workflow among many is too rare for a rate.
            shared = [arrivals for arrivals in self._memory.of_fleets.values() if workflow in arrivals.workflows]
            factor = max((arrivals.rate.correction(rows.now) for arrivals in shared), default=1.0)
            jobs = sum(row.jobs for row in queued)
            seconds = sum(row.jobs * rows.predictions.seconds(workflow, row.effect_id) for row in queued)
            found.append(
                QueuedWork(
                    workflow=workflow,
                    jobs=jobs,
                    seconds=seconds,
                    seconds_per_job=seconds / jobs if jobs else rows.predictions.seconds(workflow),
                    jobs_per_second=rate.at(rows.now) * factor,
                    arrivals_seconds=max((arrivals.rate.observed_seconds() for arrivals in shared), default=0.0),
                    one_arrival=learning.ONE_ARRIVAL * factor,
                )
            )
        return found

    def _observe_or_pause(
        self,
        fleet: FleetRecord,
        rows: FleetRows,
        *,
        can_launch: Callable[[FleetRecord], bool],
        types_of: Callable[[FleetRecord], Sequence[InstanceType]],
    ) -> ObservedFleet:
        try:
            return self._fleet(fleet, rows, can_launch=can_launch(fleet), types=types_of(fleet))
        except Exception as error:
            # An unreadable fleet must not affect other fleets.
            log.exception("autoscaling.fleet_unreadable", fleet=fleet.slug, stage=fleet.stage)
            why = f"{type(error).__name__}: {error}"
            workflows = frozenset(rows.workflows.get(fleet.id, ()))
            return ObservedFleet(
                slug=fleet.slug, workflows=workflows, scaling=ScalingSpec(is_paused=True, unreadable=why)
            )

    def _fleet(
        self, fleet: FleetRecord, rows: FleetRows, *, can_launch: bool, types: Sequence[InstanceType]
    ) -> ObservedFleet:
        found = observe_fleet(fleet, rows, types=types)
        alarms = self._alarms(fleet, rows, found.machines)
        arrivals = self._arrivals(fleet, found.workflows, found.boot_seconds)
        idle_seconds = self._idle_seconds(fleet, rows, found.machines)
        gaps = self._memory.idle_gaps[fleet.id]
        gaps.observe(rows.now.timestamp(), is_busy=idle_seconds is None)
        return replace(
            found,
            following_jobs=arrivals.following.jobs(),
            variation=arrivals.regularity.variation(),
            idle_gaps=gaps.newest(),
            can_launch=can_launch,
            idle_seconds=idle_seconds,
            alarm=None if alarms is None else alarms.alarm(rows.now.timestamp()),
            low_seconds=None if alarms is None else alarms.low_seconds(rows.now.timestamp()),
        )

    def _alarms(self, fleet: FleetRecord, rows: FleetRows, found: Sequence[ObservedMachine]) -> baseline.Alarms | None:
        """Update the alarms of the `reference` policy."""
        if fleet.scaling_spec.policy is not Policy.REFERENCE:
            return None
        workflows = rows.workflows.get(fleet.id, set())
        depth = sum(row.jobs for row in rows.waiting if row.workflow_id in workflows)
        alarms = self._memory.alarms[fleet.id]
        alarms.publish(
            rows.now.timestamp(),
            depth=depth + sum(machine.leases for machine in found),
            workers=sum(machine.state in (MachineState.READY, MachineState.BUSY) for machine in found),
        )
        return alarms

    def _arrivals(self, fleet: FleetRecord, workflows: frozenset[int], boot_seconds: float) -> _FleetArrivals:
        """Count the new arrivals for a fleet."""
        known = self._memory.of_fleets.get(fleet.id)
        if known is None or known.workflows != workflows:
            known = self._memory.of_fleets[fleet.id] = _FleetArrivals(workflows)
        silence = fleet.scaling_spec.last_idle_seconds
        arrivals = self._memory.arrivals[fleet.stage]
        for at, workflow in arrivals.after(known.counted):
            if workflow in workflows:
                known.rate.add(at)
                known.regularity.add(at)
                known.following.add(
                    at,
                    boot_seconds=boot_seconds,
                    silence_seconds=LAST_IDLE_SECONDS if silence is None else silence,
                )
        known.counted = arrivals.count
        return known

    def _idle_seconds(self, fleet: FleetRecord, rows: FleetRows, found: Sequence[ObservedMachine]) -> float | None:
        workflows = rows.workflows.get(fleet.id, set())
        is_wanted = any(row.workflow_id in workflows for row in rows.waiting)
        if is_wanted or any(machine.leases for machine in found):
            self._memory.idle_since[fleet.id] = rows.now
            return None
        # A new process does not know when the last job ended, so use the idle times of the machines.
        known = [machine.idle_seconds for machine in found if machine.state is MachineState.READY]
        if (since := self._memory.idle_since.get(fleet.id)) is not None:
            known.append(seconds_since(since, rows.now))
        else:
            self._memory.idle_since[fleet.id] = rows.now
        return min(known, default=0.0)
