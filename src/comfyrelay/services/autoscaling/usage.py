"""Account for the time and cost of machines by fleet, workflow and tenant. Each ended lease is counted exactly once.

The cost of a lease is written in the transaction that adds it to the sums, so it cannot be counted again. Ended leases
are found by the ids of audit entries, which are not in commit order. Therefore entries younger than `OVERLAP` are read
again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import partial
from itertools import takewhile

from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.autoscaling.spec import MachineSpec
from comfyrelay.domain.autoscaling.spec_json import machines_from_json
from comfyrelay.domain.queue.states import Outcome
from comfyrelay.protocol.admin.fleets import Usage
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import cursors, members, usage
from comfyrelay.store.central.autoscaling.members import FleetMember
from comfyrelay.store.central.autoscaling.usage import UncountedLease, UsageIncrement, UsageSum
from comfyrelay.store.database import Tx

# Longer than any transaction: statements time out after a minute, and idle transactions after half a minute.
OVERLAP = timedelta(minutes=10)
# Maximum number of leases per transaction, so that other processes do not wait for long.
BATCH_SIZE = 500
ENDS, SAMPLES = "usage", "machines"
# Maximum time that one sample accounts for.
MAX_SAMPLE_SECONDS = 300.0
DAYS = 30


class UsageGrouping(StrEnum):
    FLEET = "fleet"
    WORKFLOW = "workflow"
    TENANT = "tenant"


class UsageKind(StrEnum):
    """How machine time was used: completed jobs, lost leases, idle time or boot time."""

    BUSY = "busy"
    LOST = "lost"
    IDLE = "idle"
    BOOT = "boot"


@dataclass(frozen=True, kw_only=True, slots=True)
class _FleetPrices:
    slug: str
    stage: str
    spec: MachineSpec

    def price(self, machine: MachineRecord | None, instance_type: str | None = None) -> float | None:
        """Return the price per hour of a machine, or else of its instance type in this fleet. A machine without an
        instance type has that of the fleet if there is only one."""
        if machine is not None and machine.price_per_hour is not None:
            return machine.price_per_hour
        name = machine.instance_type if machine is not None and machine.instance_type else instance_type
        known = self.spec.instance_types
        if name is None and len(known) == 1:
            return known[0].price_per_hour
        return next((each.price_per_hour for each in known if each.name == name), None)


class UsageService:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        # Counted by this process only. In the sum over all processes, each second counts once.
        self.gpu_seconds: defaultdict[tuple[str, str, UsageKind], float] = defaultdict(float)
        self.cost: defaultdict[tuple[str, str], float] = defaultdict(float)

    async def run_once(self) -> int:
        """Count all ended leases and the time of machines, and return the number of leases."""
        counted, after = 0, 0
        while True:
            batch = await self._databases.central.run(TransactionStep.USAGE, partial(self._count, after=after))
            self._note(batch.used, batch.fleets)
            counted += len(batch.costs)
            if batch.last_id is None:
                break
            after = batch.last_id
        await self._sample()
        return counted

    async def report(self, by: UsageGrouping, *, first: date | None = None, last: date | None = None) -> list[Usage]:
        """Return the usage between two days, inclusive. The default is the last 30 days."""
        async with self._databases.central.read() as tx:
            now = await tx.now()
            last = last or now.astimezone(UTC).date()
            first = first or last - timedelta(days=DAYS - 1)
            between = {"first_day": first.isoformat(), "last_day": last.isoformat()}
            if by is UsageGrouping.WORKFLOW:
                return [_row(summed) for summed in await usage.by_workflow(tx, **between)]
            if by is UsageGrouping.TENANT:
                return [_row(summed) for summed in await usage.by_tenant(tx, **between)]
            found = await usage.by_fleet(tx, **between)
            fleets = await _fleets(tx)
            begins = datetime.combine(first, time(), UTC)
            ends = min(now, datetime.combine(last + timedelta(days=1), time(), UTC))
            all_machines = await usage.machines_between(tx, list(fleets), begins=begins, ends=ends)
        rows = []
        for fleet_id, fleet in fleets.items():
            machines = [machine for machine in all_machines if machine.fleet_id == fleet_id]
            if machines or fleet_id in found:
                nothing = UsageSum(
                    name=fleet.slug,
                    stage=fleet.stage,
                    jobs=0,
                    busy_seconds=0,
                    lost_seconds=0,
                    unpriced_seconds=0,
                    cost=0,
                )
                rows.append(_add_machine_time(found.get(fleet_id, nothing), fleet, machines, begins=begins, ends=ends))
        return rows

    async def _count(self, tx: Tx, *, after: int) -> "_UsageBatch":
        # Concurrent processes wait here, and then find these leases already counted.
        position = await cursors.lock(tx, ENDS)
        now = await tx.now()
        begins = max(position, after)
        entries = await usage.entries(tx, after=begins, limit=BATCH_SIZE)
        ran_seconds = {
            (entry.dispatch_id, entry.data["epoch"]): entry.data["ran_seconds"]
            for entry in entries
            if entry.dispatch_id is not None and "ran_seconds" in entry.data
        }
        ended = await usage.uncounted(tx, ran_seconds) if ran_seconds else []
        fleets = await _fleets(tx)
        costs, used = await self._costs(tx, ended, ran_seconds, fleets)
        if costs:
            await usage.set_costs(tx, costs)
            await usage.add(tx, used)
        # Entries with lower ids than recent entries may not be committed yet, so reading restarts at the first recent
        # entry. SQLite has a single writer.
        overlap = OVERLAP if tx.dialect == "postgresql" else timedelta(0)
        settled = [entry.id for entry in takewhile(lambda entry: entry.created_at <= now - overlap, entries)]
        if settled and begins == position:
            await cursors.move(tx, ENDS, settled[-1])
        return _UsageBatch(
            costs=costs, used=used, fleets=fleets, last_id=entries[-1].id if len(entries) == BATCH_SIZE else None
        )

    async def _costs(
        self,
        tx: Tx,
        ended: Sequence[UncountedLease],
        ran_seconds: Mapping[tuple[int, int], float],
        fleets: Mapping[int, _FleetPrices],
    ) -> tuple[dict[str, float], list[UsageIncrement]]:
        worker_ids = {lease.worker_id for lease in ended}
        fleet_members = await members.of_workers(tx, worker_ids) if worker_ids else {}
        machines = await usage.machines_of_workers(tx, worker_ids) if worker_ids else {}
        costs: dict[str, float] = {}
        sums: dict[tuple[str, int, int, str, int], UsageIncrement] = {}
        for lease in ended:
            member = fleet_members.get(lease.worker_id)
            if member is None:
                # The fleet was deleted.
                costs[lease.lease_token] = 0.0
                continue
            seconds = float(ran_seconds[lease.dispatch_id, lease.epoch])
            price = fleets[member.fleet_id].price(machines.get(lease.worker_id), member.instance_type)
            cost = None if price is None else seconds * price / max(1, member.slots) / 3600
            costs[lease.lease_token] = cost or 0.0
            used = _increment(lease, member, seconds, cost)
            key = (used.day, used.fleet_id, used.workflow_id, used.tenant_id, used.effect_id)
            sums[key] = _plus(sums[key], used) if key in sums else used
        # Writing in a fixed order prevents deadlocks.
        return costs, [sums[key] for key in sorted(sums)]

    async def _sample(self) -> None:
        """Count the idle and boot time of machines since the last sample."""

        async def work(tx: Tx) -> list[tuple[tuple[str, str], UsageKind, float, float]]:
            position = await cursors.lock(tx, SAMPLES)
            now = int((await tx.now()).timestamp())
            await cursors.move(tx, SAMPLES, now)
            seconds = min(float(now - position), MAX_SAMPLE_SECONDS) if position else 0.0
            fleets = await _fleets(tx)
            found = []
            for machine, leases in await usage.present_machines(tx):
                fleet = fleets[machine.fleet_id]
                is_booting = machine.registered_at is None
                slots = fleet.spec.slots
                unused = seconds * (slots if is_booting else max(0, slots - leases))
                kind = UsageKind.BOOT if is_booting else UsageKind.IDLE
                found.append(
                    ((fleet.slug, fleet.stage), kind, unused, unused / slots * (fleet.price(machine) or 0.0) / 3600)
                )
            return found

        for fleet, kind, seconds, cost in await self._databases.central.run(TransactionStep.USAGE, work):
            self.gpu_seconds[*fleet, kind] += seconds
            self.cost[fleet] += cost

    def _note(self, used: Sequence[UsageIncrement], fleets: Mapping[int, _FleetPrices]) -> None:
        for row in used:
            fleet = (fleets[row.fleet_id].slug, fleets[row.fleet_id].stage)
            self.gpu_seconds[*fleet, UsageKind.BUSY] += row.busy_seconds
            self.gpu_seconds[*fleet, UsageKind.LOST] += row.lost_seconds
            self.cost[fleet] += row.cost


@dataclass(frozen=True, kw_only=True, slots=True)
class _UsageBatch:
    costs: Mapping[str, float]
    used: Sequence[UsageIncrement]
    fleets: Mapping[int, _FleetPrices]
    # The entry after which to continue, or `None` if all entries were read.
    last_id: int | None


def _increment(lease: UncountedLease, member: FleetMember, seconds: float, cost: float | None) -> UsageIncrement:
    is_completed = lease.outcome == Outcome.COMPLETED
    return UsageIncrement(
        day=lease.ended_at.astimezone(UTC).date().isoformat(),
        fleet_id=member.fleet_id,
        workflow_id=lease.workflow_id,
        tenant_id=lease.tenant_id,
        effect_id=lease.effect_id,
        jobs=int(is_completed),
        busy_seconds=seconds if is_completed else 0.0,
        lost_seconds=0.0 if is_completed else seconds,
        unpriced_seconds=seconds if cost is None else 0.0,
        cost=cost or 0.0,
    )


def _plus(one: UsageIncrement, other: UsageIncrement) -> UsageIncrement:
    return replace(
        one,
        jobs=one.jobs + other.jobs,
        busy_seconds=one.busy_seconds + other.busy_seconds,
        lost_seconds=one.lost_seconds + other.lost_seconds,
        unpriced_seconds=one.unpriced_seconds + other.unpriced_seconds,
        cost=one.cost + other.cost,
    )


async def _fleets(tx: Tx) -> dict[int, _FleetPrices]:
    return {
        id_: _FleetPrices(slug=slug, stage=stage, spec=machines_from_json(spec))
        for id_, (slug, stage, spec) in (await usage.specs(tx)).items()
    }


def _row(
    summed: UsageSum, *, idle: float | None = None, boot: float | None = None, machine_cost: float | None = None
) -> Usage:
    return Usage.of(summed, idle_seconds=idle, boot_seconds=boot, machine_cost=machine_cost)


def _add_machine_time(
    summed: UsageSum, fleet: _FleetPrices, machines: Sequence[MachineRecord], *, begins: datetime, ends: datetime
) -> Usage:
    """Add the time of machines, which are billed from order to end. All time that is not busy, lost or boot time is
    idle."""
    if not machines:
        return _row(summed)
    slots, boot, ready, cost = fleet.spec.slots, 0.0, 0.0, 0.0
    for machine in machines:
        ended_at = machine.ended_at or ends
        registered_at = machine.registered_at or ended_at
        boot_seconds = _overlap(machine.ordered_at, registered_at, begins, ends)
        ready_seconds = _overlap(registered_at, ended_at, begins, ends)
        boot, ready = boot + boot_seconds * slots, ready + ready_seconds * slots
        cost += (boot_seconds + ready_seconds) * (fleet.price(machine) or 0.0) / 3600
    idle = max(0.0, ready - summed.busy_seconds - summed.lost_seconds)
    return _row(summed, idle=idle, boot=boot, machine_cost=cost)


def _overlap(start: datetime, end: datetime, begins: datetime, ends: datetime) -> float:
    return max(0.0, (min(end, ends) - max(start, begins)).total_seconds())
