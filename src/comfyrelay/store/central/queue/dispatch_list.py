"""Filtered and paginated lists of dispatches for operators."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Subquery, or_, select

from comfyrelay.domain.queue.states import DispatchStatus, Provider, Stage
from comfyrelay.domain.records.jobs import DispatchFilter, ListedDispatch
from comfyrelay.store.central.queue.dispatches import COLUMNS, from_row, leased_by
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import MAX_SCANNED, Loose, newest_first
from comfyrelay.store.types import sql_literal

MAX_SEARCHED = 4_000


async def page(
    tx: Tx, wanted: DispatchFilter, *, before_id: int | None, limit: int
) -> tuple[list[ListedDispatch], int | None]:
    """Return a page, newest first, and the id of the next page."""
    query = _found_by_index(wanted)
    if before_id is not None:
        query = query.where(d.c.id < before_id)
    if wanted.worker_id is not None and not _holds_now(wanted):
        had = _had_by(wanted.worker_id, before_id)
        query = query.join(had, had.c.dispatch_id == d.c.id)
    # a search in leases takes longer per row
    most = MAX_SCANNED if wanted.search is None else MAX_SEARCHED
    rows, before = await newest_first(tx, query, d.c.id, limit=limit, loose=_tried_on_each(wanted), most=most)
    return [_listed(row) for row in rows], before


async def get(tx: Tx, dispatch_id: int) -> ListedDispatch | None:
    row = (await tx.execute(select(*COLUMNS, d.c.progress).where(d.c.id == dispatch_id))).one_or_none()
    return _listed(row) if row else None


async def last_workers(tx: Tx, dispatch_ids: Iterable[int]) -> dict[int, str]:
    """Return the worker of the newest lease of each dispatch."""
    leases = dispatch_leases
    query = select(leases.c.dispatch_id, leases.c.worker_id).where(leases.c.dispatch_id.in_(set(dispatch_ids)))
    return {row.dispatch_id: row.worker_id for row in await tx.execute(query.order_by(leases.c.epoch))}


async def has_unfinished(tx: Tx, workflow_id: int) -> bool:
    """Whether a dispatch of the workflow is queued, leased or paused. Each state has its own index."""
    of_workflow = d.c.workflow_id == workflow_id
    everywhere = d.c.stage.in_([sql_literal(each) for each in Stage]) & d.c.provider.in_(
        [sql_literal(each) for each in Provider]
    )
    for condition in (
        (d.c.status == sql_literal(DispatchStatus.QUEUED)) & everywhere,
        d.c.status == sql_literal(DispatchStatus.LEASED),
        d.c.status == sql_literal(DispatchStatus.PAUSED),
    ):
        if (await tx.execute(select(d.c.id).where(of_workflow, condition).limit(1))).first() is not None:
            return True
    return False


def _listed(row: Any) -> ListedDispatch:
    return ListedDispatch(dispatch=from_row(row), progress=row.progress)


def _found_by_index(wanted: DispatchFilter) -> Select[Any]:
    query = select(*COLUMNS, d.c.progress)
    if wanted.tenant_id is not None:
        query = query.where(d.c.tenant_id == wanted.tenant_id)
    if wanted.batch_id is not None:
        query = query.where(d.c.batch_id == wanted.batch_id)
    if _holds_now(wanted):
        return query.where(leased_by(str(wanted.worker_id)))
    if wanted.status is not None and wanted.status is not DispatchStatus.COMPLETED:
        query = query.where(d.c.status == sql_literal(wanted.status))
    if _is_job_id(wanted.search):
        query = query.where(d.c.tenant_job_id == wanted.search)
    return query


def _had_by(worker_id: str, before_id: int | None) -> Subquery:
    """Dispatches that a worker has leased, newest first, in index order."""
    had = dispatch_leases.c.dispatch_id
    query = select(had).where(dispatch_leases.c.worker_id == worker_id)
    if before_id is not None:
        query = query.where(had < before_id)
    # OFFSET keeps the subquery separate, so only the page is read
    return query.distinct().order_by(had.desc()).offset(0).subquery("had")


def _tried_on_each(wanted: DispatchFilter) -> Loose | None:
    """Return the conditions without an index."""

    def conditions(c: Any) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if wanted.status is DispatchStatus.COMPLETED:
            found.append(c.status == sql_literal(wanted.status))
        if wanted.stage is not None:
            found.append(c.stage == sql_literal(wanted.stage))
        if wanted.workflow_id is not None:
            found.append(c.workflow_id == wanted.workflow_id)
        if wanted.search is not None and not _is_job_id(wanted.search):
            by_worker = dispatch_leases.c.worker_id.icontains(wanted.search, autoescape=True)
            in_error = c.last_error.icontains(wanted.search, autoescape=True)
            found.append(or_(c.tenant_job_id == wanted.search, in_error, _was_leased_by(c, by_worker)))
        return found

    return conditions if conditions(d.c) else None


def _was_leased_by(c: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    # OFFSET forces a lookup per row; the planner would otherwise scan all leases
    leases = select(dispatch_leases.c.epoch).where(dispatch_leases.c.dispatch_id == c.id, condition)
    return leases.offset(0).exists()


def _holds_now(wanted: DispatchFilter) -> bool:
    return wanted.worker_id is not None and wanted.status is DispatchStatus.LEASED


def _is_job_id(search: str | None) -> bool:
    try:
        return search is not None and str(UUID(search)) == search
    except ValueError:
        return False
