"""The queue: search dispatches, and cancel, retry or prioritise one."""

from typing import Annotated

from fastapi import Query

from comfyrelay.domain.queue.states import DispatchStatus, Stage
from comfyrelay.domain.records.jobs import DispatchFilter
from comfyrelay.protocol.admin import dispatches as wire
from comfyrelay.protocol.admin.workers import AuditEntry
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.records import Waiting
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import AnyId, DispatchId, Limit, NumberCursor
from comfyrelay.server.http.problems import may_answer
from comfyrelay.services.operations.inspection import DispatchView

router = admin_router("/dispatches")
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00]*$",
        description="the id of a job, or part of a worker's id or of the last error",
    ),
]


@router.get("", responses=may_answer(422))
async def list_dispatches(
    context: ContextOf,
    *,
    status: DispatchStatus | None = None,
    stage: Stage | None = None,
    workflow: AnyId = None,
    tenant: AnyId = None,
    worker: AnyId = None,
    batch: AnyId = None,
    search: Search = None,
    limit: Limit = 50,
    cursor: NumberCursor = None,
) -> Answer[Page[wire.DispatchSummary]]:
    """The queue, newest first. With a search, a page may be short although there are more: use its cursor."""
    wanted = DispatchFilter(
        status=status, stage=stage, tenant_id=tenant, worker_id=worker, batch_id=batch, search=search
    )
    page = await context.engine.operations.inspection.dispatches(
        wanted, workflow_slug=workflow, cursor=cursor, limit=limit
    )
    return page_of(page, _body)


@router.get("/{dispatch_id}", responses=may_answer(404, 422))
async def get_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.DispatchSummary]:
    return Answer(data=_body(await context.engine.operations.inspection.dispatch(dispatch_id)))


@router.post("/{dispatch_id}/cancel", responses=may_answer(404, 409, 422))
async def cancel_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.DispatchSummary]:
    """Cancel a job: at once if it waits, or by a stop request to its worker if it runs."""
    view = await context.engine.operations.inspection.cancel(dispatch_id)
    done = "Canceled." if view.dispatch.is_terminal else "The worker gets a stop request."
    return Answer(data=_body(view), message=done)


@router.post("/{dispatch_id}/retry", responses=may_answer(404, 409, 422, 429))
async def retry_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.Retried]:
    """Retry a failed or canceled job, as a new job of its tenant, which pays for it."""
    retried = await context.engine.operations.inspection.retry(dispatch_id)
    data = wire.Retried(
        job_id=retried.job.id,
        retry_of=retried.job.retry_of or "",
        dispatch=_body(retried.dispatch) if retried.dispatch else None,
    )
    return Answer(data=data, message="Submitted again.")


@router.post("/{dispatch_id}/priority", responses=may_answer(404, 409, 422))
async def set_priority(
    dispatch_id: DispatchId, body: wire.NewPriority, context: ContextOf
) -> Answer[wire.DispatchSummary]:
    """Change the priority of a job; higher runs first."""
    view = await context.engine.operations.inspection.set_priority(dispatch_id, body.priority)
    return Answer(data=_body(view), message="Changed.")


@router.get("/{dispatch_id}/waiting", responses=may_answer(404, 422))
async def why_waiting(dispatch_id: DispatchId, context: ContextOf) -> Answer[Waiting]:
    """Why a job is waiting."""
    return Answer(data=await context.engine.operations.inspection.waiting(dispatch_id))


@router.get("/{dispatch_id}/audit", responses=may_answer(404, 422))
async def audit_dispatch(
    dispatch_id: DispatchId, context: ContextOf, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[wire.DispatchAudit]:
    """The history of a job in the queue, newest first: its attempts on all workers, and its audit log."""
    found = await context.engine.operations.inspection.audit_of(dispatch_id, cursor=cursor, limit=limit)
    entries = page_of(found.entries, AuditEntry.of).data
    return Answer(data=wire.DispatchAudit(attempts=list(found.attempts), entries=entries))


def _body(view: DispatchView) -> wire.DispatchSummary:
    return wire.DispatchSummary.of(view, view.dispatch, job_id=view.dispatch.tenant_job_id)
