"""Reconcile ordered machines with their provider and their workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from comfyrelay.domain.autoscaling.machines import MachineEndReason, MachineRecord
from comfyrelay.domain.autoscaling.spec import ScalingSpec

# An unanswered order is repeated after this time, with the same key.
ORDER_AGAIN = timedelta(seconds=10)
# An unfinished termination is repeated after this time.
END_AGAIN = timedelta(seconds=10)
# Providers may list new machines late.
UNLISTED = timedelta(seconds=60)
# A single answer without a machine may be incomplete.
MISSING = timedelta(seconds=30)
# A machine whose worker was seen within this time exists, even if its provider does not list it. A poll may take long.
HEARD = timedelta(seconds=60)
# A restarting worker is briefly away.
AWAY = timedelta(seconds=120)
# A worker that accepts no jobs and has had none for this long is useless.
CLOSED = timedelta(seconds=60)
BOOT_FACTOR = 3.0
BOOT_MARGIN = timedelta(seconds=120)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """A machine as its provider reports it."""

    id: str
    is_ending: bool = False
    key: str | None = None
    worker_id: str | None = None
    instance_type: str | None = None
    price_per_hour: float | None = None
    launched_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredWorker:
    """A worker of the fleet."""

    registered_at: datetime
    last_seen_at: datetime
    is_stale: bool = False
    # why it accepts no jobs, if so
    closed: str | None = None
    # its last activity
    last_at: datetime | None = None
    leases: int = 0


@dataclass(kw_only=True, slots=True)
class Reconciled:
    """`changes` are row changes by key; `...` means now."""

    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    # machines that were not ordered here
    adopt: list[Sighting] = field(default_factory=list)
    # additional machines of an order that has one
    surplus: list[Sighting] = field(default_factory=list)
    # to be terminated, with the reason
    end: dict[str, str] = field(default_factory=dict)
    # terminating, to be requested again
    end_again: list[str] = field(default_factory=list)
    order_again: list[str] = field(default_factory=list)
    # not listed by their provider
    missing: list[str] = field(default_factory=list)

    def change(self, key: str, **values: Any) -> None:
        self.changes.setdefault(key, {}).update(values)

    def allowed(self, scaling: ScalingSpec) -> "Reconciled":
        """What may be done of it.

        Results are always recorded; a termination that started before a pause is finished, because its worker accepts
        no jobs.
        """
        if scaling.is_dry_run:
            return Reconciled(changes=self.changes, missing=self.missing)
        if scaling.is_paused:
            return Reconciled(changes=self.changes, missing=self.missing, end_again=self.end_again)
        return self


def reconcile(
    machines: Sequence[MachineRecord],
    sightings: Sequence[Sighting] | None,
    workers: Mapping[str, RegisteredWorker],
    *,
    absent_since: Mapping[str, datetime],
    missing_since: Mapping[str, datetime],
    boot_seconds: float,
    now: datetime,
    prices: Mapping[str, float],
) -> Reconciled:
    """Reconcile one fleet.

    Without `sightings` the provider failed, and its machines count as unchanged. `absent_since` says since when the
    workers of machines are away, `missing_since` since when the provider does not list them.
    """
    found = Reconciled()
    matched = _matched(machines, sightings or ())
    for machine in machines:
        sighting = matched.get(machine.key)
        if sighting is not None:
            _note(found, machine, sighting, prices)
        worker = workers.get(machine.worker) or (workers.get(_as_worker(sighting)) if sighting else None)
        if worker is not None and machine.registered_at is None:
            found.change(machine.key, registered_at=max(worker.registered_at, machine.ordered_at))
        if sightings is not None and sighting is None:
            found.missing.append(machine.key)
        missing = now - missing_since.get(machine.key, now)
        if sightings is not None and sighting is None and _is_gone(machine, worker, missing, now):
            _note_gone(found, machine, worker)
        elif machine.ending_at is not None:
            if now - machine.ending_at >= END_AGAIN and not (sighting is not None and sighting.is_ending):
                found.end_again.append(machine.key)
        elif _is_unanswered(machine, sighting, worker, boot_seconds=boot_seconds, now=now):
            # not a failed boot: a new order is placed if needed. An unreachable provider may have made it.
            if sightings is not None:
                found.change(machine.key, ended_at=..., reason=str(MachineEndReason.UNANSWERED))
        elif (why := _useless(machine, worker, absent_since, boot_seconds=boot_seconds, now=now)) is not None:
            found.end[machine.key] = why
        elif machine.provider_id is None and sighting is None and now - machine.ordered_at >= ORDER_AGAIN:
            found.order_again.append(machine.key)
    _note_strangers(found, machines, sightings or (), matched)
    return found


def _note_strangers(
    found: Reconciled, machines: Sequence[MachineRecord], sightings: Sequence[Sighting], matched: Mapping[str, Sighting]
) -> None:
    known = {each.id for each in matched.values()}
    orders = {machine.key for machine in machines}
    workers = {machine.worker for machine in machines} | {_as_worker(each) for each in matched.values()}
    adopted: set[str] = set()
    for each in {sighting.id: sighting for sighting in sightings if not sighting.is_ending}.values():
        if each.id in known:
            continue
        if each.key in matched or each.key in adopted:
            # the worker belongs to the first machine
            own = None if each.worker_id in workers else each.worker_id
            found.surplus.append(replace(each, key=None, worker_id=own))
        elif each.key in orders:
            # of an order whose machine has another name
            found.adopt.append(replace(each, key=None))
        else:
            found.adopt.append(each)
            adopted.add(each.key or each.id)
            workers.add(_as_worker(each))


def _matched(machines: Sequence[MachineRecord], sightings: Iterable[Sighting]) -> dict[str, Sighting]:
    """Match machines to orders by key. A machine without a key belongs to the oldest order without a machine."""
    by_id = {each.provider_id: each.key for each in machines if each.provider_id is not None}
    free_keys = {each.key for each in machines if each.provider_id is None}
    waiting = [each for each in machines if each.provider_id is None and each.ending_at is None]
    matched: dict[str, Sighting] = {}
    strangers = []
    for sighting in sightings:
        key = by_id.get(sighting.id) or (sighting.key if sighting.key in free_keys else None)
        if key is not None:
            matched.setdefault(key, sighting)
        elif sighting.key is None:
            strangers.append(sighting)
    for sighting in strangers:
        free = [machine for machine in waiting if machine.key not in matched]
        same = [machine for machine in free if machine.instance_type in (None, sighting.instance_type)] or free
        if same and not sighting.is_ending:
            matched[same[0].key] = sighting
    return matched


def price_of(machine: MachineRecord, sighting: Sighting, prices: Mapping[str, float]) -> float | None:
    """Current price of a machine:

    the provider's price for it, otherwise `prices` of its type. A group may choose another type than ordered. `None` if
    unknown.
    """
    if sighting.price_per_hour is not None:
        return sighting.price_per_hour
    is_as_ordered = sighting.instance_type in (None, machine.instance_type)
    known = machine.price_per_hour if is_as_ordered else None
    return prices.get(sighting.instance_type or machine.instance_type or "") or known


def _note(found: Reconciled, machine: MachineRecord, sighting: Sighting, prices: Mapping[str, float]) -> None:
    if machine.provider_id is None:
        found.change(
            machine.key,
            provider_id=sighting.id,
            worker_id=_as_worker(sighting),
            launched_at=sighting.launched_at or ...,
            instance_type=sighting.instance_type or machine.instance_type,
            price_per_hour=price_of(machine, sighting, prices),
        )
        return
    if sighting.worker_id is not None and sighting.worker_id != machine.worker_id:
        found.change(machine.key, worker_id=sighting.worker_id)
    # some report it late, and it changes: the cost limit applies to the current price
    if (price := price_of(machine, sighting, prices)) not in (None, machine.price_per_hour):
        found.change(machine.key, price_per_hour=price)


def _as_worker(sighting: Sighting) -> str:
    return sighting.worker_id or sighting.id


def _is_gone(machine: MachineRecord, worker: RegisteredWorker | None, missing: timedelta, now: datetime) -> bool:
    """Whether an unlisted machine is gone."""
    if machine.provider_id is None:
        return machine.ending_at is not None
    is_listed_late = now - (machine.launched_at or machine.ordered_at) < UNLISTED
    if machine.ending_at is not None:
        return machine.registered_at is not None or not is_listed_late
    if worker is not None:
        return missing >= MISSING and now - worker.last_seen_at >= HEARD
    # worker and provider agree
    return machine.registered_at is not None or (missing >= MISSING and not is_listed_late)


def _note_gone(found: Reconciled, machine: MachineRecord, worker: RegisteredWorker | None) -> None:
    if machine.ending_at is not None:
        found.change(machine.key, ended_at=...)
    else:
        was_worker = machine.registered_at is not None or worker is not None
        found.change(
            machine.key,
            ended_at=...,
            reason=str(MachineEndReason.GONE if was_worker else MachineEndReason.GONE_BOOTING),
        )


def _longest_boot(boot_seconds: float) -> timedelta:
    return timedelta(seconds=BOOT_FACTOR * boot_seconds) + BOOT_MARGIN


def _is_unanswered(
    machine: MachineRecord,
    sighting: Sighting | None,
    worker: RegisteredWorker | None,
    *,
    boot_seconds: float,
    now: datetime,
) -> bool:
    """Whether an order is too old to be repeated, such as after a pause."""
    is_open = machine.provider_id is None and sighting is None and worker is None
    return is_open and now - machine.ordered_at >= _longest_boot(boot_seconds)


def _useless(
    machine: MachineRecord,
    worker: RegisteredWorker | None,
    absent_since: Mapping[str, datetime],
    *,
    boot_seconds: float,
    now: datetime,
) -> str | None:
    """Why a machine that costs money and does nothing is terminated."""
    if machine.registered_at is None and worker is None:
        if now - machine.ordered_at >= _longest_boot(boot_seconds):
            return f"{MachineEndReason.BOOT_FAILED}: no worker after {(now - machine.ordered_at).total_seconds():.0f} s"
        return None
    if worker is None:
        since = absent_since.get(machine.key)
        return f"{MachineEndReason.SILENT}: its worker left" if since is not None and now - since >= AWAY else None
    if worker.is_stale and not worker.leases:
        return f"{MachineEndReason.SILENT}: its worker was not heard of any more"
    if worker.closed and not worker.leases and now - (worker.last_at or worker.registered_at) >= CLOSED:
        return f"{MachineEndReason.CLOSED}: its worker {worker.closed}"
    return None
