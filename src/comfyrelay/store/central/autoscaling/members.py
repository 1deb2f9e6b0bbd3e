"""The fleets of workers, including workers that have deregistered."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from sqlalchemy import Text, select
from sqlalchemy.sql import Executable

from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, select_by_ids, with_ids
from comfyrelay.store.types import json_value, sql_literal

REGISTERED, LEFT, REMOVED = "register", "deregister", "remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetMember:
    fleet_id: int
    instance_type: str | None
    slots: int


async def of_workers(tx: Tx, worker_ids: Collection[str]) -> dict[str, FleetMember]:
    """Return the fleets of workers. Unknown workers are left out."""
    found = {
        row.worker_id: FleetMember(fleet_id=row.fleet_id, instance_type=row.instance_type, slots=row.slots)
        for row in await tx.fetch(_present, with_ids(worker_ids))
    }
    deregistered = sorted(set(worker_ids) - found.keys())
    return found | await _of_deregistered(tx, deregistered) if deregistered else found


@cache
def _present(dialect: str) -> Executable:
    w = workers.c
    columns = (w.worker_id, w.fleet_id, w.instance_type, w.max_concurrency.label("slots"))
    return select_by_ids(dialect, w.worker_id, *columns)


async def _of_deregistered(tx: Tx, worker_ids: Collection[str]) -> dict[str, FleetMember]:
    """Return the fleets of deregistered workers, from the last audit entry of each."""
    entries = {row.worker_id: json_value(row.data) or {} for row in await tx.fetch(last_entries, with_ids(worker_ids))}
    known = {(row.stage, row.slug): row.id for row in await tx.execute(select(fleets).order_by(fleets.c.id))}
    return {
        worker_id: FleetMember(
            fleet_id=known[data["stage"], data["fleet"]],
            instance_type=data.get("instance_type"),
            slots=data.get("slots") or 1,
        )
        for worker_id, data in entries.items()
        if (data.get("stage"), data.get("fleet")) in known
    }


@cache
def last_entries(dialect: str) -> Executable:
    a, r = worker_audit_logs, ids_table(dialect, Text)
    has_fleet = a.c.event.in_([sql_literal(event) for event in (REGISTERED, LEFT, REMOVED)])
    last = select(a.c.id).where(a.c.worker_id == r.c.id, has_fleet).order_by(a.c.id.desc()).limit(1)
    entry = a.alias("entry")
    return select(entry.c.worker_id, entry.c.data).join_from(r, entry, entry.c.id == last.scalar_subquery())
