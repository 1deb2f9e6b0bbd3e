"""Overview of a tenant's queue: counts by status, running and next jobs."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from comfyrelay.domain.queue.progress import Progress
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.queue.wait_reasons import is_prefetched
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.store.central.queue.dispatches import WAITING
from comfyrelay.store.central.queue.progress import PROGRESS_COLUMNS, progress_in
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs
from comfyrelay.store.types import sql_literal

_COUNTS = select(ai_jobs.c.tenant_id, ai_jobs.c.status, func.count().label("jobs")).group_by(
    ai_jobs.c.tenant_id, ai_jobs.c.status
)


async def count_by_status(tx: Tx, tenant_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """Count the visible jobs of each tenant by status. For a retried item of a batch, its newest retry counts."""
    found: dict[str, dict[str, int]] = {tenant_id: {} for tenant_id in tenant_ids}
    counts = _COUNTS.where(ai_jobs.c.tenant_id.in_(tenant_ids))
    for row in await tx.execute(counts):
        found[row.tenant_id][row.status] = row.jobs
    # Hidden and retried jobs are few, or have their own index.
    for query in (counts.where(ai_jobs.c.cleared_at.is_not(None)), retried_query(tenant_ids)):
        for row in await tx.execute(query):
            found[row.tenant_id][row.status] -= row.jobs
    return found


def retried_query(tenant_ids: Collection[str]) -> Select[Any]:
    """Count the visible items of batches that were retried."""
    retry = ai_jobs.alias("retry")
    # Look up each retried job by its id. SQLite would otherwise scan all jobs, for the order of the groups or for the
    # condition on the tenant.
    tenant_id = ai_jobs.c.tenant_id.concat("")
    retried = select(retry.c.retry_of).where(
        retry.c.tenant_id.concat("").in_(tenant_ids), retry.c.retry_of.is_not(None)
    )
    query = select(tenant_id.label("tenant_id"), ai_jobs.c.status, func.count().label("jobs"))
    query = query.where(ai_jobs.c.id.in_(retried), ai_jobs.c.batch_id.is_not(None), ai_jobs.c.cleared_at.is_(None))
    return query.group_by(tenant_id, ai_jobs.c.status)


class LeasedItem(NamedTuple):
    """A leased job, and how long it has been running, or leased if the run has not started."""

    job_id: str
    batch_id: str | None
    is_prefetch: bool
    progress: Mapping[str, Any] | None
    workflow_id: int
    effect_id: int | None
    seconds: float

    @property
    def is_prefetched(self) -> bool:
        return is_prefetched(is_prefetch=self.is_prefetch, progress=self.progress)

    @property
    def unit(self) -> Unit:
        return Unit(self.batch_id or self.job_id, self.batch_id is not None)


async def leased(tx: Tx, tenant_ids: Collection[str]) -> dict[str, list[LeasedItem]]:
    """Return the leased jobs of each tenant, oldest leases first."""
    # Use the partial index of leased rows. SQLite would otherwise scan all jobs of the tenant.
    of_tenants = d.c.tenant_id.concat("").in_(tenant_ids)
    fields = (d.c.tenant_id, d.c.tenant_job_id, d.c.batch_id, d.c.workflow_id, d.c.effect_id)
    query = select(*fields, *PROGRESS_COLUMNS).order_by(d.c.leased_at, d.c.id)
    found: dict[str, list[LeasedItem]] = {tenant_id: [] for tenant_id in tenant_ids}
    rows = await tx.execute(query.where(of_tenants, d.c.status == sql_literal(DispatchStatus.LEASED)))
    for row in rows:
        progress = progress_in(row)
        began_at = Progress.from_report(progress).began_at or row.leased_at
        item = LeasedItem(
            job_id=row.tenant_job_id,
            batch_id=row.batch_id,
            is_prefetch=row.is_prefetch,
            progress=progress,
            workflow_id=row.workflow_id,
            effect_id=row.effect_id,
            seconds=max(0.0, (row.now - began_at).total_seconds()),
        )
        found[row.tenant_id].append(item)
    return found


async def waiting(tx: Tx, tenant_ids: Collection[str], *, limit: int) -> dict[str, list[Unit]]:
    """Return the queued jobs of each tenant in queue order, with a batch at the place of its first item."""
    unit = func.coalesce(d.c.batch_id, d.c.tenant_job_id)
    order = (func.max(d.c.priority).desc(), func.min(d.c.rank), func.min(d.c.id))
    place = func.row_number().over(partition_by=d.c.tenant_id, order_by=order)
    units = (
        select(d.c.tenant_id, unit.label("unit"), func.max(d.c.batch_id).label("batch_id"), place.label("place"))
        # SQLite uses the partial index only if its condition is repeated.
        .where(d.c.tenant_id.in_(tenant_ids), WAITING, d.c.status == sql_literal(DispatchStatus.QUEUED))
        .group_by(d.c.tenant_id, unit)
        .subquery()
    )
    found: dict[str, list[Unit]] = {tenant_id: [] for tenant_id in tenant_ids}
    query = select(units).where(units.c.place <= limit).order_by(units.c.tenant_id, units.c.place)
    for row in await tx.execute(query):
        found[row.tenant_id].append(Unit(row.unit, row.batch_id is not None))
    return found
