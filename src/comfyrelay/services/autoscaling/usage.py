"""Usage accounting: what machines did, for whom, and at what cost. Each ended lease is counted exactly once.

A lease's cost is written in the transaction that adds it up, so it cannot be counted again. Ends are found by audit
ids, which are not in commit order: entries younger than `OVERLAP` are read again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import partial
from itertools import takewhile

from comfyrelay.domain.autoscaling.spec import MachineSpec
from comfyrelay.domain.autoscaling.spec_json import machines_from_json
from comfyrelay.domain.queue.states import Outcome
from comfyrelay.protocol.admin.fleets import Usage
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import cursors, members, usage
from comfyrelay.store.central.autoscaling.members import FleetMember
from comfyrelay.store.central.autoscaling.usage import MachineTime, Summed, Uncounted, Used
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.database import Tx

# Longer than any transaction of ours: a statement has a minute, idle time half of one.
OVERLAP = timedelta(minutes=10)
# Batch size, so that others need not wait for long.
AT_ONCE = 500
ENDS, SAMPLES = "usage", "machines"
# Oldest entries to count.
LONGEST_SAMPLE_SECONDS = 300.0
DAYS = 30


class By(StrEnum):
    FLEET = "fleet"
    WORKFLOW = "workflow"
    TENANT = "tenant"


class UsageKind(StrEnum):
    """What machine time was used for: completed jobs, lost leases, idling and booting."""

    BUSY = "busy"
    LOST = "lost"
    IDLE = "idle"
    BOOT = "boot"


@dataclass(frozen=True, kw_only=True, slots=True)
class _FleetPrices:
    slug: str
    stage: str
    spec: MachineSpec

    def price(self, machine: MachineTime | None, instance_type: str | None = None) -> float:
        """Hourly price of a machine: what was paid, otherwise the price of its type in this fleet."""
        if machine is not None and machine.price_per_hour is not None:
            return machine.price_per_hour
        name = machine.instance_type if machine is not None and machine.instance_type else instance_type
        return next(
            (
                instance_type_.price_per_hour
                for instance_type_ in self.spec.instance_types
                if instance_type_.name == name
            ),
            0.0,
        )


class UsageService:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        # counted by this process; over all processes each second counts once
        self.gpu_seconds: defaultdict[tuple[str, str, UsageKind], float] = defaultdict(float)
        self.cost: defaultdict[tuple[str, str], float] = defaultdict(float)

    async def run_once(self) -> int:
        """Count all ended leases and the time of machines. Returns the number of leases."""
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

    async def report(self, by: By, *, first: date | None = None, last: date | None = None) -> list[Usage]:
        """Usage between two days, inclusive; the last 30 days by default."""
        async with self._databases.central.read() as tx:
            now = await dispatches.now(tx)
            last = last or now.astimezone(UTC).date()
            first = first or last - timedelta(days=DAYS - 1)
            between = {"first_day": first.isoformat(), "last_day": last.isoformat()}
            if by is By.WORKFLOW:
                return [_row(each) for each in await usage.by_workflow(tx, **between)]
            if by is By.TENANT:
                return [_row(each) for each in await usage.by_tenant(tx, **between)]
            found = await usage.by_fleet(tx, **between)
            fleets = await _fleets(tx)
            begins = datetime.combine(first, time(), UTC)
            ends = min(now, datetime.combine(last + timedelta(days=1), time(), UTC))
            there = await usage.machines_between(tx, list(fleets), begins=begins, ends=ends)
        rows = []
        for fleet_id, fleet in fleets.items():
            own = [machine for machine in there if machine.fleet_id == fleet_id]
            if own or fleet_id in found:
                nothing = Summed(name=fleet.slug, stage=fleet.stage, jobs=0, busy_seconds=0, lost_seconds=0, cost=0)
                rows.append(_with_machines(found.get(fleet_id, nothing), fleet, own, begins=begins, ends=ends))
        return rows

    async def _count(self, tx: Tx, *, after: int) -> "_UsageBatch":
        # concurrent counters wait here and then find these counted
        position = await cursors.lock(tx, ENDS)
        now = await dispatches.now(tx)
        begins = max(position, after)
        entries = await usage.entries(tx, after=begins, limit=AT_ONCE)
        ran = {
            (entry.dispatch_id, entry.data["epoch"]): entry.data["ran_seconds"]
            for entry in entries
            if entry.dispatch_id is not None and "ran_seconds" in entry.data
        }
        ended = await usage.uncounted(tx, ran) if ran else []
        fleets = await _fleets(tx)
        costs, used = await self._costs(tx, ended, ran, fleets)
        if costs:
            await usage.set_costs(tx, costs)
            await usage.add(tx, used)
        # Young entries may have uncommitted neighbours, so they and all later ones are read again. SQLite has a single
        # writer and no such neighbours.
        overlap = OVERLAP if tx.dialect == "postgresql" else timedelta(0)
        settled = [each.id for each in takewhile(lambda each: each.created_at <= now - overlap, entries)]
        if settled and begins == position:
            await cursors.move(tx, ENDS, settled[-1])
        return _UsageBatch(
            costs=costs, used=used, fleets=fleets, last_id=entries[-1].id if len(entries) == AT_ONCE else None
        )

    async def _costs(
        self,
        tx: Tx,
        ended: Sequence[Uncounted],
        ran: Mapping[tuple[int, int], float],
        fleets: Mapping[int, _FleetPrices],
    ) -> tuple[dict[str, float], list[Used]]:
        worker_ids = {each.worker_id for each in ended}
        of = await members.of_workers(tx, worker_ids) if worker_ids else {}
        machines = await usage.machines_of_workers(tx, worker_ids) if worker_ids else {}
        costs: dict[str, float] = {}
        sums: dict[tuple[str, int, int, str], Used] = {}
        for each in ended:
            seconds = float(ran[each.dispatch_id, each.epoch])
            member = of.get(each.worker_id)
            if member is None:
                # of a deleted fleet
                costs[each.lease_token] = 0.0
                continue
            costs[each.lease_token] = seconds * _price(member, machines.get(each.worker_id), fleets) / 3600
            more = _used(each, member, seconds, costs[each.lease_token])
            key = (more.day, more.fleet_id, more.workflow_id, more.tenant_id)
            sums[key] = _plus(sums[key], more) if key in sums else more
        # a fixed order prevents deadlocks
        return costs, [sums[key] for key in sorted(sums)]

    async def _sample(self) -> None:
        """Account for the time of machines without ended leases."""

        async def work(tx: Tx) -> list[tuple[tuple[str, str], UsageKind, float, float]]:
            position = await cursors.lock(tx, SAMPLES)
            now = int((await dispatches.now(tx)).timestamp())
            await cursors.move(tx, SAMPLES, now)
            seconds = min(float(now - position), LONGEST_SAMPLE_SECONDS) if position else 0.0
            fleets = await _fleets(tx)
            found = []
            for machine, leases in await usage.present_machines(tx):
                fleet = fleets[machine.fleet_id]
                is_booting = machine.registered_at is None
                slots = fleet.spec.slots
                unused = seconds * (slots if is_booting else max(0, slots - leases))
                kind = UsageKind.BOOT if is_booting else UsageKind.IDLE
                found.append(((fleet.slug, fleet.stage), kind, unused, unused / slots * fleet.price(machine) / 3600))
            return found

        for place, kind, seconds, cost in await self._databases.central.run(TransactionStep.USAGE, work):
            self.gpu_seconds[*place, kind] += seconds
            self.cost[place] += cost

    def _note(self, used: Sequence[Used], fleets: Mapping[int, _FleetPrices]) -> None:
        for each in used:
            place = (fleets[each.fleet_id].slug, fleets[each.fleet_id].stage)
            self.gpu_seconds[*place, UsageKind.BUSY] += each.busy_seconds
            self.gpu_seconds[*place, UsageKind.LOST] += each.lost_seconds
            self.cost[place] += each.cost


@dataclass(frozen=True, kw_only=True, slots=True)
class _UsageBatch:
    costs: Mapping[str, float]
    used: Sequence[Used]
    fleets: Mapping[int, _FleetPrices]
    # where to continue; `None` when everything was read
    last_id: int | None


def _price(member: FleetMember, machine: MachineTime | None, fleets: Mapping[int, _FleetPrices]) -> float:
    """Hourly price of one slot."""
    return fleets[member.fleet_id].price(machine, member.instance_type) / max(1, member.slots)


def _used(lease: Uncounted, member: FleetMember, seconds: float, cost: float) -> Used:
    counts = lease.outcome == Outcome.COMPLETED
    return Used(
        day=lease.ended_at.astimezone(UTC).date().isoformat(),
        fleet_id=member.fleet_id,
        workflow_id=lease.workflow_id,
        tenant_id=lease.tenant_id,
        jobs=int(counts),
        busy_seconds=seconds if counts else 0.0,
        lost_seconds=0.0 if counts else seconds,
        cost=cost,
    )


def _plus(one: Used, other: Used) -> Used:
    return replace(
        one,
        jobs=one.jobs + other.jobs,
        busy_seconds=one.busy_seconds + other.busy_seconds,
        lost_seconds=one.lost_seconds + other.lost_seconds,
        cost=one.cost + other.cost,
    )


async def _fleets(tx: Tx) -> dict[int, _FleetPrices]:
    return {
        id_: _FleetPrices(slug=slug, stage=stage, spec=machines_from_json(spec))
        for id_, (slug, stage, spec) in (await usage.specs(tx)).items()
    }


def _row(
    found: Summed, *, idle: float | None = None, boot: float | None = None, machine_cost: float | None = None
) -> Usage:
    return Usage(
        name=found.name,
        stage=found.stage,
        jobs=found.jobs,
        busy_seconds=found.busy_seconds,
        lost_seconds=found.lost_seconds,
        cost=found.cost,
        idle_seconds=idle,
        boot_seconds=boot,
        machine_cost=machine_cost,
    )


def _with_machines(
    found: Summed, fleet: _FleetPrices, machines: Sequence[MachineTime], *, begins: datetime, ends: datetime
) -> Usage:
    """A machine is billed from its order to its end. Time that is not busy, lost or booting is idle."""
    slots, boot, ready, cost = fleet.spec.slots, 0.0, 0.0, 0.0
    for machine in machines:
        gone = machine.ended_at or ends
        came = machine.registered_at or gone
        booting = _overlap(machine.ordered_at, came, begins, ends)
        there = _overlap(came, gone, begins, ends)
        boot, ready = boot + booting * slots, ready + there * slots
        cost += (booting + there) * fleet.price(machine) / 3600
    idle = max(0.0, ready - found.busy_seconds - found.lost_seconds)
    return _row(found, idle=idle, boot=boot, machine_cost=cost)


def _overlap(one: datetime, other: datetime, begins: datetime, ends: datetime) -> float:
    return max(0.0, (min(other, ends) - max(one, begins)).total_seconds())
