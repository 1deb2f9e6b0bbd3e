"""The lifecycle of machines: intended, ordered, observed, ended. Each step is recorded before it is taken."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.autoscaling import learning
from comfyrelay.domain.autoscaling.decision_records import reason_class
from comfyrelay.domain.autoscaling.machines import MachineEndReason, MachineRecord, ProviderMachine
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.reconcile import Reconciled, RegisteredWorker, current_price, reconcile
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.services.autoscaling.fleet_observation import NEWEST_ORDERS
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decided
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.workers.workers import Workers
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import decisions, machines, observations
from comfyrelay.store.database import Tx

MAX_DECISIONS = 10_000
# Number of decisions between two deletions of old decisions.
_SWEEP_INTERVAL = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """A recorded intent: machines to order, machines to terminate, and machines that are too busy to terminate."""

    ordered: Sequence[MachineRecord] = ()
    ending: Sequence[MachineRecord] = ()
    busy: Sequence[str] = ()
    decision_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowUp:
    """Machines to terminate and to order after reconciling a fleet."""

    end: Sequence[MachineRecord] = ()
    order: Sequence[MachineRecord] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmedIntent:
    """The part of an intent that is still valid, and the current fleet."""

    fleet: FleetRecord
    machines: Sequence[MachineRecord] = ()
    # Machines that are not ending, including new orders.
    total: int = 0


class Machines:
    def __init__(
        self, databases: Databases, leadership: Leadership, workers: Workers, *, offline_seconds: float
    ) -> None:
        self._databases = databases
        self._leadership = leadership
        self._workers = workers
        self._offline_seconds = offline_seconds
        # By fleet and machine: the time since which the worker has been absent.
        self._absent_since: dict[int, dict[str, datetime]] = {}
        # By fleet and machine: the time since which the provider has not listed the machine.
        self._missing_since: dict[int, dict[str, datetime]] = {}

    async def reconcile(
        self, fleet: FleetRecord, listed: Sequence[ProviderMachine] | None, *, types: Sequence[InstanceType] = ()
    ) -> FollowUp:
        """Record the state of a fleet's machines, and mark useless machines for termination.

        `types` has the current prices.
        """
        prices = _prices(types)
        async with self._databases.central.read() as tx:
            # The fleet may have been paused during the call to the provider.
            fleet = await catalogue.fleet(tx, stage=Stage(fleet.stage), slug=fleet.slug) or fleet
            present = await machines.present(tx, [fleet.id])
            newest = await machines.newest(tx, fleet.id, limit=NEWEST_ORDERS)
            registered = await self._read_registered(tx, fleet)
            now = await tx.now()
        absent_since = self._note_absent(fleet, present, registered, now)
        if listed is not None:
            listed = [_clamp_launch_time(machine, now) for machine in listed]
        missing_since = self._missing_since.get(fleet.id, {})
        found = reconcile(
            present,
            listed,
            registered,
            absent_since=absent_since,
            missing_since=missing_since,
            boot_seconds=learning.boot_seconds(newest, fleet.machine_spec),
            now=now,
            prices=prices,
        ).allowed(fleet.scaling_spec)
        if listed is not None:
            self._missing_since[fleet.id] = {key: missing_since.get(key, now) for key in found.missing}
        busy: set[str] = set()
        # Only the leader may repeat terminations.
        if found.changes or found.adopt or found.surplus or found.end or found.order_again or found.end_again:
            busy, lost = await self._leadership.run(
                TransactionStep.SCALE_SEEN, lambda tx: self._write(tx, fleet, present, found, prices)
            )
            for decided in lost:
                await self._workers.announce_lost(decided)
        async with self._databases.central.read() as tx:
            after = {machine.key: machine for machine in await machines.present(tx, [fleet.id])}
        marked = [after[key] for key in (*found.end, *found.end_again) if key in after and key not in busy]
        return FollowUp(
            end=[machine for machine in marked if machine.ending_at is not None],
            order=[after[key] for key in found.order_again if key in after],
        )

    async def intend(
        self, fleet: FleetRecord, plan: FleetPlan, *, reason: str, saw: Mapping[str, Any], types: Sequence[InstanceType]
    ) -> Intent:
        """Record a decision, and its intent unless it is a dry run."""
        prices = _prices(types)

        async def work(tx: Tx) -> Intent:
            ordered: list[MachineRecord] = []
            ending: list[MachineRecord] = []
            busy: list[str] = []
            if not plan.is_report:
                rows = [
                    {
                        "key": new_key(),
                        "fleet_id": fleet.id,
                        "instance_type": launch.instance_type,
                        "price_per_hour": prices.get(launch.instance_type or ""),
                    }
                    for launch in plan.launch
                    for _ in range(launch.count)
                ]
                if plan.end:
                    await _hold_registrations(tx, fleet)
                ordered = await machines.order(tx, rows)
                present = {machine.key: machine for machine in await machines.present(tx, [fleet.id])}
                for key in plan.end:
                    if key in present and await self._mark(tx, present[key], str(MachineEndReason.UNNEEDED)):
                        ending.append(present[key])
                    elif key in present:
                        busy.append(key)
            id_ = await _record(tx, fleet, plan, reason=reason, saw=saw, outcome={"busy": busy} if busy else {})
            return Intent(ordered=ordered, ending=ending, busy=busy, decision_id=id_)

        return await self._leadership.run(TransactionStep.SCALE_INTENT, work)

    async def record_decision(
        self, fleet: FleetRecord, plan: FleetPlan, *, saw: Mapping[str, Any], requested: int
    ) -> None:
        """Record the number of pods that a cluster should have, if it has changed. This needs no leadership, because
        all processes compute the same number."""

        async def work(tx: Tx) -> None:
            last = await decisions.latest(tx, fleet.id)
            if (
                last is None
                or (last.desired, last.outcome.get("requested")) != (plan.desired, requested)
                or reason_class(last.reason) != reason_class(plan.reason)
            ):
                await _record(tx, fleet, plan, reason=plan.reason, saw=saw, outcome={"requested": requested})

        await self._databases.central.run(TransactionStep.SCALE_OUTCOME, work)

    async def confirm_intent(self, fleet: FleetRecord, keys: Sequence[str], *, is_end: bool) -> ConfirmedIntent:
        """Check an intent right before the provider is called: the fleet may have been paused or reduced. Raises
        `LeadershipLost`."""

        async def work(tx: Tx) -> ConfirmedIntent:
            current = await catalogue.fleet(tx, stage=fleet.stage, slug=fleet.slug)
            # A pause does not stop terminations that have begun.
            if current is None or (current.scaling_spec.is_paused and not is_end):
                return ConfirmedIntent(fleet=current or fleet)
            present = {machine.key: machine for machine in await machines.present(tx, [current.id])}
            total = sum(machine.ending_at is None for machine in present.values())
            wanted = [present[key] for key in keys if key in present]
            if is_end:
                ending = [machine for machine in wanted if machine.ending_at is not None]
                return ConfirmedIntent(fleet=current, machines=ending, total=total)
            spec = current.scaling_spec
            open_ = [] if spec.is_dry_run else [machine for machine in wanted if machine.ending_at is None]
            surplus = min(len(open_), max(0, total - spec.limits.max_machines))
            return ConfirmedIntent(fleet=current, machines=open_[: len(open_) - surplus], total=total - surplus)

        return await self._leadership.run(TransactionStep.SCALE_INTENT, work)

    async def note_launched(
        self,
        wanted: Sequence[MachineRecord],
        launched: Mapping[str, ProviderMachine],
        refused: Mapping[str, tuple[str, str]],
        *,
        types: Sequence[InstanceType] = (),
    ) -> None:
        """Record the results of orders by key: launched machines, and refusals with kind and text."""
        orders, prices = {order.key: order for order in wanted}, _prices(types)

        async def work(tx: Tx) -> None:
            now = await tx.now()
            for key, reported in launched.items():
                machine = _clamp_launch_time(reported, now)
                values: dict[str, Any] = {
                    "provider_id": machine.id,
                    "worker_id": machine.worker_id or machine.id,
                    "launched_at": machine.launched_at or ...,
                    "price_per_hour": current_price(orders[key], machine, prices),
                }
                if machine.instance_type is not None:
                    values["instance_type"] = machine.instance_type
                await machines.change(tx, key, **values)
            for key, (kind, text) in refused.items():
                await machines.change(tx, key, ended_at=..., reason=learning.refusal_reason(kind, text))

        if launched or refused:
            await self._leadership.run(TransactionStep.SCALE_OUTCOME, work)

    async def note_outcome(self, decision_id: int, outcome: Mapping[str, Any]) -> None:
        await self._leadership.run(
            TransactionStep.SCALE_OUTCOME, lambda tx: decisions.note_outcome(tx, decision_id, outcome)
        )

    async def present(self, fleet: FleetRecord) -> list[MachineRecord]:
        async with self._databases.central.read() as tx:
            return await machines.present(tx, [fleet.id])

    async def _write(
        self,
        tx: Tx,
        fleet: FleetRecord,
        present: Sequence[MachineRecord],
        found: Reconciled,
        prices: Mapping[str, float],
    ) -> tuple[set[str], Sequence[Decided]]:
        """Record the changes, and mark machines for termination.

        Returns the keys of busy machines, and the ended leases of lost machines.
        """
        await _hold_registrations(tx, fleet)
        for key, values in found.changes.items():
            await machines.change(tx, key, **values)
        surplus = {"ending_at": ..., "reason": f"{MachineEndReason.SURPLUS}: its order has another machine"}
        adopted = [_adopted_values(machine, prices) for machine in found.adopt]
        await machines.adopt(
            tx, fleet.id, adopted + [_adopted_values(machine, prices) | surplus for machine in found.surplus]
        )
        by_key = {machine.key: machine for machine in present}
        gone = [by_key[key].worker for key, values in found.changes.items() if "ended_at" in values]
        lost = [await self._workers.remove_lost(tx, worker, fleet_id=fleet.id) for worker in gone]
        for key, why in found.end.items():
            await self._mark(tx, by_key[key], why)
        ending = {key: by_key[key].worker for key in found.end_again}
        busy = {key for key, worker in ending.items() if await self._workers.drain_in(tx, worker, fleet_id=fleet.id)}
        return busy, lost

    async def _mark(self, tx: Tx, machine: MachineRecord, why: str) -> bool:
        """Mark a machine as ending unless its worker has a job."""
        if not await self._workers.drain_if_idle(tx, machine.worker, fleet_id=machine.fleet_id):
            return False
        await machines.change(tx, machine.key, ending_at=..., reason=why)
        return True

    async def _read_registered(self, tx: Tx, fleet: FleetRecord) -> dict[str, RegisteredWorker]:
        leases = Counter(lease.worker_id for lease in await observations.leases_of(tx, [fleet.id]))
        return {
            worker.worker_id: RegisteredWorker(
                registered_at=worker.created_at,
                last_seen_at=worker.last_seen_at,
                is_offline=worker.is_offline,
                closed="is not approved" if not worker.is_approved else "was drained" if worker.is_draining else None,
                last_at=worker.last_at,
                leases=leases[worker.worker_id],
            )
            for worker in await observations.workers_of(tx, [fleet.id], offline_seconds=self._offline_seconds)
        }

    def _note_absent(
        self,
        fleet: FleetRecord,
        present: Sequence[MachineRecord],
        registered: Mapping[str, RegisteredWorker],
        now: datetime,
    ) -> Mapping[str, datetime]:
        before = self._absent_since.get(fleet.id, {})
        self._absent_since[fleet.id] = {
            machine.key: before.get(machine.key, now)
            for machine in present
            if machine.registered_at is not None and machine.worker not in registered
        }
        return self._absent_since[fleet.id]


async def _hold_registrations(tx: Tx, fleet: FleetRecord) -> None:
    """Lock the fleet, as registrations do: a worker either exists when its machine is marked, or sees the mark."""
    await catalogue.fleet(tx, stage=fleet.stage, slug=fleet.slug, lock=True)


def new_key() -> str:
    """Return a short key that is valid in the names of every provider."""
    return f"m{secrets.token_hex(8)}"


def _clamp_launch_time(machine: ProviderMachine, now: datetime) -> ProviderMachine:
    """Replace a launch time in the future, with which the machine would never age."""
    is_future = machine.launched_at is not None and machine.launched_at > now
    return replace(machine, launched_at=now) if is_future else machine


def _prices(types: Sequence[InstanceType]) -> dict[str, float]:
    return {instance_type.name: instance_type.price_per_hour for instance_type in types}


def _adopted_values(machine: ProviderMachine, prices: Mapping[str, float]) -> dict[str, Any]:
    launched_at, price = machine.launched_at or ..., machine.price_per_hour
    return {
        "key": machine.key or machine.id,
        "provider_id": machine.id,
        "worker_id": machine.worker_id or machine.id,
        "instance_type": machine.instance_type,
        "price_per_hour": prices.get(machine.instance_type or "") if price is None else price,
        "ordered_at": launched_at,
        "launched_at": launched_at,
        "ending_at": None,
        "reason": None,
    }


async def _record(
    tx: Tx, fleet: FleetRecord, plan: FleetPlan, *, reason: str, saw: Mapping[str, Any], outcome: Mapping[str, Any]
) -> int:
    id_ = await decisions.record(
        tx,
        fleet_id=fleet.id,
        policy=str(fleet.scaling_spec.policy),
        desired=plan.desired,
        launch=[{"count": launch.count, "instance_type": launch.instance_type} for launch in plan.launch],
        end=list(plan.end),
        outcome=dict(outcome),
        reason=reason,
        seen=dict(saw),
    )
    if id_ % _SWEEP_INTERVAL == 0:
        await decisions.forget_old(tx, fleet.id, keep=MAX_DECISIONS)
    return id_
