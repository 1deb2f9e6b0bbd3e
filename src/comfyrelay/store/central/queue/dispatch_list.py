"""Filtered and paginated lists of dispatches for operators."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Subquery, or_, select

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.progress import with_estimate
from comfyrelay.domain.queue.states import DispatchStatus, Provider, Stage
from comfyrelay.domain.records.jobs import DispatchFilter, ListedDispatch
from comfyrelay.store.central.queue.dispatches import COLUMNS, leased_by
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import MAX_SCANNED, Conditions, in_period, newest_page
from comfyrelay.store.types import relay_now, sql_literal

MAX_SEARCHED = 4_000
_LISTED = (*COLUMNS, d.c.progress, d.c.expected_seconds, relay_now().label("now"))


async def page(
    tx: Tx, wanted: DispatchFilter, *, before_id: int | None, limit: int
) -> tuple[list[ListedDispatch], int | None]:
    """Return a page, newest first, and the id of the next page."""
    query = await in_period(tx, _indexed(wanted), d.c.id, d.c.created_at, begins=wanted.begins, ends=wanted.ends)
    if wanted.worker_id is not None and not _is_of_current_worker(wanted):
        leased = _leased_by(wanted.worker_id, before_id)
        query = query.join(leased, leased.c.dispatch_id == d.c.id)
    return await newest_page(
        tx,
        _listed,
        query,
        d.c.id,
        before=before_id,
        limit=limit,
        unindexed=_unindexed(wanted),
        # Searching leases takes longer per row.
        max_scanned=MAX_SCANNED if wanted.search is None else MAX_SEARCHED,
    )


async def get(tx: Tx, dispatch_id: int) -> ListedDispatch | None:
    return await tx.one_or_none(_listed, select(*_LISTED).where(d.c.id == dispatch_id))


async def last_workers(tx: Tx, dispatch_ids: Iterable[int]) -> dict[int, str]:
    """Return the worker of the newest lease of each dispatch."""
    leases = dispatch_leases
    query = select(leases.c.dispatch_id, leases.c.worker_id).where(leases.c.dispatch_id.in_(set(dispatch_ids)))
    return {row.dispatch_id: row.worker_id for row in await tx.execute(query.order_by(leases.c.epoch))}


async def has_unfinished(tx: Tx, workflow_id: int) -> bool:
    """Return whether a dispatch of the workflow is queued, leased or paused. Each state has its own index."""
    of_workflow = select(d.c.id).where(d.c.workflow_id == workflow_id).limit(1)
    # The queue index begins with the stage and the provider.
    stages, providers = ([sql_literal(value) for value in values] for values in (Stage, Provider))
    queued = of_workflow.where(
        d.c.status == sql_literal(DispatchStatus.QUEUED), d.c.stage.in_(stages), d.c.provider.in_(providers)
    )
    leased = of_workflow.where(d.c.status == sql_literal(DispatchStatus.LEASED))
    paused = of_workflow.where(d.c.status == sql_literal(DispatchStatus.PAUSED))
    return await tx.exists(queued) or await tx.exists(leased) or await tx.exists(paused)


def _listed(
    *, progress: Mapping[str, Any] | None, expected_seconds: float | None, now: datetime, **fields: Any
) -> ListedDispatch:
    dispatch = Dispatch(**fields)
    if dispatch.is_leased:
        progress = with_estimate(
            progress,
            is_prefetch=dispatch.is_prefetch,
            leased_at=dispatch.leased_at,
            expected_seconds=expected_seconds,
            now=now,
        )
    return ListedDispatch(dispatch=dispatch, progress=progress)


def _indexed(wanted: DispatchFilter) -> Select[Any]:
    """Return the query with the conditions that an index supports."""
    query = select(*_LISTED)
    if wanted.tenant_id is not None:
        query = query.where(d.c.tenant_id == wanted.tenant_id)
    if wanted.batch_id is not None:
        query = query.where(d.c.batch_id == wanted.batch_id)
    if _is_of_current_worker(wanted):
        return query.where(leased_by(str(wanted.worker_id)))
    if wanted.status is not None and wanted.status is not DispatchStatus.COMPLETED:
        query = query.where(d.c.status == sql_literal(wanted.status))
    if _is_job_id(wanted.search):
        query = query.where(d.c.tenant_job_id == wanted.search)
    return query


def _leased_by(worker_id: str, before_id: int | None) -> Subquery:
    """Return the dispatches that a worker has ever leased, newest first, in index order."""
    id_ = dispatch_leases.c.dispatch_id
    query = select(id_).where(dispatch_leases.c.worker_id == worker_id)
    if before_id is not None:
        query = query.where(id_ < before_id)
    # OFFSET keeps the subquery separate, so that only the page is read.
    return query.distinct().order_by(id_.desc()).offset(0).subquery("leased")


def _unindexed(wanted: DispatchFilter) -> Conditions | None:
    """Return the conditions without an index."""

    def conditions(c: Any) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if wanted.status is DispatchStatus.COMPLETED:
            found.append(c.status == sql_literal(wanted.status))
        if wanted.stage is not None:
            found.append(c.stage == sql_literal(wanted.stage))
        if wanted.workflow_id is not None:
            found.append(c.workflow_id == wanted.workflow_id)
        if wanted.effect_id is not None:
            found.append(c.effect_id == wanted.effect_id)
        if wanted.begins is not None:
            found.append(c.created_at >= wanted.begins)
        if wanted.ends is not None:
            found.append(c.created_at < wanted.ends)
        if wanted.search is not None and not _is_job_id(wanted.search):
            by_worker = dispatch_leases.c.worker_id.icontains(wanted.search, autoescape=True)
            in_error = c.last_error.icontains(wanted.search, autoescape=True)
            found.append(or_(c.tenant_job_id == wanted.search, in_error, _was_leased_by(c, by_worker)))
        return found

    return conditions if conditions(d.c) else None


def _was_leased_by(c: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    # OFFSET forces a lookup per row. The planner would otherwise scan all leases.
    leases = select(dispatch_leases.c.epoch).where(dispatch_leases.c.dispatch_id == c.id, condition)
    return leases.offset(0).exists()


def _is_of_current_worker(wanted: DispatchFilter) -> bool:
    """Return whether the filter selects only the current leases of a worker, not its past ones."""
    return wanted.worker_id is not None and wanted.status is DispatchStatus.LEASED


def _is_job_id(search: str | None) -> bool:
    try:
        return search is not None and str(UUID(search)) == search
    except ValueError:
        return False
