"""Machine lifecycle: intended, ordered, observed, ended. Each step is recorded before it happens."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.autoscaling import learning
from comfyrelay.domain.autoscaling.decision_records import reason_class
from comfyrelay.domain.autoscaling.machines import MachineEndReason, MachineRecord
from comfyrelay.domain.autoscaling.plan import FleetPlan
from comfyrelay.domain.autoscaling.reconcile import ProviderMachine, Reconciled, RegisteredWorker, price_of, reconcile
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.services.autoscaling.observations import NEWEST_ORDERS
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.services.workers.workers import Workers
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import decisions, machines, observations
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.database import Tx

DECISIONS_KEPT = 10_000
# Old decisions are deleted every this many decisions.
_SWEEP_EACH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """Recorded intents: machines to order, machines to terminate, and machines that turned out to be busy."""

    ordered: Sequence[MachineRecord] = ()
    ending: Sequence[MachineRecord] = ()
    busy: Sequence[str] = ()
    decision_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """What remains to be done after reconciling a fleet."""

    end: Sequence[MachineRecord] = ()
    order: Sequence[MachineRecord] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmedIntent:
    """The part of an intent that is still valid, and the fleet at that time."""

    fleet: FleetRecord
    machines: Sequence[MachineRecord] = ()
    # machines that are not ending, including new orders; draining ones still exist
    total: int = 0


class Machines:
    def __init__(self, databases: Databases, leadership: Leadership, workers: Workers, *, stale_seconds: float) -> None:
        self._databases = databases
        self._leadership = leadership
        self._workers = workers
        self._stale_seconds = stale_seconds
        # by fleet: since when the workers of its machines are away
        self._absent_since: dict[int, dict[str, datetime]] = {}
        # the same for machines that their provider does not list
        self._missing_since: dict[int, dict[str, datetime]] = {}

    async def reconcile(
        self, fleet: FleetRecord, sightings: Sequence[ProviderMachine] | None, *, types: Sequence[InstanceType] = ()
    ) -> Due:
        """Record what became of a fleet's machines, and mark useless ones for termination.

        `types` has current prices.
        """
        prices = _prices(types)
        async with self._databases.central.read() as tx:
            # a pause during the provider call counts
            fleet = await catalogue.fleet(tx, stage=Stage(fleet.stage), slug=fleet.slug) or fleet
            present = await machines.present(tx, [fleet.id])
            newest = await machines.newest(tx, fleet.id, most=NEWEST_ORDERS)
            registered = await self._registered(tx, fleet)
            now = await dispatches.now(tx)
        absent_since = self._note_absent(fleet, present, registered, now)
        if sightings is not None:
            sightings = [_not_ahead(sighting, now) for sighting in sightings]
        missing_since = self._missing_since.get(fleet.id, {})
        found = reconcile(
            present,
            sightings,
            registered,
            absent_since=absent_since,
            missing_since=missing_since,
            boot_seconds=learning.boot_seconds(newest, fleet.machine_spec),
            now=now,
            prices=prices,
        ).allowed(fleet.scaling_spec)
        if sightings is not None:
            self._missing_since[fleet.id] = {key: missing_since.get(key, now) for key in found.missing}
        busy: set[str] = set()
        # repeated terminations are up to the present leader
        if found.changes or found.adopt or found.surplus or found.end or found.order_again or found.end_again:
            busy = await self._leadership.run(
                TransactionStep.SCALE_SEEN, lambda tx: self._write(tx, fleet, present, found, prices)
            )
        async with self._databases.central.read() as tx:
            after = {each.key: each for each in await machines.present(tx, [fleet.id])}
        marked = [after[key] for key in (*found.end, *found.end_again) if key in after and key not in busy]
        return Due(
            end=[each for each in marked if each.ending_at is not None],
            order=[after[key] for key in found.order_again if key in after],
        )

    async def intend(
        self, fleet: FleetRecord, plan: FleetPlan, *, reason: str, saw: Mapping[str, Any], types: Sequence[InstanceType]
    ) -> Intent:
        """Record a decision and its intents, unless it is a dry run."""
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
                present = {each.key: each for each in await machines.present(tx, [fleet.id])}
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
        """Record the number given to a cluster, if it changed. Needs no leadership: all scalers compute the same."""

        async def work(tx: Tx) -> None:
            last = await decisions.latest(tx, fleet.id)
            if (
                last is None
                or (last.desired, last.outcome.get("requested")) != (plan.desired, requested)
                or reason_class(last.reason) != reason_class(plan.reason)
            ):
                await _record(tx, fleet, plan, reason=plan.reason, saw=saw, outcome={"requested": requested})

        await self._databases.central.run(TransactionStep.SCALE_OUTCOME, work)

    async def standing(self, fleet: FleetRecord, keys: Sequence[str], *, is_end: bool) -> ConfirmedIntent:
        """Check an intent right before calling the provider:

        leadership may be lost, and the fleet paused or reduced.
        """

        async def work(tx: Tx) -> ConfirmedIntent:
            now = await catalogue.fleet(tx, stage=fleet.stage, slug=fleet.slug)
            # a started termination is finished even in a pause
            if now is None or (now.scaling_spec.is_paused and not is_end):
                return ConfirmedIntent(fleet=now or fleet)
            present = {each.key: each for each in await machines.present(tx, [now.id])}
            total = sum(each.ending_at is None for each in present.values())
            wanted = [present[key] for key in keys if key in present]
            if is_end:
                return ConfirmedIntent(
                    fleet=now, machines=[each for each in wanted if each.ending_at is not None], total=total
                )
            open_ = [] if now.scaling_spec.is_dry_run else [each for each in wanted if each.ending_at is None]
            beyond = min(len(open_), max(0, total - now.scaling_spec.limits.max_machines))
            return ConfirmedIntent(fleet=now, machines=open_[: len(open_) - beyond], total=total - beyond)

        return await self._leadership.run(TransactionStep.SCALE_INTENT, work)

    async def note_launched(
        self,
        wanted: Sequence[MachineRecord],
        launched: Mapping[str, ProviderMachine],
        refused: Mapping[str, tuple[str, str]],
        *,
        types: Sequence[InstanceType] = (),
    ) -> None:
        """Record results of orders by key: launched machines, and refusals with kind and text."""
        orders, prices = {each.key: each for each in wanted}, _prices(types)

        async def work(tx: Tx) -> None:
            now = await dispatches.now(tx)
            for key, told in launched.items():
                each = _not_ahead(told, now)
                values: dict[str, Any] = {
                    "provider_id": each.id,
                    "worker_id": each.worker_id or each.id,
                    "launched_at": each.launched_at or ...,
                    "price_per_hour": price_of(orders[key], each, prices),
                }
                if each.instance_type is not None:
                    values["instance_type"] = each.instance_type
                await machines.change(tx, key, **values)
            for key, (kind, text) in refused.items():
                await machines.change(tx, key, ended_at=..., reason=learning.refusal(kind, text))

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
    ) -> set[str]:
        """Mark machines for termination. Returns the busy ones."""
        await _hold_registrations(tx, fleet)
        for key, values in found.changes.items():
            await machines.change(tx, key, **values)
        surplus = {"ending_at": ..., "reason": f"{MachineEndReason.SURPLUS}: its order has another machine"}
        adopted = [_adopted(each, prices) for each in found.adopt]
        await machines.adopt(tx, fleet.id, adopted + [_adopted(each, prices) | surplus for each in found.surplus])
        by_key = {each.key: each for each in present}
        for key in (key for key, values in found.changes.items() if "ended_at" in values):
            await self._workers.drain_in(tx, by_key[key].worker, fleet_id=fleet.id)
        for key, why in found.end.items():
            await self._mark(tx, by_key[key], why)
        again = {key: by_key[key].worker for key in found.end_again}
        return {key for key, each in again.items() if await self._workers.drain_in(tx, each, fleet_id=fleet.id)}

    async def _mark(self, tx: Tx, machine: MachineRecord, why: str) -> bool:
        """Mark a machine as ending unless its worker has a job."""
        if not await self._workers.drain_if_idle(tx, machine.worker, fleet_id=machine.fleet_id):
            return False
        await machines.change(tx, machine.key, ending_at=..., reason=why)
        return True

    async def _registered(self, tx: Tx, fleet: FleetRecord) -> dict[str, RegisteredWorker]:
        held: dict[str, int] = {}
        for lease in await observations.leases_of(tx, [fleet.id]):
            held[lease.worker_id] = held.get(lease.worker_id, 0) + 1
        return {
            each.worker_id: RegisteredWorker(
                registered_at=each.created_at,
                last_seen_at=each.last_seen_at,
                is_stale=each.is_stale,
                closed="is not approved" if not each.is_approved else "was drained" if each.is_draining else None,
                last_at=each.last_at,
                leases=held.get(each.worker_id, 0),
            )
            for each in await observations.workers_of(tx, [fleet.id], stale_seconds=self._stale_seconds)
        }

    def _note_absent(
        self,
        fleet: FleetRecord,
        present: Sequence[MachineRecord],
        registered: Mapping[str, RegisteredWorker],
        now: datetime,
    ) -> Mapping[str, datetime]:
        before = self._absent_since.get(fleet.id, {})
        away = [each.key for each in present if each.registered_at is not None and each.worker not in registered]
        self._absent_since[fleet.id] = {key: before.get(key, now) for key in away}
        return self._absent_since[fleet.id]


async def _hold_registrations(tx: Tx, fleet: FleetRecord) -> None:
    """Registration locks the fleet, so a worker either exists when its machine is marked, or sees the mark."""
    await catalogue.fleet(tx, stage=fleet.stage, slug=fleet.slug, lock=True)


def new_key() -> str:
    """A short key that is valid in any provider's names."""
    return f"m{secrets.token_hex(8)}"


def _not_ahead(each: ProviderMachine, now: datetime) -> ProviderMachine:
    """Clamp a launch time in the future to now: otherwise the machine would never age."""
    return replace(each, launched_at=now) if each.launched_at is not None and each.launched_at > now else each


def _prices(types: Sequence[InstanceType]) -> dict[str, float]:
    return {type_.name: type_.price_per_hour for type_ in types}


def _adopted(each: ProviderMachine, prices: Mapping[str, float]) -> dict[str, Any]:
    launched_at = each.launched_at or ...
    return {
        "key": each.key or each.id,
        "provider_id": each.id,
        "worker_id": each.worker_id or each.id,
        "instance_type": each.instance_type,
        "price_per_hour": prices.get(each.instance_type or "") if each.price_per_hour is None else each.price_per_hour,
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
        launch=[{"count": each.count, "instance_type": each.instance_type} for each in plan.launch],
        end=list(plan.end),
        outcome=dict(outcome),
        reason=reason,
        seen=dict(saw),
    )
    if id_ % _SWEEP_EACH == 0:
        await decisions.forget_old(tx, fleet.id, keep=DECISIONS_KEPT)
    return id_
