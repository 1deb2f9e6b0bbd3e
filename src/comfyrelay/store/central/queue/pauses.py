"""Tenants whose queue is paused. Their queued dispatches are held: no worker gets them, and they need no capacity."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, func, select, update

from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.queue.dispatches import LEASED, WAITING, Condition
from comfyrelay.store.central.tables.accounts import tenants
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now, sql_literal

# The condition of `is_free`, for statements that are written as text. An index contains only the paused tenants.
IS_FREE = "q.tenant_id NOT IN (SELECT p.id FROM tenants AS p WHERE p.queue_paused_at IS NOT NULL)"


def is_free(tenant_id: ColumnElement[str] = d.c.tenant_id) -> ColumnElement[bool]:
    """Whether the queue of a dispatch's tenant is not paused."""
    return tenant_id.not_in(select(tenants.c.id).where(tenants.c.queue_paused_at.is_not(None)))


async def pause(tx: Tx, tenant_id: str) -> None:
    """Pause a queue. A second pause keeps the time of the first."""
    paused_at = func.coalesce(tenants.c.queue_paused_at, relay_now())
    await tx.execute(update(tenants).where(tenants.c.id == tenant_id).values(queue_paused_at=paused_at))


async def resume(tx: Tx, tenant_id: str) -> bool:
    """Resume a queue; return whether it was paused."""
    query = update(tenants).where(tenants.c.id == tenant_id, tenants.c.queue_paused_at.is_not(None))
    return await tx.exists(query.values(queue_paused_at=None).returning(tenants.c.id))


async def paused_at(tx: Tx, tenant_ids: Collection[str]) -> dict[str, datetime]:
    """Return the times since which the queues of these tenants are paused. Other queues are left out."""
    query = select(tenants.c.id, tenants.c.queue_paused_at)
    rows = await tx.execute(query.where(tenants.c.id.in_(tenant_ids), tenants.c.queue_paused_at.is_not(None)))
    return {row.id: row.queue_paused_at for row in rows}


async def count_queued(tx: Tx, tenant_id: str) -> int:
    """Count the queued dispatches of a tenant."""
    # SQLite uses the partial index only if its condition is repeated.
    is_queued = WAITING & (d.c.status == sql_literal(DispatchStatus.QUEUED))
    return int(await tx.scalar(select(func.count()).where(d.c.tenant_id == tenant_id, is_queued)) or 0)


def leased_of(tenant_id: str) -> Condition:
    """Match the leased dispatches of a tenant."""
    # Use the partial index of leased rows. SQLite would otherwise scan all jobs of the tenant.
    return LEASED & (d.c.tenant_id.concat("") == tenant_id)
