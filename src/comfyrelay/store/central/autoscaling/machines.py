"""Machines, recorded before they are ordered."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, bindparam, case, func, insert, select, update
from sqlalchemy.types import BigInteger

from comfyrelay.domain.autoscaling.machines import MachineRecord
from comfyrelay.domain.queue.states import Outcome
from comfyrelay.store.central.tables.autoscaling import machines as m
from comfyrelay.store.central.tables.queue import dispatch_leases as leases
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into
from comfyrelay.store.types import relay_now, sql_literal

ADOPTED_AT_ONCE = 100

_MACHINE = [m.c[name] for name in MachineRecord.__dataclass_fields__]


async def order(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> list[MachineRecord]:
    """Record machines that are about to be ordered."""
    if not rows:
        return []
    query = insert(m).values([{**row, "ordered_at": relay_now()} for row in rows])
    return await tx.all(MachineRecord, query.returning(*_MACHINE))


async def adopt(tx: Tx, fleet_id: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record machines that another program has ordered, or that were considered lost. `...` means now."""
    for start in range(0, len(rows), ADOPTED_AT_ONCE):
        chunk = rows[start : start + ADOPTED_AT_ONCE]
        keys = {str(key) for row in chunk for key in (row["key"], row["provider_id"])}
        taken = set(await tx.scalars(select(m.c.key).where(m.c.key.in_(keys), m.c.fleet_id != fleet_id)))
        values = {}
        for row in chunk:
            # Skip keys that other fleets use.
            candidates = (row["key"], row["provider_id"], f"{fleet_id}.{row['provider_id']}")
            key = next(candidate for candidate in candidates if candidate not in taken)
            values[key] = {**_with_now(row), "key": key, "fleet_id": fleet_id}
        query = insert_into(tx.dialect, m).values(list(values.values()))
        new = query.excluded
        revived = {
            "provider_id": new.provider_id,
            "worker_id": new.worker_id,
            "ending_at": func.coalesce(m.c.ending_at, new.ending_at),
            "ended_at": None,
            # Clear the reason for the loss, but keep the reason for a pending termination.
            "reason": case((m.c.ending_at.is_not(None), m.c.reason), else_=new.reason),
        }
        own = m.c.fleet_id == fleet_id
        await tx.execute(query.on_conflict_do_update(index_elements=["key"], set_=revived, where=own))


def _with_now(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: relay_now() if value is ... else value for name, value in values.items()}


def present_query(fleet_ids: Collection[int]) -> Select[Any]:
    return select(*_MACHINE).where(m.c.ended_at.is_(None), m.c.fleet_id.in_(list(fleet_ids)))


async def present(tx: Tx, fleet_ids: Collection[int]) -> list[MachineRecord]:
    """Return machines that are not terminated, oldest orders first."""
    found = await tx.all(MachineRecord, present_query(fleet_ids))
    return sorted(found, key=attrgetter("ordered_at", "key"))


@cache
def newest_query(_dialect: str = "") -> Select[Any]:
    return (
        select(*_MACHINE)
        .where(m.c.fleet_id == bindparam("fleet_id", type_=BigInteger()))
        .order_by(m.c.ordered_at.desc())
        .limit(bindparam("limit", type_=BigInteger()))
    )


async def newest(tx: Tx, fleet_id: int, *, limit: int) -> list[MachineRecord]:
    """Return the newest orders of a fleet in any state."""
    rows = await tx.fetch(newest_query, {"fleet_id": fleet_id, "limit": limit})
    return [MachineRecord(**row._mapping) for row in rows]


def ended_query(fleet_id: int) -> Select[Any]:
    """Select machines that existed and have ended, without refused orders."""
    return select(*_MACHINE).where(m.c.fleet_id == fleet_id, m.c.ended_at.is_not(None), m.c.provider_id.is_not(None))


async def ended_page(tx: Tx, fleet_id: int, *, before: tuple[datetime, str] | None, limit: int) -> list[MachineRecord]:
    """Return `limit` + 1 ended machines, newest orders first, to detect another page. `before` is the order time and
    key of the last machine on the previous page."""
    query = ended_query(fleet_id)
    if before is not None:
        at, key = before
        query = query.where((m.c.ordered_at < at) | ((m.c.ordered_at == at) & (m.c.key < key)))
    return await tx.all(MachineRecord, query.order_by(m.c.ordered_at.desc(), m.c.key.desc()).limit(limit + 1))


async def completed_jobs(tx: Tx, worker_ids: Collection[str]) -> dict[str, int]:
    """Return the number of completed jobs by worker."""
    if not worker_ids:
        return {}
    done = leases.c.outcome == sql_literal(Outcome.COMPLETED)
    query = select(leases.c.worker_id, func.count().label("jobs")).where(
        leases.c.worker_id.in_(sorted(worker_ids)), done
    )
    return {row.worker_id: row.jobs for row in await tx.execute(query.group_by(leases.c.worker_id))}


async def change(tx: Tx, key: str, **values: Any) -> None:
    """Change a machine that is not terminated. `...` means now."""
    await tx.execute(update(m).where(m.c.key == key, m.c.ended_at.is_(None)).values(_with_now(values)))


async def is_ending(tx: Tx, fleet_id: int, worker_id: str) -> bool:
    """Return whether the machine of a worker is being terminated."""
    of_worker = func.coalesce(m.c.worker_id, m.c.provider_id, m.c.key) == worker_id
    is_ending = m.c.ended_at.is_(None) & m.c.ending_at.is_not(None)
    return await tx.exists(select(m.c.key).where(m.c.fleet_id == fleet_id, is_ending, of_worker).limit(1))


def by_worker_query(worker_ids: Iterable[str]) -> Select[Any]:
    return select(m.c.worker_id, m.c.fleet_id, m.c.instance_type).where(
        m.c.worker_id.is_not(None), m.c.worker_id.in_(sorted(worker_ids))
    )


async def types_of(tx: Tx, worker_ids: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return the fleet and machine type of each worker, as far as they are known."""
    rows = await tx.execute(by_worker_query(worker_ids))
    return {row.worker_id: (row.fleet_id, row.instance_type) for row in rows if row.instance_type is not None}
