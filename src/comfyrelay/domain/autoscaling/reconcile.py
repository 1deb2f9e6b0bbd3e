"""Reconcile ordered machines with their provider and their workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from comfyrelay.domain.autoscaling.machines import MachineEndReason, MachineRecord, ProviderMachine
from comfyrelay.domain.autoscaling.spec import ScalingSpec

# An unanswered order is repeated after this time, with the same key.
ORDER_AGAIN = timedelta(seconds=10)
# An unfinished termination is repeated after this time.
END_AGAIN = timedelta(seconds=10)
# Providers may list new machines late.
MAX_LISTING_DELAY = timedelta(seconds=60)
# A single answer without a machine may be incomplete.
MISSING_AFTER = timedelta(seconds=30)
# If its worker was seen within this time, a machine exists even if the provider does not list it. A poll may take long.
LAST_SEEN_WITHIN = timedelta(seconds=60)
# The worker of a machine may be absent for this long, because it may be restarting.
MAX_ABSENCE = timedelta(seconds=120)
# A worker that accepts no jobs and has had no job for this long is useless.
CLOSED_AFTER = timedelta(seconds=60)
BOOT_FACTOR = 3.0
BOOT_MARGIN = timedelta(seconds=120)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredWorker:
    """A worker of the fleet. `closed` says why it accepts no jobs; `last_at` is the time of its last activity."""

    registered_at: datetime
    last_seen_at: datetime
    is_offline: bool = False
    closed: str | None = None
    last_at: datetime | None = None
    leases: int = 0


@dataclass(kw_only=True, slots=True)
class Reconciled:
    """The result for a fleet. `changes` has changed columns by key; the value `...` means the current time."""

    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Machines without an order.
    adopt: list[ProviderMachine] = field(default_factory=list)
    # Additional machines of an order that already has a machine.
    surplus: list[ProviderMachine] = field(default_factory=list)
    # Keys of machines to terminate, with the reason.
    end: dict[str, str] = field(default_factory=dict)
    # Keys of machines whose termination is requested again.
    end_again: list[str] = field(default_factory=list)
    order_again: list[str] = field(default_factory=list)
    # Keys of machines that their provider does not list.
    missing: list[str] = field(default_factory=list)

    def change(self, key: str, **values: Any) -> None:
        self.changes.setdefault(key, {}).update(values)

    def allowed(self, scaling: ScalingSpec) -> "Reconciled":
        """Return the part that may be done.

        Changes are always recorded. A termination that started before a pause is finished, because the worker no longer
        accepts jobs.
        """
        if scaling.is_dry_run:
            return Reconciled(changes=self.changes, missing=self.missing)
        if scaling.is_paused:
            return Reconciled(changes=self.changes, missing=self.missing, end_again=self.end_again)
        return self


def reconcile(
    machines: Sequence[MachineRecord],
    listed: Sequence[ProviderMachine] | None,
    workers: Mapping[str, RegisteredWorker],
    *,
    absent_since: Mapping[str, datetime],
    missing_since: Mapping[str, datetime],
    boot_seconds: float,
    now: datetime,
    prices: Mapping[str, float],
) -> Reconciled:
    """Reconcile one fleet with the machines that its provider lists.

    If `listed` is `None`, the provider failed, and its machines count as unchanged. `absent_since` has the times since
    which workers of machines have been absent; `missing_since`, since which the provider has not listed machines.
    """
    result = Reconciled()
    matched = _match(machines, listed or ())
    max_boot = timedelta(seconds=BOOT_FACTOR * boot_seconds) + BOOT_MARGIN
    for machine in machines:
        found = matched.get(machine.key)
        if found is not None:
            _note_found(result, machine, found, prices)
        worker = workers.get(machine.worker) or (workers.get(found.worker) if found else None)
        if worker is not None and machine.registered_at is None:
            result.change(machine.key, registered_at=max(worker.registered_at, machine.ordered_at))
        is_missing = listed is not None and found is None
        if is_missing:
            result.missing.append(machine.key)
        is_open = machine.provider_id is None and found is None
        age = now - machine.ordered_at
        if is_missing and _is_gone(machine, worker, now - missing_since.get(machine.key, now), now):
            _note_gone(result, machine, worker)
        elif machine.ending_at is not None:
            if now - machine.ending_at >= END_AGAIN and not (found is not None and found.is_ending):
                result.end_again.append(machine.key)
        elif is_open and worker is None and age >= max_boot:
            # The order is too old to be repeated, for example after a pause. This is not a failed boot: a new order is
            # placed if needed. A provider that cannot be reached may have launched the machine.
            if listed is not None:
                result.change(machine.key, ended_at=..., reason=str(MachineEndReason.UNANSWERED))
        elif (why := _why_useless(machine, worker, absent_since, max_boot=max_boot, now=now)) is not None:
            result.end[machine.key] = why
        elif is_open and age >= ORDER_AGAIN:
            result.order_again.append(machine.key)
    _note_unordered(result, machines, listed or (), matched)
    return result


def _match(machines: Sequence[MachineRecord], listed: Sequence[ProviderMachine]) -> dict[str, ProviderMachine]:
    """Match machines to orders by key. A machine without a key belongs to the oldest order without a machine."""
    by_id = {machine.provider_id: machine.key for machine in machines if machine.provider_id is not None}
    free_keys = {machine.key for machine in machines if machine.provider_id is None}
    waiting = [machine for machine in machines if machine.provider_id is None and machine.ending_at is None]
    matched: dict[str, ProviderMachine] = {}
    without_key = []
    for found in listed:
        key = by_id.get(found.id) or (found.key if found.key in free_keys else None)
        if key is not None:
            matched.setdefault(key, found)
        elif found.key is None and not found.is_ending:
            without_key.append(found)
    for found in without_key:
        free = [machine for machine in waiting if machine.key not in matched]
        same_type = [machine for machine in free if machine.instance_type in (None, found.instance_type)] or free
        if same_type:
            matched[same_type[0].key] = found
    return matched


def _note_unordered(
    result: Reconciled,
    machines: Sequence[MachineRecord],
    listed: Sequence[ProviderMachine],
    matched: Mapping[str, ProviderMachine],
) -> None:
    known = {found.id for found in matched.values()}
    orders = {machine.key for machine in machines}
    workers = {machine.worker for machine in machines} | {found.worker for found in matched.values()}
    adopted: set[str] = set()
    for found in {found.id: found for found in listed if not found.is_ending}.values():
        if found.id in known:
            continue
        if found.key in matched or found.key in adopted:
            # The worker belongs to the first machine of the order.
            worker_id = None if found.worker_id in workers else found.worker_id
            result.surplus.append(replace(found, key=None, worker_id=worker_id))
        elif found.key in orders:
            # The machine of this order has another id.
            result.adopt.append(replace(found, key=None))
        else:
            result.adopt.append(found)
            adopted.add(found.key or found.id)
            workers.add(found.worker)


def current_price(machine: MachineRecord, found: ProviderMachine, prices: Mapping[str, float]) -> float | None:
    """Return the provider's price of a machine, otherwise the price of its type; `None` if unknown.

    A group may choose a type other than the ordered one.
    """
    if found.price_per_hour is not None:
        return found.price_per_hour
    is_as_ordered = found.instance_type in (None, machine.instance_type)
    known = machine.price_per_hour if is_as_ordered else None
    return prices.get(found.instance_type or machine.instance_type or "") or known


def _note_found(
    result: Reconciled, machine: MachineRecord, found: ProviderMachine, prices: Mapping[str, float]
) -> None:
    price = current_price(machine, found, prices)
    if machine.provider_id is None:
        result.change(
            machine.key,
            provider_id=found.id,
            worker_id=found.worker,
            launched_at=found.launched_at or ...,
            instance_type=found.instance_type or machine.instance_type,
            price_per_hour=price,
        )
        return
    if found.worker_id is not None and found.worker_id != machine.worker_id:
        result.change(machine.key, worker_id=found.worker_id)
    # Some providers report the price late, and prices change. The cost limit applies to the current price.
    if price not in (None, machine.price_per_hour):
        result.change(machine.key, price_per_hour=price)


def _is_gone(machine: MachineRecord, worker: RegisteredWorker | None, missing: timedelta, now: datetime) -> bool:
    """Whether a machine that the provider does not list is gone."""
    if machine.provider_id is None:
        return machine.ending_at is not None
    may_be_unlisted = now - (machine.launched_at or machine.ordered_at) < MAX_LISTING_DELAY
    if machine.ending_at is not None:
        return machine.registered_at is not None or not may_be_unlisted
    if worker is not None:
        return missing >= MISSING_AFTER and now - worker.last_seen_at >= LAST_SEEN_WITHIN
    # If the worker was registered and no longer is, the machine is gone.
    return machine.registered_at is not None or (missing >= MISSING_AFTER and not may_be_unlisted)


def _note_gone(result: Reconciled, machine: MachineRecord, worker: RegisteredWorker | None) -> None:
    if machine.ending_at is not None:
        result.change(machine.key, ended_at=...)
        return
    was_worker = machine.registered_at is not None or worker is not None
    reason = MachineEndReason.GONE if was_worker else MachineEndReason.GONE_BOOTING
    result.change(machine.key, ended_at=..., reason=str(reason))


def _why_useless(
    machine: MachineRecord,
    worker: RegisteredWorker | None,
    absent_since: Mapping[str, datetime],
    *,
    max_boot: timedelta,
    now: datetime,
) -> str | None:
    """Return the reason for terminating a machine that costs money and does nothing, or `None`."""
    if machine.registered_at is None and worker is None:
        age = now - machine.ordered_at
        is_failed = age >= max_boot
        return f"{MachineEndReason.BOOT_FAILED}: no worker after {age.total_seconds():.0f} s" if is_failed else None
    if worker is None:
        is_absent = now - absent_since.get(machine.key, now) >= MAX_ABSENCE
        return f"{MachineEndReason.SILENT}: its worker left" if is_absent else None
    if worker.is_offline and not worker.leases:
        return f"{MachineEndReason.SILENT}: its worker stopped responding"
    if worker.closed and not worker.leases and now - (worker.last_at or worker.registered_at) >= CLOSED_AFTER:
        return f"{MachineEndReason.CLOSED}: its worker {worker.closed}"
    return None
