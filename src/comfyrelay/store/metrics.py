"""Metrics of the queue and the outboxes, without any data of tenants."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import outbox
from comfyrelay.store.central.tables.workers import workflow_blocks
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import tables as tenant
from comfyrelay.store.types import relay_now, sql_literal

# All private workflows count as one, because their names belong to tenants and their number is unbounded.
PRIVATE = "(private)"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """The waiting jobs of a workflow, without jobs that are scheduled for later."""

    workflow: str
    stage: str
    depth: int
    oldest_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseCount:
    workflow: str
    stage: str
    leases: int


async def queues(tx: Tx) -> list[QueueDepth]:
    oldest = func.min(d.c.created_at).label("oldest")
    query = _by_workflow(func.count().label("depth"), oldest, relay_now().label("now")).where(
        d.c.status == sql_literal(DispatchStatus.QUEUED), d.c.available_at <= relay_now()
    )
    return [
        QueueDepth(
            workflow=row.workflow, stage=row.stage, depth=row.depth, oldest_seconds=_seconds(row.oldest, row.now)
        )
        for row in await tx.execute(query)
    ]


async def leased(tx: Tx) -> list[LeaseCount]:
    query = _by_workflow(func.count().label("leases"))
    return await tx.all(LeaseCount, query.where(d.c.status == sql_literal(DispatchStatus.LEASED)))


def _by_workflow(*columns: ColumnElement[Any]) -> Select[Any]:
    # PostgreSQL cannot group by a parameter, so the name is a literal.
    slug = case((workflows.c.tenant_id.is_(None), workflows.c.slug), else_=sql_literal(PRIVATE))
    query = select(slug.label("workflow"), d.c.stage, *columns).group_by(slug, d.c.stage)
    return query.join(workflows, workflows.c.id == d.c.workflow_id)


def _seconds(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


async def suspects(tx: Tx, *, blocked_workers: int) -> int:
    """Count the workflows that are blocked on at least this many workers: the workflow is probably the cause."""
    several = (
        select(workflow_blocks.c.workflow_hash)
        .where(workflow_blocks.c.blocked_until > relay_now())
        .group_by(workflow_blocks.c.workflow_hash)
        .having(func.count() >= blocked_workers)
        .subquery()
    )
    return int(await tx.scalar(select(func.count()).select_from(several)) or 0)


async def entry_ages(tx: Tx) -> dict[str, float]:
    """Return the age of the oldest outbox entry by shard."""
    query = select(outbox.c.shard, func.min(outbox.c.created_at).label("oldest"), relay_now().label("now"))
    return {row.shard: _seconds(row.oldest, row.now) for row in await tx.execute(query.group_by(outbox.c.shard))}


async def submission_age(tx: Tx) -> float:
    """Return the age of the oldest pending submission of a shard."""
    # Read the first row instead of the minimum, because rows are in order of time, and only the key is indexed.
    query = select(tenant.outbox.c.created_at, relay_now().label("now")).order_by(tenant.outbox.c.id).limit(1)
    row = (await tx.execute(query)).one_or_none()
    return _seconds(row.created_at, row.now) if row else 0.0


async def undelivered(tx: Tx) -> int:
    """Count the pending webhooks of a shard."""
    pending = tenant.webhook_deliveries.c.status == sql_literal(DeliveryStatus.PENDING)
    return int(await tx.scalar(select(func.count()).where(pending)) or 0)
