"""The last log lines of workers, on request of administrators."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select

from comfyrelay.store.central.tables.workers import worker_logs as w
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into
from comfyrelay.store.types import relay_now


async def replace(tx: Tx, worker_id: str, lines: Sequence[str]) -> None:
    """Replace the stored lines of a worker."""
    query = insert_into(tx.dialect, w).values(worker_id=worker_id, lines=list(lines), received_at=relay_now())
    newer = {"lines": query.excluded.lines, "received_at": query.excluded.received_at}
    await tx.execute(query.on_conflict_do_update(index_elements=["worker_id"], set_=newer))


async def of_worker(tx: Tx, worker_id: str) -> tuple[Sequence[str], datetime] | None:
    row = (await tx.execute(select(w.c.lines, w.c.received_at).where(w.c.worker_id == worker_id))).one_or_none()
    return (row.lines, row.received_at) if row else None


async def delete_old(tx: Tx, *, older_than_seconds: float) -> None:
    await tx.execute(delete(w).where(w.c.received_at <= relay_now(-older_than_seconds)))
