"""A tenant's queue at a glance: how many jobs are where, and what runs and comes next."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, select

from comfyrelay.domain.records.jobs import Unit
from comfyrelay.domain.states import DispatchStatus
from comfyrelay.store.central.tables import ai_job_dispatches as d
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs
from comfyrelay.store.types import word


async def count_by_status(tx: Tx, tenant_id: str) -> dict[str, int]:
    counted = select(ai_jobs.c.status, func.count().label("jobs")).where(ai_jobs.c.tenant_id == tenant_id)
    return {row.status: row.jobs for row in await tx.execute(counted.group_by(ai_jobs.c.status))}


class Leased(NamedTuple):
    """A job that a worker has."""

    job_id: str
    batch_id: str | None
    is_prefetch: bool
    progress: Mapping[str, Any] | None

    @property
    def unit(self) -> Unit:
        return Unit(self.batch_id or self.job_id, self.batch_id is not None)


async def leased(tx: Tx, tenant_id: str) -> list[Leased]:
    """What workers have, the longest first."""
    # few are leased, and an index has only those; SQLite would rather look through all of the tenant's
    of_tenant = d.c.tenant_id.concat("") == tenant_id
    query = select(d.c.tenant_job_id, d.c.batch_id, d.c.is_prefetch, d.c.progress)
    query = query.where(of_tenant, d.c.status == word(DispatchStatus.LEASED)).order_by(d.c.leased_at, d.c.id)
    return [Leased._make(row) for row in await tx.execute(query)]


async def waiting(tx: Tx, tenant_id: str, *, limit: int) -> Sequence[Unit]:
    """What is queued, in the order in which it will run; a batch stands where its first item does."""
    unit = func.coalesce(d.c.batch_id, d.c.tenant_job_id)
    # an index has only those that wait, but SQLite knows that of its own words only
    waits = d.c.status.in_([word(DispatchStatus.QUEUED), word(DispatchStatus.PAUSED)])
    query = (
        select(unit.label("unit"), func.max(d.c.batch_id).label("batch_id"))
        .where(d.c.tenant_id == tenant_id, waits, d.c.status == word(DispatchStatus.QUEUED))
        .group_by(unit)
        .order_by(func.max(d.c.priority).desc(), func.min(d.c.rank), func.min(d.c.id))
        .limit(limit)
    )
    return [Unit(row.unit, row.batch_id is not None) for row in await tx.execute(query)]
