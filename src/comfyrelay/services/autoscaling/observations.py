"""Read the observation for a decision: queue, machines and limits of all fleets of a stage."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import structlog

from comfyrelay.domain.autoscaling import baseline, learning
from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.autoscaling.observation import (
    MachineState,
    ObservedFleet,
    ObservedMachine,
    QueuedWork,
    StageSnapshot,
)
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineProviderName, Policy, ScalingSpec
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.services.autoscaling.durations import Predictions
from comfyrelay.services.databases import Databases
from comfyrelay.store.central.autoscaling import machines, observations
from comfyrelay.store.central.autoscaling.observations import ObservedLease, ObservedWorker, WaitingWork
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.central.workers import workers
from comfyrelay.store.central.workers.workers import serves
from comfyrelay.store.database import Tx

T = TypeVar("T")

log = structlog.get_logger(__name__)

# Newest orders of a fleet that count for its launches.
NEWEST_ORDERS = 200
ARRIVALS_AT_ONCE = 5000
# Ids are assigned before commit, so the last ones are read again.
LATE_IDS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSeen:
    """An observation and its rows."""

    stage: str
    snapshot: StageSnapshot
    fleets: Mapping[str, FleetRecord]
    # by fleet id
    machines: Mapping[int, Sequence[MachineRecord]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """How many workers may register in a fleet without its own limit, and in all fleets.

    In the default fleet they may register before it has a workflow.
    """

    of_fleet: int | None = None
    of_all: int | None = None
    default_fleet: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of the fleets of a stage."""

    now: datetime
    waiting: Sequence[WaitingWork] = ()
    workers: Mapping[int, Sequence[ObservedWorker]]
    leases: Mapping[str, Sequence[ObservedLease]]
    machines: Mapping[int, Sequence[MachineRecord]]
    newest: Mapping[int, Sequence[MachineRecord]]
    workflows: Mapping[int, set[int]]
    predictions: Predictions
    # of all stages, if limited
    all_workers: int = 0
    places: WorkerLimits = field(default_factory=WorkerLimits)


@dataclass(slots=True)
class _Arrivals:
    """Newest arrivals of a stage; `count` is the total so far."""

    newest: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=ARRIVALS_AT_ONCE))
    count: int = 0

    def add(self, at: datetime, workflow: int) -> None:
        self.newest.append((at, workflow))
        self.count += 1

    def after(self, count: int) -> Sequence[tuple[datetime, int]]:
        return list(islice(self.newest, max(0, len(self.newest) - (self.count - count)), None))


@dataclass(slots=True)
class _Bursts:
    """What a fleet has learnt about first arrivals of these workflows."""

    workflows: frozenset[int]
    following: learning.FollowingJobs = field(default_factory=learning.FollowingJobs)
    counted: int = 0


@dataclass(slots=True)
class _Memory:
    """State outside the database: arrival rates, and since when fleets are idle."""

    rates: learning.Rates = field(default_factory=learning.Rates)
    arrivals: dict[str, _Arrivals] = field(default_factory=lambda: defaultdict(_Arrivals))
    bursts: dict[int, _Bursts] = field(default_factory=dict)
    last_id: int | None = None
    counted: set[int] = field(default_factory=set)
    idle_since: dict[int, datetime] = field(default_factory=dict)
    alarms: dict[int, baseline.Alarms] = field(default_factory=lambda: defaultdict(baseline.Alarms))


class Observations:
    def __init__(self, databases: Databases, *, stale_seconds: float, places: WorkerLimits) -> None:
        self._databases = databases
        self._stale_seconds = stale_seconds
        self._places = places
        self._memory = _Memory()
        self._counting = asyncio.Lock()

    async def fleets(self) -> list[FleetRecord]:
        async with self._databases.central.read() as tx:
            return await observations.fleets_of(tx)

    async def take(
        self,
        stage: str,
        *,
        can_launch: Callable[[FleetRecord], bool] = lambda _fleet: True,
        types_of: Callable[[FleetRecord], Sequence[InstanceType]] = lambda fleet: fleet.machine_spec.instance_types,
    ) -> StageSeen:
        """Read an observation. `types_of` returns current prices of a fleet's instance types, if known.

        Reads take no locks: a job that moves meanwhile may count twice, until the next observation.
        """
        async with self._databases.central.read() as tx:
            fleets = [each for each in await observations.fleets_of(tx) if each.stage == stage]
            rows = await self._read(tx, stage, fleets)
            # the loop, the API and pages all observe: each arrival is counted once
            async with self._counting:
                await self._count_arrivals(tx)
        return StageSeen(
            stage=stage,
            snapshot=StageSnapshot(
                now=rows.now,
                work=self._work(stage, rows),
                fleets=[self._fleet_or_why(each, rows, can_launch=can_launch, types_of=types_of) for each in fleets],
            ),
            fleets={each.slug: each for each in fleets},
            machines=rows.machines,
        )

    async def _read(self, tx: Tx, stage: str, fleets: Sequence[FleetRecord]) -> Rows:
        ids = [fleet.id for fleet in fleets]
        workflows = await observations.workflows_of(tx, ids)
        all_workflows = {workflow_id for found in workflows.values() for workflow_id in found}
        return Rows(
            now=await dispatches.now(tx),
            waiting=await observations.waiting(tx, stage, all_workflows, down_shards=self._databases.down()),
            workers=by_field(await observations.workers_of(tx, ids, stale_seconds=self._stale_seconds), "fleet_id"),
            leases=by_field(await observations.leases_of(tx, ids), "worker_id"),
            machines=by_field(await machines.present(tx, ids), "fleet_id"),
            newest={id_: await machines.newest(tx, id_, most=NEWEST_ORDERS) for id_ in ids},
            workflows=workflows,
            predictions=await Predictions.read(tx, all_workflows),
            all_workers=await workers.count_of_fleets(tx) if self._places.of_all is not None else 0,
            places=self._places,
        )

    async def _count_arrivals(self, tx: Tx) -> None:
        memory = self._memory
        while True:
            after = None if memory.last_id is None else max(0, memory.last_id - LATE_IDS)
            found = await observations.arrivals(tx, after=after, most=ARRIVALS_AT_ONCE)
            for each in found:
                if each.id not in memory.counted:
                    memory.rates.add(each.stage, each.workflow_id, each.created_at)
                    memory.arrivals[each.stage].add(each.created_at, each.workflow_id)
            is_first, newest = after is None, found[-1].id if found else 0
            is_end = is_first or len(found) < ARRIVALS_AT_ONCE
            memory.last_id = last = max(memory.last_id or 0, newest)
            # an older read may see less than a newer one: its counts stay
            counted = memory.counted | {each.id for each in found}
            memory.counted = {each for each in counted if each > last - LATE_IDS}
            if is_end:
                return

    def _work(self, stage: str, rows: Rows) -> list[QueuedWork]:
        waiting = by_field(rows.waiting, "workflow_id")
        found = []
        for workflow in sorted({workflow_id for ids in rows.workflows.values() for workflow_id in ids}):
            its = waiting.get(workflow, ())
            rate = self._memory.rates.of(stage, workflow)
            jobs = sum(row.jobs for row in its)
            seconds = sum(row.jobs * rows.predictions.seconds(workflow, row.effect_id) for row in its)
            found.append(
                QueuedWork(
                    workflow=workflow,
                    jobs=jobs,
                    seconds=seconds,
                    seconds_per_job=seconds / jobs if jobs else rows.predictions.seconds(workflow),
                    jobs_per_second=rate.at(rows.now),
                    arrivals_seconds=rate.observed_seconds(),
                )
            )
        return found

    def _fleet_or_why(
        self,
        fleet: FleetRecord,
        rows: Rows,
        *,
        can_launch: Callable[[FleetRecord], bool],
        types_of: Callable[[FleetRecord], Sequence[InstanceType]],
    ) -> ObservedFleet:
        try:
            return self._fleet(fleet, rows, can_launch=can_launch(fleet), types=types_of(fleet))
        except Exception as error:
            # an unreadable fleet affects no other
            log.exception("scaling.fleet_unreadable", fleet=fleet.slug, stage=fleet.stage)
            why = f"{type(error).__name__}: {error}"
            workflows = frozenset(rows.workflows.get(fleet.id, ()))
            return ObservedFleet(
                slug=fleet.slug, workflows=workflows, scaling=ScalingSpec(is_paused=True, unreadable=why)
            )

    def _fleet(
        self, fleet: FleetRecord, rows: Rows, *, can_launch: bool, types: Sequence[InstanceType]
    ) -> ObservedFleet:
        found = seen_fleet(fleet, rows, types=types)
        alarms = self._alarms(fleet, rows, found.machines)
        return replace(
            found,
            following_jobs=self._following_jobs(fleet, found.workflows, found.boot_seconds),
            can_launch=can_launch,
            idle_seconds=self._idle_seconds(fleet, rows, found.machines),
            alarm=None if alarms is None else alarms.alarm(rows.now.timestamp()),
            low_seconds=None if alarms is None else alarms.low_seconds(rows.now.timestamp()),
        )

    def _alarms(self, fleet: FleetRecord, rows: Rows, found: Sequence[ObservedMachine]) -> baseline.Alarms | None:
        """For the `reference` policy only."""
        if fleet.scaling_spec.policy is not Policy.REFERENCE:
            return None
        workflows = rows.workflows.get(fleet.id, set())
        depth = sum(each.jobs for each in rows.waiting if each.workflow_id in workflows)
        alarms = self._memory.alarms[fleet.id]
        alarms.publish(
            rows.now.timestamp(),
            depth=depth + sum(each.leases for each in found),
            workers=sum(each.state in (MachineState.READY, MachineState.BUSY) for each in found),
        )
        return alarms

    def _following_jobs(self, fleet: FleetRecord, workflows: frozenset[int], boot_seconds: float) -> float:
        bursts = self._memory.bursts.get(fleet.id)
        if bursts is None or bursts.workflows != workflows:
            bursts = self._memory.bursts[fleet.id] = _Bursts(workflows)
        arrivals = self._memory.arrivals[fleet.stage]
        for at, workflow in arrivals.after(bursts.counted):
            if workflow in workflows:
                silence = fleet.scaling_spec.last_idle_seconds
                bursts.following.add(at, boot_seconds=boot_seconds, silence_seconds=silence)
        bursts.counted = arrivals.count
        return bursts.following.jobs()

    def _idle_seconds(self, fleet: FleetRecord, rows: Rows, found: Sequence[ObservedMachine]) -> float | None:
        workflows = rows.workflows.get(fleet.id, set())
        is_wanted = any(each.workflow_id in workflows for each in rows.waiting)
        if is_wanted or any(each.leases for each in found):
            self._memory.idle_since[fleet.id] = rows.now
            return None
        # A new process does not know when the last job was; the machines do.
        since = self._memory.idle_since.get(fleet.id)
        known = [each.idle_seconds for each in found if each.state is MachineState.READY]
        if since is not None:
            known.append(_since(since, rows.now))
        else:
            self._memory.idle_since[fleet.id] = rows.now
        return min(known, default=0.0)


def seen_fleet(
    fleet: FleetRecord,
    rows: Rows,
    *,
    types: Sequence[InstanceType] | None = None,
    providers: Sequence[Provider] = (Provider.SELF_HOSTED,),
) -> ObservedFleet:
    """A fleet as stored, without its idle time. Foreign workers count if they serve one of these providers."""
    spec, newest = fleet.machine_spec, rows.newest[fleet.id]
    types = types if types is not None else spec.instance_types
    boot = learning.boot_seconds(newest, spec)
    available = learning.available_types(types, newest, rows.now)
    failed = learning.failed_boots(newest, rows.now)
    places, ordered = rows.places, rows.machines.get(fleet.id, ())
    found = _ObservedFleet(fleet, rows, boot_seconds=boot, types={type_.name: type_ for type_ in types}).machines(
        providers
    )
    registered = {each.worker_id for each in rows.workers.get(fleet.id, ())}
    booting = sum(
        machine.registered_at is None for id_, its in rows.machines.items() if id_ != fleet.id for machine in its
    )
    return ObservedFleet(
        slug=fleet.slug,
        workflows=frozenset(rows.workflows.get(fleet.id, ())),
        scaling=fleet.scaling_spec,
        machines=found,
        can_register=bool(rows.workflows.get(fleet.id)) or (fleet.stage, fleet.slug) == places.default_fleet,
        max_workers=places.of_fleet if fleet.max_workers is None else fleet.max_workers,
        max_workers_of_all_fleets=places.of_all,
        workers_without_machine=len(registered - by_worker(found, ordered).keys()),
        workers_elsewhere=max(0, rows.all_workers - len(registered)) + booting,
        instance_types=available.types,
        all_types_refused=available.all_types_refused,
        refusal=available.refusal,
        slots=spec.slots,
        boot_seconds=boot,
        is_scaled_externally=spec.provider is MachineProviderName.KUBERNETES,
        launches_ago=learning.launches_ago(newest, rows.now),
        failed_boots=len(failed),
        failed_boot_seconds_ago=min(
            (learning.seconds_ago(at, rows.now) for each in failed if (at := each.ending_at or each.ended_at)),
            default=None,
        ),
    )


def by_worker(found: Sequence[ObservedMachine], ordered: Sequence[MachineRecord]) -> dict[str, ObservedMachine]:
    """Machines of a fleet by the ids of their workers."""
    workers, prefix = {each.key: each.worker for each in ordered}, foreign_id("")
    return {workers.get(each.id) or each.id.removeprefix(prefix): each for each in found}


class _ObservedFleet:
    """The machines of one fleet: ordered ones and foreign workers."""

    def __init__(
        self, fleet: FleetRecord, rows: Rows, *, boot_seconds: float, types: Mapping[str, InstanceType]
    ) -> None:
        self._spec = fleet.machine_spec
        self._rows = rows
        self._boot_seconds = boot_seconds
        self._types = types
        self._machines = rows.machines.get(fleet.id, ())
        self._workers = {each.worker_id: each for each in rows.workers.get(fleet.id, ())}
        # cached: queried for each lease, mostly for the same few
        self._expected = cache(rows.predictions.seconds)

    def machines(self, providers: Sequence[Provider]) -> list[ObservedMachine]:
        own = {machine.worker for machine in self._machines}
        foreign = [
            worker
            for worker in self._workers.values()
            # a worker for the cloud only takes none of this work
            if not worker.is_stale and worker.worker_id not in own and _serves_any(worker, providers)
        ]
        ordered = [self._ordered(machine) for machine in self._machines]
        if self._spec.provider is MachineProviderName.KUBERNETES:
            return [*ordered, *(self._in_cluster(each) for each in foreign)]
        return [*ordered, *(self._foreign(each) for each in foreign)]

    def _ordered(self, machine: MachineRecord) -> ObservedMachine:
        worker = self._workers.get(machine.worker)
        kind = self._types.get(machine.instance_type or "")
        age = _since(machine.ordered_at, self._rows.now)
        state = self._state(machine, worker)
        price = machine.price_per_hour if machine.price_per_hour is not None else kind.price_per_hour if kind else 0.0
        return ObservedMachine(
            id=machine.key,
            state=state,
            instance_type=machine.instance_type,
            price_per_hour=price,
            speed=kind.speed if kind else 1.0,
            slots=worker.max_concurrency if worker else self._spec.slots,
            leases=len(self._leases(worker)),
            boot_seconds_left=learning.seconds_left(self._boot_seconds, age) if state is MachineState.BOOTING else 0.0,
            idle_seconds=self._idle(worker) if state is MachineState.READY else 0.0,
            busy_seconds_left=self._busy_seconds_left(worker, kind.speed if kind else 1.0),
            age_seconds=age,
        )

    def _foreign(self, worker: ObservedWorker) -> ObservedMachine:
        """Capacity that is not ours to terminate: never idle for long."""
        kind = self._types.get(worker.instance_type or "")
        speed = kind.speed if kind else 1.0
        return self._unordered(worker, foreign_id(worker.worker_id), speed=speed, is_foreign=True)

    def _unordered(
        self, worker: ObservedWorker, id_: str, *, speed: float, is_foreign: bool = False
    ) -> ObservedMachine:
        takes = worker.is_approved and not worker.is_draining
        leases = self._rows.leases.get(worker.worker_id, ())
        return ObservedMachine(
            id=id_,
            state=_working(len(leases)) if takes else MachineState.DRAINING,
            instance_type=worker.instance_type,
            speed=speed,
            slots=worker.max_concurrency,
            leases=len(leases),
            busy_seconds_left=self._busy_seconds_left(worker, speed) if leases else 0.0,
            age_seconds=_since(worker.created_at, self._rows.now),
            is_foreign=is_foreign,
        )

    def _in_cluster(self, worker: ObservedWorker) -> ObservedMachine:
        """A pod, named like its worker.

        It was not ordered here and ends when the cluster scales in. It is billed as the fleet's first type unless it
        names another.
        """
        kind = self._types.get(worker.instance_type or "") or next(iter(self._types.values()), None)
        found = self._unordered(worker, worker.worker_id, speed=kind.speed if kind else 1.0)
        return replace(
            found,
            price_per_hour=kind.price_per_hour if kind else 0.0,
            idle_seconds=self._idle(worker) if found.state is MachineState.READY else 0.0,
        )

    def _state(self, machine: MachineRecord, worker: ObservedWorker | None) -> MachineState:
        if machine.ending_at is not None:
            return MachineState.DRAINING
        if worker is None:
            return MachineState.BOOTING if machine.registered_at is None else MachineState.DRAINING
        if worker.is_stale or worker.is_draining or not worker.is_approved:
            return MachineState.DRAINING
        return _working(len(self._leases(worker)))

    def _leases(self, worker: ObservedWorker | None) -> Sequence[ObservedLease]:
        return self._rows.leases.get(worker.worker_id, ()) if worker else ()

    def _idle(self, worker: ObservedWorker | None) -> float:
        return _since(worker.last_at or worker.created_at, self._rows.now) if worker else 0.0

    def _busy_seconds_left(self, worker: ObservedWorker | None, speed: float) -> float:
        leases = self._leases(worker)
        if worker is None or not leases:
            return 0.0
        left = 0.0
        for lease in leases:
            expected = self._expected(lease.workflow_id, lease.effect_id) / speed
            left += learning.seconds_left(expected, _since(lease.leased_at, self._rows.now))
        return left / min(len(leases), worker.max_concurrency)


def _serves_any(worker: ObservedWorker, providers: Sequence[Provider]) -> bool:
    return any(serves(worker.providers, provider) for provider in providers)


def foreign_id(worker_id: str) -> str:
    """Id of a machine that is not managed here."""
    return f"worker:{worker_id}"


def _working(leases: int) -> MachineState:
    return MachineState.BUSY if leases else MachineState.READY


def _since(then: datetime, now: datetime) -> float:
    return max(0.0, (now - then).total_seconds())


def by_field(rows: Sequence[T], name: str) -> dict[Any, list[T]]:
    found: dict[Any, list[T]] = defaultdict(list)
    for row in rows:
        found[getattr(row, name)].append(row)
    return dict(found)
