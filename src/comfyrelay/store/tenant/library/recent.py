"""Recently completed jobs of a tenant."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, select

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import ai_jobs


class RecentOutput(NamedTuple):
    workflow_id: int
    effect_id: int | None
    output_file_id: str | None
    started_at: datetime | None
    completed_at: datetime


async def completed(tx: Tx, tenant_id: str, *, among: int) -> list[RecentOutput]:
    """Return the completed ones among the newest jobs of the tenant, newest first."""
    return await tx.all(RecentOutput, completed_query(tenant_id, among=among))


def completed_query(tenant_id: str, *, among: int) -> Select[Any]:
    columns = (*(ai_jobs.c[name] for name in RecentOutput._fields), ai_jobs.c.id, ai_jobs.c.status)
    newest = select(*columns).where(ai_jobs.c.tenant_id == tenant_id).order_by(ai_jobs.c.id.desc()).limit(among)
    jobs = newest.subquery()
    query = select(*(jobs.c[name] for name in RecentOutput._fields)).where(jobs.c.status == JobStatus.COMPLETED)
    return query.order_by(jobs.c.id.desc())
