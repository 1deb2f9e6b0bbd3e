"""What became of machines that were ordered: held against what their provider has, and against the workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from comfyrelay.domain.autoscaling.machines import MachineEndReason, MachineRecord
from comfyrelay.domain.autoscaling.spec import ScalingSpec

# An order that nobody has answered is placed again after so long, by the same key.
ORDER_AGAIN = timedelta(seconds=10)
# An end that has not come about is asked for again after so long.
END_AGAIN = timedelta(seconds=10)
# Providers may take a moment until they list what they have just made.
UNLISTED = timedelta(seconds=60)
# One answer without a machine may be an incomplete one.
MISSING = timedelta(seconds=30)
# A machine whose worker was heard of within this time is there, whatever its provider says. A poll may last long.
HEARD = timedelta(seconds=60)
# A worker that restarts is away for a moment.
AWAY = timedelta(seconds=120)
# A worker that takes no jobs any more, and has had none for so long, is of no use.
CLOSED = timedelta(seconds=60)
BOOT_FACTOR = 3.0
BOOT_MARGIN = timedelta(seconds=120)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """A machine as its provider tells of it."""

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
    # why it takes no jobs, if it takes none
    closed: str | None = None
    # when something last happened to it
    last_at: datetime | None = None
    leases: int = 0


@dataclass(kw_only=True, slots=True)
class Reconciled:
    """`changes` are of rows, by key; `...` stands for the present."""

    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    # machines that nobody has ordered here
    adopt: list[Sighting] = field(default_factory=list)
    # second ones of an order that has its machine
    surplus: list[Sighting] = field(default_factory=list)
    # to be ended, with the reason
    end: dict[str, str] = field(default_factory=dict)
    # are ending, and have to be told again
    end_again: list[str] = field(default_factory=list)
    order_again: list[str] = field(default_factory=list)
    # of which their provider does not tell
    missing: list[str] = field(default_factory=list)

    def change(self, key: str, **values: Any) -> None:
        self.changes.setdefault(key, {}).update(values)

    def allowed(self, scaling: ScalingSpec) -> "Reconciled":
        """What of it may be done. What became of machines is noted in any case; an end that was begun before a pause is
        finished, for its worker takes nothing any more."""
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
    """Without `sightings` the provider could not be asked: what it has is as it was. `absent_since` tells since when
    the workers of machines have been away, `missing_since` since when their provider has not told of them."""
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
            # no boot that failed: whoever needs one orders it anew. One that cannot be asked may have made it.
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
    orders = {each.key for each in machines}
    workers = {each.worker for each in machines} | {_as_worker(each) for each in matched.values()}
    adopted: set[str] = set()
    for each in {each.id: each for each in sightings if not each.is_ending}.values():
        if each.id in known:
            continue
        if each.key in matched or each.key in adopted:
            # the worker of the first is not its
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
    """By key. What a provider cannot tell the order of belongs to the oldest order without a machine."""
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
    """What a machine costs now: as its provider tells it of this one, else as `prices` tell it of its type. A group may
    choose another type than was ordered. A type without a price tells nothing."""
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
    # some tell it late, and it rises and falls: the limit of money is on what is paid now
    if (price := price_of(machine, sighting, prices)) not in (None, machine.price_per_hour):
        found.change(machine.key, price_per_hour=price)


def _as_worker(sighting: Sighting) -> str:
    return sighting.worker_id or sighting.id


def _is_gone(machine: MachineRecord, worker: RegisteredWorker | None, missing: timedelta, now: datetime) -> bool:
    """Whether one that its provider does not list is no more."""
    if machine.provider_id is None:
        return machine.ending_at is not None
    is_listed_late = now - (machine.launched_at or machine.ordered_at) < UNLISTED
    if machine.ending_at is not None:
        return machine.registered_at is not None or not is_listed_late
    if worker is not None:
        return missing >= MISSING and now - worker.last_seen_at >= HEARD
    # of one that was registered, worker and provider say the same
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
    """Whether an order is too old to be placed again, as after a pause."""
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
    """Why a machine that costs and does nothing is to be ended."""
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
