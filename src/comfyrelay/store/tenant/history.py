"""Events and log lines of jobs."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.lifecycle import CANCELED_BY_ADMINISTRATOR
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
    e = job_events.c
    is_newer = (e.job_id == r.c.job_id) & (e.tenant_id == r.c.tenant_id) & (e.seq > r.c.seq)
    return select(job_events).join(r, is_newer).order_by(e.job_id, e.seq)


async def canceled_by_others(tx: Tx, tenant_id: str, job_ids: Iterable[str]) -> set[str]:
    """Return the jobs that an administrator canceled."""
    e = job_events.c
    is_cancel = e.type.in_([JobEventType.CANCEL_REQUESTED, JobEventType.CANCELED])
    query = select(e.job_id, e.data).where(e.tenant_id == tenant_id, e.job_id.in_(list(job_ids)), is_cancel)
    return {row.job_id for row in await tx.execute(query) if row.data.get("reason") == CANCELED_BY_ADMINISTRATOR}


async def event_page(tx: Tx, tenant_id: str, job_id: str, *, after_seq: int, limit: int) -> list[Event]:
    """Return a page of a job's events, oldest first."""
    e = job_events.c
    query = select(job_events).where(e.tenant_id == tenant_id, e.job_id == job_id, e.seq > after_seq)
    return await tx.all(Event, query.order_by(e.seq).limit(limit))


async def log_page(tx: Tx, tenant_id: str, job_id: str, *, after_id: int, limit: int) -> list[LogLineRecord]:
    """Return a page of a job's log lines, oldest first."""
    o = job_logs.c
    query = select(o.id, o.line, o.created_at).where(o.tenant_id == tenant_id, o.job_id == job_id, o.id > after_id)
    return await tx.all(LogLineRecord, query.order_by(o.id).limit(limit))
