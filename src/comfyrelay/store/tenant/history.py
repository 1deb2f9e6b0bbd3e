"""What happened to jobs, for those who follow them: events of many jobs in one statement, and log lines by page."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.sql import Executable

from comfyrelay.domain.records.jobs import LogLine
from comfyrelay.domain.settlement import Event
from comfyrelay.store.database import Tx
from comfyrelay.store.rows import columns_of, rows_table, with_rows
from comfyrelay.store.tenant.tables import job_events, job_logs
from comfyrelay.store.types import json_value

_POSITION = ("tenant_id", "job_id", "seq")


class Position(NamedTuple):
    """Up to which event somebody has read a job's history."""

    tenant_id: str
    job_id: str
    seq: int


async def events_after(tx: Tx, positions: Iterable[Position]) -> list[Event]:
    """What came after, for all these jobs at once; oldest first for each."""
    result = await tx.fetch(_events_after, with_rows([position._asdict() for position in positions]))
    return [Event(**{**row._mapping, "data": json_value(row.data)}) for row in result]


@cache
def _events_after(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(job_events, *_POSITION))
    newer = (
        (job_events.c.job_id == r.c.job_id) & (job_events.c.tenant_id == r.c.tenant_id) & (job_events.c.seq > r.c.seq)
    )
    return select(job_events).join(r, newer).order_by(job_events.c.job_id, job_events.c.seq)


async def log_page(tx: Tx, tenant_id: str, job_id: str, *, after_id: int, limit: int) -> list[LogLine]:
    """A job's log lines, oldest first, page by page through `after_id`."""
    query = (
        select(job_logs.c.id, job_logs.c.line, job_logs.c.created_at)
        .where(job_logs.c.tenant_id == tenant_id, job_logs.c.job_id == job_id, job_logs.c.id > after_id)
        .order_by(job_logs.c.id)
        .limit(limit)
    )
    return [LogLine(**row._mapping) for row in await tx.execute(query)]
