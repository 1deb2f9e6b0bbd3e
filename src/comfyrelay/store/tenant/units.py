"""Units of the queue: batches and single jobs."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, func, select

from comfyrelay.domain.queue.states import DispatchStatus, JobStatus
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.store.central.queue.dispatches import WAITING
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.job_list import StatusFilter, list_query, search_condition
from comfyrelay.store.tenant.tables import ai_jobs, batches

_UNIT = func.coalesce(ai_jobs.c.batch_id, ai_jobs.c.id).label("unit")


class WaitingUnit(NamedTuple):
    """A waiting unit, and whether it has queued and paused jobs."""

    unit: Unit
    is_queued: bool
    is_paused: bool


class BatchSummary(NamedTuple):
    """Fields that all items of a batch share, their highest priority, first start and last end."""

    workflow_id: int
    effect_id: int | None
    priority: int
    started_at: datetime | None
    ended_at: datetime | None


class BatchItem(NamedTuple):
    """An item of a batch: its newest retry."""

    id: str
    batch_id: str
    item_no: int
    status: str
    input_file_id: str | None
    output_file_id: str | None
    label: str | None
    error_message: str | None


async def waiting(tx: Tx, tenant_id: str) -> list[WaitingUnit]:
    """Return queued and paused units in queue order, with each batch at the place of its first item."""
    return [
        WaitingUnit(
            Unit(row.unit, row.batch_id is not None),
            is_queued=row.last == DispatchStatus.QUEUED,
            is_paused=row.first == DispatchStatus.PAUSED,
        )
        for row in await tx.execute(waiting_query(tenant_id))
    ]


def waiting_query(tenant_id: str) -> Select[Any]:
    unit = func.coalesce(d.c.batch_id, d.c.tenant_job_id)
    return (
        # In alphabetical order, `paused` is the minimum and `queued` the maximum.
        select(
            unit.label("unit"),
            func.max(d.c.batch_id).label("batch_id"),
            func.min(d.c.status).label("first"),
            func.max(d.c.status).label("last"),
        )
        .where(d.c.tenant_id == tenant_id, WAITING)
        .group_by(unit)
        .order_by(func.max(d.c.priority).desc(), func.min(d.c.rank), func.min(d.c.id))
    )


async def active(tx: Tx, tenant_id: str) -> set[Unit]:
    """Return units with unfinished jobs."""
    return {Unit(row.unit, row.batch_id is not None) for row in await tx.execute(active_query(tenant_id))}


def active_query(tenant_id: str) -> Select[Any]:
    query = select(_UNIT, ai_jobs.c.batch_id).distinct()
    return query.where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.completed_at.is_(None))


async def matching(tx: Tx, tenant_id: str, *, workflow_ids: Collection[int] | None, search: str | None) -> set[Unit]:
    """Return units with a matching job of the workflow."""
    query = select(_UNIT, ai_jobs.c.batch_id).distinct()
    query = query.where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.cleared_at.is_(None))
    if workflow_ids is not None:
        query = query.where(ai_jobs.c.workflow_id.in_(workflow_ids))
    if search:
        query = query.where(search_condition(tenant_id, search, tx.dialect))
    return {Unit(row.unit, row.batch_id is not None) for row in await tx.execute(query)}


def page_queries(
    tenant_id: str, *, after_id: str | None, oldest_first: bool, only_ended: bool, limit: int
) -> tuple[Select[Any], Select[Any]]:
    """Select the ids of batches and of single jobs, which are merged into one page. Batches are not filtered by state,
    because only their items have one."""

    def page_of(table: Table) -> Select[Any]:
        id_ = table.c.id
        query = select(id_).where(table.c.tenant_id == tenant_id, table.c.cleared_at.is_(None))
        if after_id is not None:
            query = query.where(id_ > after_id if oldest_first else id_ < after_id)
        return query.order_by(id_ if oldest_first else id_.desc()).limit(limit)

    single_jobs = page_of(ai_jobs).where(ai_jobs.c.batch_id.is_(None))
    if only_ended:
        single_jobs = single_jobs.where(ai_jobs.c.completed_at.is_not(None))
    return page_of(batches), single_jobs


async def page(
    tx: Tx, tenant_id: str, *, after_id: str | None, oldest_first: bool, only_ended: bool, limit: int
) -> list[Unit]:
    """Return a page in order of id, which is the order of creation."""
    queries = page_queries(tenant_id, after_id=after_id, oldest_first=oldest_first, only_ended=only_ended, limit=limit)
    found = [
        Unit(id_, is_batch)
        for query, is_batch in zip(queries, (True, False), strict=True)
        for id_ in await tx.scalars(query)
    ]
    return sorted(found, reverse=not oldest_first)[:limit]


async def summaries(tx: Tx, tenant_id: str, batch_ids: Collection[str]) -> dict[str, BatchSummary]:
    return {row[0]: BatchSummary._make(row[1:]) for row in await tx.execute(summaries_query(tenant_id, batch_ids))}


def summaries_query(tenant_id: str, batch_ids: Collection[str]) -> Select[Any]:
    j = ai_jobs.c
    shared = func.min(j.workflow_id), func.min(j.effect_id), func.max(j.priority)
    times = func.min(j.started_at), func.max(j.completed_at)
    query = select(j.batch_id, *shared, *times).where(j.tenant_id.concat("") == tenant_id, j.batch_id.in_(batch_ids))
    return query.group_by(j.batch_id)


async def newest_errors(tx: Tx, tenant_id: str, batch_ids: Collection[str]) -> dict[str, str | None]:
    """Return the error of the last failed item of each batch."""
    j = ai_jobs.c
    place = func.row_number().over(partition_by=j.batch_id, order_by=j.completed_at.desc()).label("place")
    failed = (j.tenant_id == tenant_id) & j.batch_id.in_(batch_ids) & (j.status == JobStatus.FAILED)
    numbered = select(j.batch_id, j.error_message, place).where(failed).subquery()
    query = select(numbered.c.batch_id, numbered.c.error_message).where(numbered.c.place == 1)
    return {row.batch_id: row.error_message for row in await tx.execute(query)}


async def count_matching(
    tx: Tx,
    tenant_id: str,
    batch_ids: Collection[str],
    *,
    status_filter: StatusFilter | None,
    workflow_ids: Collection[int] | None,
    search: str | None,
) -> dict[str, int]:
    """Count the items of batches that match a filter, with the newest retry of each."""
    filters: dict[str, Any] = {"status_filter": status_filter, "workflow_ids": workflow_ids, "search": search}
    matching = list_query(tenant_id, **filters, only_newest=True, dialect=tx.dialect).order_by(None).limit(None)
    query = matching.with_only_columns(ai_jobs.c.batch_id, func.count().label("jobs")).group_by(ai_jobs.c.batch_id)
    rows = await tx.execute(query.where(ai_jobs.c.batch_id.in_(batch_ids)))
    return {row.batch_id: row.jobs for row in rows}


async def first_queued(tx: Tx, tenant_id: str, batch_ids: Collection[str]) -> dict[str, str]:
    """Return the first queued job of each batch."""
    j = ai_jobs.c
    queued = (j.tenant_id.concat("") == tenant_id) & j.batch_id.in_(batch_ids) & (j.status == JobStatus.QUEUED)
    query = select(j.batch_id, func.min(j.id).label("id")).where(queued).group_by(j.batch_id)
    return {row.batch_id: row.id for row in await tx.execute(query)}


async def first_items(tx: Tx, tenant_id: str, batch_ids: Collection[str], *, limit: int) -> list[BatchItem]:
    """Return the first items of each batch."""
    query = _items(tenant_id).where(ai_jobs.c.batch_id.in_(batch_ids), ai_jobs.c.item_no < limit)
    return [BatchItem._make(row) for row in await tx.execute(query.order_by(ai_jobs.c.item_no))]


async def items(
    tx: Tx, tenant_id: str, batch_id: str, *, status: str | None, after: int, limit: int
) -> Sequence[BatchItem]:
    query = _items(tenant_id).where(ai_jobs.c.batch_id == batch_id, ai_jobs.c.item_no > after)
    if status is not None:
        query = query.where(ai_jobs.c.status == status)
    return [BatchItem._make(row) for row in await tx.execute(query.order_by(ai_jobs.c.item_no).limit(limit))]


def _items(tenant_id: str) -> Select[Any]:
    retry = ai_jobs.alias("retry")
    # The batch has its own index. SQLite would otherwise scan all jobs of the tenant.
    own = ai_jobs.c.tenant_id.concat("") == tenant_id
    query = select(*(ai_jobs.c[name] for name in BatchItem._fields))
    return query.outerjoin(retry, retry.c.retry_of == ai_jobs.c.id).where(own, retry.c.id.is_(None))
