"""Hide finished jobs and batches from the queue."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, and_, exists, func, literal, select, update

from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs, batches
from comfyrelay.store.types import relay_now


def _is_unbatched(tenant_id: str) -> ColumnElement[bool]:
    """Return the condition for visible finished jobs without a batch."""
    j = ai_jobs.c
    is_visible = j.batch_id.is_(None) & j.cleared_at.is_(None)
    return and_(j.tenant_id == tenant_id, is_visible, j.completed_at.is_not(None))


async def count_unbatched(tx: Tx, tenant_id: str) -> dict[str, int]:
    """Count visible finished jobs without a batch by status."""
    query = select(ai_jobs.c.status, func.count().label("jobs")).where(_is_unbatched(tenant_id))
    return {row.status: row.jobs for row in await tx.execute(query.group_by(ai_jobs.c.status))}


async def unbatched(tx: Tx, tenant_id: str, statuses: Collection[str]) -> list[str]:
    """Return visible finished jobs without a batch."""
    return await tx.scalars(select(ai_jobs.c.id).where(_is_unbatched(tenant_id), ai_jobs.c.status.in_(statuses)))


async def finished_batches(tx: Tx, tenant_id: str) -> list[str]:
    """Return visible batches without unfinished jobs."""
    b, j = batches.c, ai_jobs.c
    is_active = exists(select(literal(1)).where(j.batch_id == b.id, j.completed_at.is_(None)))
    return await tx.scalars(select(b.id).where(b.tenant_id == tenant_id, b.cleared_at.is_(None), ~is_active))


async def clear_jobs(tx: Tx, ids: Collection[str]) -> None:
    await tx.execute(update(ai_jobs).where(ai_jobs.c.id.in_(ids)).values(cleared_at=relay_now()))


async def clear_batches(tx: Tx, ids: Collection[str]) -> list[str]:
    """Hide batches with all their jobs. Return the ids of the jobs."""
    await tx.execute(update(batches).where(batches.c.id.in_(ids)).values(cleared_at=relay_now()))
    of_batches = update(ai_jobs).where(ai_jobs.c.batch_id.in_(ids)).values(cleared_at=relay_now())
    return await tx.scalars(of_batches.returning(ai_jobs.c.id))


async def show_batches(tx: Tx, ids: Collection[str]) -> None:
    """Show batches that run again, with all their jobs."""
    await tx.execute(update(batches).where(batches.c.id.in_(ids)).values(cleared_at=None))
    cleared = update(ai_jobs).where(ai_jobs.c.batch_id.in_(ids), ai_jobs.c.cleared_at.is_not(None))
    await tx.execute(cleared.values(cleared_at=None))
