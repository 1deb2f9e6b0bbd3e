"""Events and log lines of jobs."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.lifecycle import BY_ADMINISTRATOR
from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.queue.states import JobEventType
from comfyrelay.domain.records.jobs import LogLineRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, rows_table, with_rows
from comfyrelay.store.tenant.tables import job_events, job_logs
from comfyrelay.store.types import json_value

_POSITION = ("tenant_id", "job_id", "seq")


class Position(NamedTuple):
    """The last event of a job that a subscriber has read."""

    tenant_id: str
    job_id: str
    seq: int


async def events_after(tx: Tx, positions: Iterable[Position]) -> list[Event]:
    """Return the later events of these jobs in one statement, oldest first per job."""
    result = await tx.fetch(_events_after, with_rows([position._asdict() for position in positions]))
    return [Event(**{**row._mapping, "data": json_value(row.data)}) for row in result]


@cache
def _events_after(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(job_events, *_POSITION))
    newer = (
        (job_events.c.job_id == r.c.job_id) & (job_events.c.tenant_id == r.c.tenant_id) & (job_events.c.seq > r.c.seq)
    )
    return select(job_events).join(r, newer).order_by(job_events.c.job_id, job_events.c.seq)


async def canceled_by_others(tx: Tx, tenant_id: str, job_ids: Iterable[str]) -> set[str]:
    """Return the jobs that were not canceled by their user."""
    e = job_events.c
    asked = e.type.in_([JobEventType.CANCEL_REQUESTED, JobEventType.CANCELED])
    found = await tx.execute(
        select(e.job_id, e.data).where(e.tenant_id == tenant_id, e.job_id.in_(list(job_ids)), asked)
    )
    return {row.job_id for row in found if row.data.get("reason") == BY_ADMINISTRATOR}


async def event_page(tx: Tx, tenant_id: str, job_id: str, *, after_seq: int, limit: int) -> list[Event]:
    """Return a page of a job's events, oldest first."""
    e = job_events.c
    of_job = select(job_events).where(e.tenant_id == tenant_id, e.job_id == job_id, e.seq > after_seq)
    found = await tx.execute(of_job.order_by(e.seq).limit(limit))
    return [Event(**row._mapping) for row in found]


async def log_page(tx: Tx, tenant_id: str, job_id: str, *, after_id: int, limit: int) -> list[LogLineRecord]:
    """Return a page of a job's log lines, oldest first."""
    query = (
        select(job_logs.c.id, job_logs.c.line, job_logs.c.created_at)
        .where(job_logs.c.tenant_id == tenant_id, job_logs.c.job_id == job_id, job_logs.c.id > after_id)
        .order_by(job_logs.c.id)
        .limit(limit)
    )
    return await tx.all(LogLineRecord, query)
