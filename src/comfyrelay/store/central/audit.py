"""The audit log of workers."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.records.workers import AuditRecord, NewAuditEntry
from comfyrelay.store.central.tables.workers import worker_audit_logs as a
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_page
from comfyrelay.store.row_parameters import insert_rows, with_rows
from comfyrelay.store.types import relay_now, sql_literal

_RECORD = [a.c[name] for name in AuditRecord.__dataclass_fields__]
# Decisions of administrators about a worker, the same as in the condition of the index.
DECISIONS = ("approve", "revoke")


async def record(tx: Tx, entries: Sequence[NewAuditEntry]) -> None:
    if entries:
        await tx.write(_record, with_rows(entries))


@cache
def _record(dialect: str) -> Executable:
    names = ("worker_id", "event", "dispatch_id", "data")
    return insert_rows(dialect, a, *names, created_at=relay_now())


async def newest_decision(tx: Tx, worker_id: str) -> AuditRecord | None:
    """Return the latest approval or revocation of a worker, if any."""
    return await tx.one_or_none(AuditRecord, decision_query(worker_id))


def decision_query(worker_id: str) -> Select[Any]:
    is_decision = a.c.event.in_([sql_literal(event) for event in DECISIONS])
    return select(*_RECORD).where(a.c.worker_id == worker_id, is_decision).order_by(a.c.id.desc()).limit(1)


async def of_dispatch(
    tx: Tx, dispatch_id: int, *, before_id: int | None = None, limit: int
) -> tuple[list[AuditRecord], int | None]:
    """Return a page of the entries of a dispatch, newest first, and the id of the next page."""
    return await newest_page(tx, AuditRecord, dispatch_query(dispatch_id), a.c.id, before=before_id, limit=limit)


def dispatch_query(dispatch_id: int) -> Select[Any]:
    return select(*_RECORD).where(a.c.dispatch_id == dispatch_id)


async def page(
    tx: Tx, *, worker_id: str | None = None, event: str | None = None, before_id: int | None = None, limit: int = 50
) -> tuple[list[AuditRecord], int | None]:
    """Return a page, newest first, and the id of the next page."""
    query = select(*_RECORD)
    if worker_id is not None:
        query = query.where(a.c.worker_id == worker_id)
    unindexed = None if event is None else lambda c: [c.event == event]
    return await newest_page(tx, AuditRecord, query, a.c.id, before=before_id, limit=limit, unindexed=unindexed)
