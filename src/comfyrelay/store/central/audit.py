"""The audit log of workers, in order."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Select, Text, insert, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.records.workers import AuditRecord, NewAuditEntry
from comfyrelay.store.central.tables.workers import worker_audit_logs
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_first
from comfyrelay.store.row_parameters import rows_table, with_rows
from comfyrelay.store.types import JsonText, relay_now, sql_literal

_RECORD = [worker_audit_logs.c[name] for name in AuditRecord.__dataclass_fields__]
# Decisions of administrators about a worker; the same as in the index.
DECISIONS = ("approve", "revoke")


async def record(tx: Tx, entries: Sequence[NewAuditEntry]) -> None:
    if entries:
        await tx.write(_record, with_rows(entries))


@cache
def _record(dialect: str) -> Executable:
    columns: dict[str, Any] = {
        "worker_id": Text(),
        "event": Text(),
        "dispatch_id": BigInteger(),
        "data": JsonText(),
    }
    r = rows_table(dialect, columns)
    rows = select(r.c.worker_id, r.c.event, r.c.dispatch_id, r.c.data, relay_now())
    names = ["worker_id", "event", "dispatch_id", "data", "created_at"]
    return insert(worker_audit_logs).from_select(names, rows)


async def newest_decision(tx: Tx, worker_id: str) -> AuditRecord | None:
    """Return the latest approval or revocation of a worker, if any."""
    row = (await tx.execute(decision_query(worker_id))).one_or_none()
    return AuditRecord(**row._mapping) if row else None


def decision_query(worker_id: str) -> Select[Any]:
    a = worker_audit_logs
    its = select(*_RECORD).where(a.c.worker_id == worker_id, a.c.event.in_([sql_literal(each) for each in DECISIONS]))
    return its.order_by(a.c.id.desc()).limit(1)


async def of_dispatch(
    tx: Tx, dispatch_id: int, *, before_id: int | None = None, limit: int
) -> tuple[list[AuditRecord], int | None]:
    """Return a page of the entries of a dispatch, newest first, and the id of the next page."""
    query = dispatch_query(dispatch_id, before_id=before_id)
    rows, before = await newest_first(tx, query, worker_audit_logs.c.id, limit=limit)
    return [AuditRecord(**row._mapping) for row in rows], before


def dispatch_query(dispatch_id: int, *, before_id: int | None = None) -> Select[Any]:
    a = worker_audit_logs
    query = select(*_RECORD).where(a.c.dispatch_id == dispatch_id)
    return query if before_id is None else query.where(a.c.id < before_id)


async def page(
    tx: Tx, *, worker_id: str | None = None, event: str | None = None, before_id: int | None = None, limit: int = 50
) -> tuple[list[AuditRecord], int | None]:
    """Return a page, newest first, and the id of the next page."""
    a = worker_audit_logs
    query = select(*_RECORD)
    if worker_id is not None:
        query = query.where(a.c.worker_id == worker_id)
    if before_id is not None:
        query = query.where(a.c.id < before_id)
    loose = None if event is None else lambda c: [c.event == event]
    rows, before = await newest_first(tx, query, a.c.id, limit=limit, loose=loose)
    return [AuditRecord(**row._mapping) for row in rows], before
