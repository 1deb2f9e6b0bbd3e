"""Reconcile runs that administrators started, with their findings."""

from typing import Any

from sqlalchemy import delete, insert, select, update

from comfyrelay.domain.records.operations import ReconcileRunRecord
from comfyrelay.store.central.tables.operations import reconcile_runs as r
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now

_RUN = [r.c[name] for name in ReconcileRunRecord.__dataclass_fields__]


async def begin(tx: Tx) -> ReconcileRunRecord:
    return await tx.one(ReconcileRunRecord, insert(r).values(started_at=relay_now()).returning(*_RUN))


async def is_running(tx: Tx, *, for_seconds: float) -> bool:
    """Return whether a recent run has not ended yet."""
    query = select(r.c.id).where(r.c.ended_at.is_(None), r.c.started_at > relay_now(-for_seconds))
    return await tx.exists(query.limit(1))


async def end(tx: Tx, run_id: int, **values: Any) -> None:
    await tx.execute(update(r).where(r.c.id == run_id).values(**values, ended_at=relay_now()))


async def last(tx: Tx, *, limit: int) -> list[ReconcileRunRecord]:
    """Return runs, newest first."""
    query = select(*_RUN).order_by(r.c.id.desc()).limit(limit)
    return await tx.all(ReconcileRunRecord, query)


async def delete_old(tx: Tx, *, keep: int) -> None:
    newest = select(r.c.id).order_by(r.c.id.desc()).limit(keep)
    await tx.execute(delete(r).where(r.c.id.not_in(newest)))
