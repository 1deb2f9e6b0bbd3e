"""The dispatch queue as an operator looks at it: filtered, searched, and page by page."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Subquery, or_, select

from comfyrelay.domain.queue.states import DispatchStatus, Provider, Stage
from comfyrelay.domain.records.jobs import DispatchFilter, ListedDispatch
from comfyrelay.store.central.queue.dispatches import COLUMNS, from_row, leased_by
from comfyrelay.store.central.tables import ai_job_dispatches as d
from comfyrelay.store.central.tables import dispatch_leases
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import MOST_SCANNED, Loose, newest_first
from comfyrelay.store.types import word

MOST_SEARCHED = 4_000


async def page(
    tx: Tx, wanted: DispatchFilter, *, before_id: int | None, limit: int
) -> tuple[list[ListedDispatch], int | None]:
    """The newest first, and the id to go on before."""
    query = _found_by_index(wanted)
    if before_id is not None:
        query = query.where(d.c.id < before_id)
    if wanted.worker_id is not None and not _holds_now(wanted):
        had = _had_by(wanted.worker_id, before_id)
        query = query.join(had, had.c.dispatch_id == d.c.id)
    # what is searched in leases, too, takes longer for each
    most = MOST_SCANNED if wanted.search is None else MOST_SEARCHED
    rows, before = await newest_first(tx, query, d.c.id, limit=limit, loose=_tried_on_each(wanted), most=most)
    return [_listed(row) for row in rows], before


async def get(tx: Tx, dispatch_id: int) -> ListedDispatch | None:
    row = (await tx.execute(select(*COLUMNS, d.c.progress).where(d.c.id == dispatch_id))).one_or_none()
    return _listed(row) if row else None


async def last_workers(tx: Tx, dispatch_ids: Iterable[int]) -> dict[int, str]:
    """Who held the newest lease of each."""
    leases = dispatch_leases
    query = select(leases.c.dispatch_id, leases.c.worker_id).where(leases.c.dispatch_id.in_(set(dispatch_ids)))
    return {row.dispatch_id: row.worker_id for row in await tx.execute(query.order_by(leases.c.epoch))}


async def has_unfinished(tx: Tx, workflow_id: int) -> bool:
    """Whether a dispatch of the workflow is queued, leased or paused; each is found through an index of its own."""
    of_workflow = d.c.workflow_id == workflow_id
    everywhere = d.c.stage.in_([word(each) for each in Stage]) & d.c.provider.in_([word(each) for each in Provider])
    for condition in (
        (d.c.status == word(DispatchStatus.QUEUED)) & everywhere,
        d.c.status == word(DispatchStatus.LEASED),
        d.c.status == word(DispatchStatus.PAUSED),
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
        query = query.where(d.c.status == word(wanted.status))
    if _is_job_id(wanted.search):
        query = query.where(d.c.tenant_job_id == wanted.search)
    return query


def _had_by(worker_id: str, before_id: int | None) -> Subquery:
    """What a worker was ever given, the newest first, in the order of an index."""
    had = dispatch_leases.c.dispatch_id
    query = select(had).where(dispatch_leases.c.worker_id == worker_id)
    if before_id is not None:
        query = query.where(had < before_id)
    # with an offset it is read by itself, and no further than the page goes
    return query.distinct().order_by(had.desc()).offset(0).subquery("had")


def _tried_on_each(wanted: DispatchFilter) -> Loose | None:
    """What no index serves; nothing when the index is enough."""

    def conditions(c: Any) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if wanted.status is DispatchStatus.COMPLETED:
            found.append(c.status == word(wanted.status))
        if wanted.stage is not None:
            found.append(c.stage == word(wanted.stage))
        if wanted.workflow_id is not None:
            found.append(c.workflow_id == wanted.workflow_id)
        if wanted.search is not None and not _is_job_id(wanted.search):
            by_worker = dispatch_leases.c.worker_id.icontains(wanted.search, autoescape=True)
            in_error = c.last_error.icontains(wanted.search, autoescape=True)
            found.append(or_(c.tenant_job_id == wanted.search, in_error, _was_leased_by(c, by_worker)))
        return found

    return conditions if conditions(d.c) else None


def _was_leased_by(c: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    # with an offset it is looked up for each: the planner would rather read all leases that there ever were, once
    leases = select(dispatch_leases.c.epoch).where(dispatch_leases.c.dispatch_id == c.id, condition)
    return leases.offset(0).exists()


def _holds_now(wanted: DispatchFilter) -> bool:
    return wanted.worker_id is not None and wanted.status is DispatchStatus.LEASED


def _is_job_id(search: str | None) -> bool:
    try:
        return search is not None and str(UUID(search)) == search
    except ValueError:
        return False
