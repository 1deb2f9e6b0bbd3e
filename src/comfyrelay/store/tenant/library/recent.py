"""Recently completed jobs of a tenant."""

from datetime import datetime
from typing import NamedTuple

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


def made_query(tenant_id: str, *, among: int) -> Select[tuple[int, int | None, str | None, datetime | None, datetime]]:
    columns = (*(ai_jobs.c[name] for name in RecentOutput._fields), ai_jobs.c.id, ai_jobs.c.status)
    newest = select(*columns).where(ai_jobs.c.tenant_id == tenant_id).order_by(ai_jobs.c.id.desc()).limit(among)
    found = newest.subquery()
    wanted = select(*(found.c[name] for name in RecentOutput._fields)).where(found.c.status == JobStatus.COMPLETED)
    return wanted.order_by(found.c.id.desc())


async def made(tx: Tx, tenant_id: str, *, among: int) -> list[RecentOutput]:
    """Return the completed ones among the newest jobs of the tenant, newest first."""
    return [RecentOutput._make(row) for row in await tx.execute(made_query(tenant_id, among=among))]
