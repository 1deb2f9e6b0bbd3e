"""Metrics of the queue and the outboxes, without any data of tenants."""

from dataclasses import dataclass

from sqlalchemy import Select, case, func, literal, select
from sqlalchemy.sql.expression import ColumnElement

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central import tables as central
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workflow_blocks
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import tables as tenant
from comfyrelay.store.types import relay_now, sql_literal

# All private workflows count as one: their names belong to tenants, and their number is unbounded.
PRIVATE = "(private)"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """Jobs of a workflow that wait. Jobs that are scheduled for later do not count."""

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
    slug = _slug()
    waits = (d.c.status == sql_literal(DispatchStatus.QUEUED)) & (d.c.available_at <= relay_now())
    query = (
        select(
            slug.label("workflow"),
            d.c.stage,
            func.count().label("depth"),
            func.min(d.c.created_at).label("oldest"),
            relay_now().label("now"),
        )
        .join(workflows, workflows.c.id == d.c.workflow_id)
        .where(waits)
        .group_by(slug, d.c.stage)
    )
    return [
        QueueDepth(
            workflow=row.workflow,
            stage=row.stage,
            depth=row.depth,
            oldest_seconds=max(0.0, (row.now - row.oldest).total_seconds()),
        )
        for row in await tx.execute(query)
    ]


async def leased(tx: Tx) -> list[LeaseCount]:
    slug = _slug()
    query = (
        select(slug.label("workflow"), d.c.stage, func.count().label("leases"))
        .join(workflows, workflows.c.id == d.c.workflow_id)
        .where(d.c.status == sql_literal(DispatchStatus.LEASED))
        .group_by(slug, d.c.stage)
    )
    return [LeaseCount(**row._mapping) for row in await tx.execute(query)]


def _slug() -> ColumnElement[str]:
    # as a literal: PostgreSQL cannot group by a parameter
    return case((workflows.c.tenant_id.is_(None), workflows.c.slug), else_=sql_literal(PRIVATE))


async def suspects(tx: Tx, *, blocked_workers: int) -> int:
    """Count workflows that are blocked on several workers, so the workflow is the likely cause."""
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
    box = central.queue.outbox
    query = select(box.c.shard, func.min(box.c.created_at).label("oldest"), relay_now().label("now"))
    found = await tx.execute(query.group_by(box.c.shard))
    return {row.shard: max(0.0, (row.now - row.oldest).total_seconds()) for row in found}


async def submission_age(tx: Tx) -> float:
    """Return the age of the oldest pending submission of a shard."""
    # the first row, not the minimum: rows are in order of time, and only the key is indexed
    query: Select[tuple[object, object]] = select(tenant.outbox.c.created_at, relay_now().label("now"))
    row = (await tx.execute(query.order_by(tenant.outbox.c.id).limit(1))).one_or_none()
    return max(0.0, (row.now - row.created_at).total_seconds()) if row else 0.0


async def undelivered(tx: Tx) -> int:
    """Count the pending webhooks of a shard."""
    pending = tenant.webhook_deliveries.c.status == sql_literal(DeliveryStatus.PENDING)
    return int(await tx.scalar(select(func.count(literal(1))).where(pending)) or 0)
