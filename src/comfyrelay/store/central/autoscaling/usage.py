"""Usage accounting: ended leases that have not been counted yet, counted usage, and machines."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Select, func, literal_column, or_, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.queue.states import Provider
from comfyrelay.store.central.queue.dispatches import LEASES
from comfyrelay.store.central.tables.autoscaling import machines, usage
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases as leases
from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into, rows_table, update_rows, with_rows
from comfyrelay.store.types import json_value, sql_literal

_AMOUNTS = ("jobs", "busy_seconds", "lost_seconds", "unpriced_seconds", "cost")


class LeaseEvent(NamedTuple):
    """An audit entry. For an ended lease, the data has its epoch and the seconds for which it used the machine."""

    id: int
    created_at: datetime
    dispatch_id: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class UncountedLease:
    """An ended lease without a cost."""

    lease_token: str
    dispatch_id: int
    epoch: int
    worker_id: str
    ended_at: datetime
    outcome: str
    workflow_id: int
    tenant_id: str
    # 0 if there is no effect.
    effect_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageIncrement:
    """Amounts to add to a row of `usage`."""

    day: str
    fleet_id: int
    workflow_id: int
    tenant_id: str
    effect_id: int
    jobs: int
    busy_seconds: float
    lost_seconds: float
    unpriced_seconds: float
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageSum:
    name: str
    stage: str | None
    jobs: int
    busy_seconds: float
    lost_seconds: float
    unpriced_seconds: float
    cost: float


_MACHINE = [machines.c[name] for name in MachineRecord.__dataclass_fields__]


async def entries(tx: Tx, *, after: int, limit: int) -> list[LeaseEvent]:
    rows = await tx.execute(entries_query(after=after, limit=limit))
    return [LeaseEvent(row.id, row.created_at, row.dispatch_id, json_value(row.data) or {}) for row in rows]


def entries_query(*, after: int, limit: int) -> Select[Any]:
    a = worker_audit_logs
    columns = [a.c[name] for name in LeaseEvent._fields]
    return select(*columns).where(a.c.id > after).order_by(a.c.id).limit(limit)


async def uncounted(tx: Tx, ended: Collection[tuple[int, int]]) -> list[UncountedLease]:
    """Return the leases among these (dispatch, epoch) pairs that are not counted and ran on an autoscaled machine."""
    rows = [{"dispatch_id": dispatch_id, "epoch": epoch} for dispatch_id, epoch in ended]
    return [UncountedLease(**row._mapping) for row in await tx.fetch(uncounted_query, with_rows(rows))]


@cache
def uncounted_query(dialect: str) -> Executable:
    r = rows_table(dialect, {"dispatch_id": BigInteger(), "epoch": BigInteger()})
    names = ("lease_token", "dispatch_id", "epoch", "worker_id", "ended_at", "outcome")
    effect_id = func.coalesce(d.c.effect_id, literal_column("0")).label("effect_id")
    return (
        select(*(leases.c[name] for name in names), d.c.workflow_id, d.c.tenant_id, effect_id)
        .join_from(r, leases, (leases.c.dispatch_id == r.c.dispatch_id) & (leases.c.epoch == r.c.epoch))
        .join(d, d.c.id == leases.c.dispatch_id)
        .where(
            leases.c.ended_at.is_not(None),
            leases.c.outcome.is_not(None),
            leases.c.cost.is_(None),
            d.c.provider == sql_literal(Provider.SELF_HOSTED),
        )
    )


async def set_costs(tx: Tx, costs: Mapping[str, float]) -> None:
    """Set the cost of leases, which marks them as counted."""
    await tx.write(_set_costs, with_rows({"lease_token": token, "cost": cost} for token, cost in costs.items()))


@cache
def _set_costs(dialect: str) -> Executable:
    return update_rows(dialect, leases, "lease_token", "cost")


async def add(tx: Tx, increments: Sequence[UsageIncrement]) -> None:
    for increment in increments:
        query = insert_into(tx.dialect, usage).values(asdict(increment))
        sums: dict[Any, Any] = {name: usage.c[name] + query.excluded[name] for name in _AMOUNTS}
        await tx.execute(query.on_conflict_do_update(index_elements=list(usage.primary_key), set_=sums))


async def cost_of(tx: Tx, dispatch_ids: Collection[int]) -> dict[int, float]:
    """Return the cost of the counted leases of each dispatch."""
    query = select(leases.c.dispatch_id, func.sum(leases.c.cost).label("cost")).group_by(leases.c.dispatch_id)
    query = query.where(leases.c.dispatch_id.in_(set(dispatch_ids)), leases.c.cost.is_not(None))
    return {row.dispatch_id: float(row.cost) for row in await tx.execute(query)}


async def by_fleet(tx: Tx, *, first_day: str, last_day: str) -> dict[int, UsageSum]:
    query = sums_query(first_day, last_day, usage.c.fleet_id, fleets.c.slug.label("name"), fleets.c.stage)
    rows = await tx.execute(query.join(fleets, fleets.c.id == usage.c.fleet_id))
    return {row.fleet_id: _usage_sum(row) for row in rows}


async def by_workflow(tx: Tx, *, first_day: str, last_day: str) -> list[UsageSum]:
    query = sums_query(first_day, last_day, usage.c.workflow_id, workflows.c.slug.label("name"))
    return [_usage_sum(row) for row in await tx.execute(query.join(workflows, workflows.c.id == usage.c.workflow_id))]


async def by_tenant(tx: Tx, *, first_day: str, last_day: str) -> list[UsageSum]:
    query = sums_query(first_day, last_day, usage.c.tenant_id.label("name"))
    return [_usage_sum(row) for row in await tx.execute(query)]


class UsedTime(NamedTuple):
    seconds: float = 0.0
    unpriced_seconds: float = 0.0
    cost: float = 0.0


async def cost_by(tx: Tx, column: str, *, first_day: str, last_day: str) -> dict[str, UsedTime]:
    """Return seconds and cost by day, tenant or effect."""
    key = usage.c[column]
    sums = (
        func.sum(usage.c.busy_seconds + usage.c.lost_seconds).label("seconds"),
        func.sum(usage.c.unpriced_seconds).label("unpriced_seconds"),
        func.sum(usage.c.cost).label("cost"),
    )
    query = select(key.label("key"), *sums).where(usage.c.day.between(first_day, last_day)).group_by(key)
    return {
        str(row.key): UsedTime(float(row.seconds), float(row.unpriced_seconds), float(row.cost))
        for row in await tx.execute(query)
    }


def sums_query(first_day: str, last_day: str, *columns: Any) -> Select[Any]:
    sums = [func.sum(usage.c[name]).label(name) for name in _AMOUNTS]
    is_within = usage.c.day.between(first_day, last_day)
    groups = [getattr(column, "element", column) for column in columns]
    return select(*columns, *sums).select_from(usage).where(is_within).group_by(*groups).order_by(*groups)


def _usage_sum(row: Any) -> UsageSum:
    return UsageSum(
        name=row.name,
        stage=getattr(row, "stage", None),
        jobs=int(row.jobs),
        busy_seconds=float(row.busy_seconds),
        lost_seconds=float(row.lost_seconds),
        unpriced_seconds=float(row.unpriced_seconds),
        cost=float(row.cost),
    )


async def machines_of_workers(tx: Tx, worker_ids: Collection[str]) -> dict[str, MachineRecord]:
    """Return the newest machine of each worker: the machine with its worker id, or whose key is its worker id."""
    ids = sorted(worker_ids)
    query = select(*_MACHINE).where(or_(machines.c.worker_id.in_(ids), machines.c.key.in_(ids)))
    found = await tx.all(MachineRecord, query.order_by(machines.c.ordered_at))
    return {machine.worker_id or machine.key: machine for machine in found} | {m.key: m for m in found}


async def machines_between(
    tx: Tx, fleet_ids: Sequence[int], *, begins: datetime, ends: datetime
) -> list[MachineRecord]:
    """Return the machines that existed at any time in this period."""
    return await tx.all(MachineRecord, machines_query(fleet_ids, begins=begins, ends=ends))


def machines_query(fleet_ids: Sequence[int], *, begins: datetime, ends: datetime) -> Select[Any]:
    return select(*_MACHINE).where(
        machines.c.fleet_id.in_(fleet_ids),
        machines.c.ordered_at < ends,
        or_(machines.c.ended_at.is_(None), machines.c.ended_at > begins),
    )


async def present_machines(tx: Tx) -> list[tuple[MachineRecord, int]]:
    """Return the existing machines with the number of leases of their workers."""
    of_machine = workers.c.worker_id == func.coalesce(machines.c.worker_id, machines.c.key)
    query = select(*_MACHINE, LEASES.label("leases")).outerjoin(workers, of_machine)
    return await tx.all(_with_leases, query.where(machines.c.ended_at.is_(None)))


def _with_leases(*, leases: int | None, **machine: Any) -> tuple[MachineRecord, int]:
    return MachineRecord(**machine), leases or 0


async def specs(tx: Tx) -> dict[int, tuple[str, str, Mapping[str, Any] | None]]:
    """Return the slug, stage and machine specification of each fleet."""
    query = select(fleets.c.id, fleets.c.slug, fleets.c.stage, fleets.c.machines).order_by(fleets.c.id)
    return {row.id: (row.slug, row.stage, json_value(row.machines)) for row in await tx.execute(query)}
