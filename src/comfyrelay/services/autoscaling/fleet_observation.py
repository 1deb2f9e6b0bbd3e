"""Observe one fleet: its machines, workers and limits."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from comfyrelay.domain.autoscaling import learning
from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineProviderName
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.services.autoscaling.durations import Predictions, RunningJob
from comfyrelay.store.central.autoscaling import machines, observations
from comfyrelay.store.central.autoscaling.observations import ObservedLease, ObservedWorker, WaitingWork
from comfyrelay.store.central.workers import workers
from comfyrelay.store.central.workers.workers import serves
from comfyrelay.store.database import Tx

T = TypeVar("T")

# Boot times and refusals are learned from this many of a fleet's newest orders.
NEWEST_ORDERS = 200
MAX_NEWEST_ORDERS = 2000
# Prefix of the ids of machines that were not ordered here.
_FOREIGN = "worker:"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """The maximum number of workers in a fleet that has no limit of its own, and in all fleets.

    Workers may register in the default fleet before it has a workflow.
    """

    of_fleet: int | None = None
    of_all: int | None = None
    default_fleet: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRows:
    """Database rows of the fleets of a stage."""

    now: datetime
    waiting: Sequence[WaitingWork] = ()
    workers: Mapping[int, Sequence[ObservedWorker]]
    leases: Mapping[str, Sequence[ObservedLease]]
    machines: Mapping[int, Sequence[MachineRecord]]
    newest: Mapping[int, Sequence[MachineRecord]]
    workflows: Mapping[int, set[int]]
    predictions: Predictions
    # The number of workers in all stages, if it is limited.
    all_workers: int = 0
    worker_limits: WorkerLimits = field(default_factory=WorkerLimits)


async def read_rows(
    tx: Tx,
    fleets: Sequence[FleetRecord],
    *,
    workflows: Mapping[int, set[int]],
    predictions: Predictions,
    offline_seconds: float,
    worker_limits: WorkerLimits,
) -> FleetRows:
    """Read the rows of fleets, without their queue. The jobs that they run count in the predictions."""
    ids = [fleet.id for fleet in fleets]
    rows = FleetRows(
        now=await tx.now(),
        workers=group_by_field(await observations.workers_of(tx, ids, offline_seconds=offline_seconds), "fleet_id"),
        leases=group_by_field(await observations.leases_of(tx, ids), "worker_id"),
        machines=group_by_field(await machines.present(tx, ids), "fleet_id"),
        newest={fleet.id: await machines.newest(tx, fleet.id, limit=_newest_orders(fleet)) for fleet in fleets},
        workflows=workflows,
        predictions=predictions,
        all_workers=(
            await workers.count_of_fleets(tx, offline_seconds=offline_seconds)
            if worker_limits.of_all is not None
            else 0
        ),
        worker_limits=worker_limits,
    )
    return replace(rows, predictions=predictions.while_running(_running_jobs(fleets, rows)))


def _running_jobs(fleets: Sequence[FleetRecord], rows: FleetRows) -> Iterator[RunningJob]:
    for fleet in fleets:
        speeds = {instance_type.name: instance_type.speed for instance_type in fleet.machine_spec.instance_types}
        types = {worker.worker_id: worker.instance_type for worker in rows.workers.get(fleet.id, ())}
        types |= {machine.worker: machine.instance_type for machine in rows.machines.get(fleet.id, ())}
        for worker_id, instance_type in types.items():
            speed = speeds.get(instance_type or "", 1.0)
            for lease in rows.leases.get(worker_id, ()):
                seconds = seconds_since(lease.leased_at, rows.now) * speed
                yield RunningJob(lease.workflow_id, lease.effect_id, seconds)


def _newest_orders(fleet: FleetRecord) -> int:
    """Return the number of orders to read: enough for the failed rounds after which launching pauses."""
    limits = fleet.scaling_spec.limits
    return max(NEWEST_ORDERS, min(MAX_NEWEST_ORDERS, (limits.failed_boots + 1) * limits.max_machines))


def observe_fleet(
    fleet: FleetRecord,
    rows: FleetRows,
    *,
    types: Sequence[InstanceType] | None = None,
    providers: Sequence[Provider] = (Provider.SELF_HOSTED,),
) -> ObservedFleet:
    """Observe a fleet, without its idle time. Foreign workers count if they serve one of these providers."""
    spec, newest = fleet.machine_spec, rows.newest[fleet.id]
    types = types if types is not None else spec.instance_types
    boot_seconds = learning.boot_seconds(newest, spec)
    available = learning.available_types(types, newest, rows.now, since=fleet.launches_reset_at)
    failed = learning.failed_launches(newest, rows.now, since=fleet.launches_reset_at)
    worker_limits, ordered = rows.worker_limits, rows.machines.get(fleet.id, ())
    found = _MachineObserver(fleet, rows, boot_seconds=boot_seconds, types=types).observe(providers)
    registered = {worker.worker_id for worker in rows.workers.get(fleet.id, ()) if not worker.is_offline}
    booting_elsewhere = sum(
        machine.registered_at is None
        for id_, fleet_machines in rows.machines.items()
        if id_ != fleet.id
        for machine in fleet_machines
    )
    return ObservedFleet(
        slug=fleet.slug,
        workflows=frozenset(rows.workflows.get(fleet.id, ())),
        scaling=fleet.scaling_spec,
        machines=found,
        can_register=bool(rows.workflows.get(fleet.id)) or (fleet.stage, fleet.slug) == worker_limits.default_fleet,
        max_workers=worker_limits.of_fleet if fleet.max_workers is None else fleet.max_workers,
        max_workers_of_all_fleets=worker_limits.of_all,
        workers_without_machine=len(registered - by_worker(found, ordered).keys()),
        workers_elsewhere=max(0, rows.all_workers - len(registered)) + booting_elsewhere,
        instance_types=available.types,
        all_types_refused=available.all_types_refused,
        refusal=available.refusal,
        slots=spec.slots,
        boot_seconds=boot_seconds,
        is_scaled_externally=spec.provider == MachineProviderName.KUBERNETES,
        launches_ago=learning.launches_ago(newest, rows.now),
        failed_boots=failed.rounds,
        failed_boot_seconds_ago=None if failed.last_at is None else learning.seconds_ago(failed.last_at, rows.now),
    )


def by_worker(found: Sequence[ObservedMachine], ordered: Sequence[MachineRecord]) -> dict[str, ObservedMachine]:
    """Return the machines of a fleet by the ids of their workers."""
    workers = {machine.key: machine.worker for machine in ordered}
    return {workers.get(machine.id) or machine.id.removeprefix(_FOREIGN): machine for machine in found}


class _MachineObserver:
    """Observes the machines of one fleet: ordered machines, and machines of foreign workers."""

    def __init__(
        self, fleet: FleetRecord, rows: FleetRows, *, boot_seconds: float, types: Sequence[InstanceType]
    ) -> None:
        self._spec = fleet.machine_spec
        self._rows = rows
        self._boot_seconds = boot_seconds
        self._types = {instance_type.name: instance_type for instance_type in types}
        self._machines = rows.machines.get(fleet.id, ())
        self._workers = {worker.worker_id: worker for worker in rows.workers.get(fleet.id, ())}

    def observe(self, providers: Sequence[Provider]) -> list[ObservedMachine]:
        own = {machine.worker for machine in self._machines}
        foreign = [
            worker
            for worker in self._workers.values()
            if not worker.is_offline
            and worker.worker_id not in own
            and any(serves(worker.providers, provider) for provider in providers)
        ]
        observe = self._observe_pod if self._spec.provider == MachineProviderName.KUBERNETES else self._observe_foreign
        return [*map(self._observe_ordered, self._machines), *map(observe, foreign)]

    def _observe_ordered(self, machine: MachineRecord) -> ObservedMachine:
        worker = self._workers.get(machine.worker)
        kind = self._types.get(machine.instance_type or "")
        age = seconds_since(machine.ordered_at, self._rows.now)
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

    def _observe_foreign(self, worker: ObservedWorker) -> ObservedMachine:
        """Observe a machine that was not ordered here. Its idle time is 0, so that it is never terminated."""
        kind = self._types.get(worker.instance_type or "")
        speed = kind.speed if kind else 1.0
        return self._observe_unordered(worker, f"{_FOREIGN}{worker.worker_id}", speed=speed, is_foreign=True)

    def _observe_unordered(
        self, worker: ObservedWorker, id_: str, *, speed: float, is_foreign: bool = False
    ) -> ObservedMachine:
        leases = self._leases(worker)
        return ObservedMachine(
            id=id_,
            state=_working(leases) if worker.is_approved and not worker.is_draining else MachineState.DRAINING,
            instance_type=worker.instance_type,
            speed=speed,
            slots=worker.max_concurrency,
            leases=len(leases),
            busy_seconds_left=self._busy_seconds_left(worker, speed),
            age_seconds=seconds_since(worker.created_at, self._rows.now),
            is_foreign=is_foreign,
        )

    def _observe_pod(self, worker: ObservedWorker) -> ObservedMachine:
        """Observe a pod, which has the name of its worker and the price of its type or of the fleet's first type.

        Pods are not ordered here, and end when the cluster scales in.
        """
        kind = self._types.get(worker.instance_type or "") or next(iter(self._types.values()), None)
        found = self._observe_unordered(worker, worker.worker_id, speed=kind.speed if kind else 1.0)
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
        if worker.is_offline or worker.is_draining or not worker.is_approved:
            return MachineState.DRAINING
        return _working(self._leases(worker))

    def _leases(self, worker: ObservedWorker | None) -> Sequence[ObservedLease]:
        return self._rows.leases.get(worker.worker_id, ()) if worker else ()

    def _idle(self, worker: ObservedWorker | None) -> float:
        return seconds_since(worker.last_at or worker.created_at, self._rows.now) if worker else 0.0

    def _busy_seconds_left(self, worker: ObservedWorker | None, speed: float) -> float:
        leases = self._leases(worker)
        if worker is None or not leases:
            return 0.0
        left = 0.0
        for lease in leases:
            expected = self._rows.predictions.seconds(lease.workflow_id, lease.effect_id) / speed
            left += learning.run_seconds_left(expected, seconds_since(lease.leased_at, self._rows.now))
        return left / min(len(leases), worker.max_concurrency)


def _working(leases: Sequence[ObservedLease]) -> MachineState:
    return MachineState.BUSY if leases else MachineState.READY


def seconds_since(then: datetime, now: datetime) -> float:
    return max(0.0, (now - then).total_seconds())


def group_by_field(rows: Sequence[T], name: str) -> dict[Any, list[T]]:
    found: dict[Any, list[T]] = defaultdict(list)
    for row in rows:
        found[getattr(row, name)].append(row)
    return dict(found)
