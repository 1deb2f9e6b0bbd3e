"""Manage the queue: search, cancel, retry and prioritize dispatches, and list bursts to Comfy Cloud."""

from typing import Annotated

from fastapi import Query

from comfyrelay.domain.queue.states import DispatchStatus, Stage
from comfyrelay.domain.records.jobs import DispatchFilter
from comfyrelay.domain.records.workers import BurstRecord
from comfyrelay.protocol.admin import dispatches as wire
from comfyrelay.protocol.admin.workers import AuditEntry
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.fields import STORABLE
from comfyrelay.protocol.records import BulkResult, Waiting
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import (
    DispatchId,
    FirstDay,
    LastDay,
    Limit,
    NumberCursor,
    SlugFilter,
    TextFilter,
    page_of,
    period_of,
)
from comfyrelay.server.job_bodies import event_body, job_body
from comfyrelay.services.operations.inspection import DispatchView

router = admin_router()
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00]*$",
        description="the id of a job, or part of a worker id or of the last error",
    ),
]


@router.get("/dispatches", responses=error_responses(422))
async def list_dispatches(
    context: ContextOf,
    *,
    status: DispatchStatus | None = None,
    stage: Stage | None = None,
    workflow: TextFilter = None,
    tenant: TextFilter = None,
    worker: TextFilter = None,
    batch: TextFilter = None,
    effect: SlugFilter = None,
    user: Annotated[str | None, Query(max_length=320, pattern=STORABLE, description="an email address")] = None,
    search: Search = None,
    first: FirstDay = None,
    last: LastDay = None,
    limit: Limit = 50,
    cursor: NumberCursor = None,
) -> Answer[Page[wire.DispatchSummary]]:
    """List the queue, newest first. With filters, a page may have fewer than `limit` items and still have a cursor."""
    begins, ends = period_of(first, last)
    filter_ = DispatchFilter(
        status=status,
        stage=stage,
        tenant_id=tenant,
        worker_id=worker,
        batch_id=batch,
        search=search,
        begins=begins,
        ends=ends,
    )
    page = await context.engine.operations.inspection.dispatches(
        filter_, workflow_slug=workflow, effect_slug=effect, email=user, cursor=cursor, limit=limit
    )
    return page_of(page, _body)


@router.get("/dispatches/{dispatch_id}", responses=error_responses(404, 422))
async def get_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.DispatchSummary]:
    return Answer(data=_body(await context.engine.operations.inspection.dispatch(dispatch_id)))


@router.post("/dispatches/{dispatch_id}/cancel", responses=error_responses(404, 409, 422))
async def cancel_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.DispatchSummary]:
    """Cancel a job. A waiting job is canceled at once. For a running job, its worker is asked to stop."""
    view = await context.engine.operations.inspection.cancel(dispatch_id)
    message = "Canceled." if view.dispatch.is_terminal else "The worker gets a stop request."
    return Answer(data=_body(view), message=message)


@router.post("/dispatches/{dispatch_id}/retry", responses=error_responses(404, 409, 422, 429))
async def retry_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.Retried]:
    """Retry a failed or canceled job as a new job. Its tenant pays for it."""
    retried = await context.engine.operations.inspection.retry(dispatch_id)
    data = wire.Retried(
        job_id=retried.job.id,
        retry_of=retried.job.retry_of or "",
        dispatch=_body(retried.dispatch) if retried.dispatch else None,
    )
    return Answer(data=data, message="Submitted again.")


@router.get("/dispatches/{dispatch_id}/job", responses=error_responses(404, 422))
async def get_job(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.SupportJob]:
    """Get a job as its customer sees it, with its files and the details that only operators see."""
    found = await context.engine.operations.support.job(dispatch_id)
    job = job_body(found.view)
    events = [event_body(event) for event in found.events]
    return Answer(data=wire.SupportJob.of(found, job=job, error_detail=found.view.job.error_detail, events=events))


@router.post("/dispatches/{dispatch_id}/refund", responses=error_responses(404, 409, 422))
async def refund_dispatch(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.Refunded]:
    """Refund the price of an ended job. A job is refunded at most once: a repeated request changes nothing."""
    tokens = await context.engine.operations.support.refund(dispatch_id)
    return Answer(data=wire.Refunded(tokens=tokens), message=f"Refunded {tokens} tokens.")


@router.post("/dispatches/{dispatch_id}/run-free", responses=error_responses(404, 409, 422))
async def run_free(dispatch_id: DispatchId, context: ContextOf) -> Answer[wire.RunFree]:
    """Run an ended job again for its customer as a new job, at no cost."""
    job = await context.engine.operations.support.run_free(dispatch_id)
    return Answer(data=wire.RunFree(job_id=job.id), message="Submitted again.")


@router.post("/dispatches/bulk", responses=error_responses(422))
async def change_dispatches(body: wire.DispatchBulk, context: ContextOf) -> Answer[BulkResult]:
    """Cancel, retry, refund or rerun many jobs. `refused` names the jobs that did not change."""
    return Answer(data=await context.engine.operations.support.change(body.action, body.ids))


@router.post("/dispatches/{dispatch_id}/priority", responses=error_responses(404, 409, 422))
async def set_priority(
    dispatch_id: DispatchId, body: wire.NewPriority, context: ContextOf
) -> Answer[wire.DispatchSummary]:
    """Change the priority of a job. Higher priorities run first."""
    view = await context.engine.operations.inspection.set_priority(dispatch_id, body.priority)
    return Answer(data=_body(view), message="Changed.")


@router.get("/dispatches/{dispatch_id}/waiting", responses=error_responses(404, 422))
async def why_waiting(dispatch_id: DispatchId, context: ContextOf) -> Answer[Waiting]:
    """Explain why a job is waiting."""
    return Answer(data=await context.engine.operations.inspection.waiting(dispatch_id))


@router.get("/dispatches/{dispatch_id}/audit", responses=error_responses(404, 422))
async def audit_dispatch(
    dispatch_id: DispatchId, context: ContextOf, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[wire.DispatchAudit]:
    """Get the queue history of a job, newest first: its attempts on all workers and its audit log."""
    audit = await context.engine.operations.inspection.audit_of(dispatch_id, cursor=cursor, limit=limit)
    entries = page_of(audit.entries, AuditEntry.of).data
    return Answer(data=wire.DispatchAudit(attempts=list(audit.attempts), entries=entries))


@router.get("/bursts", responses=error_responses(422))
async def list_bursts(
    context: ContextOf, workflow: TextFilter = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.Burst]]:
    """List jobs that ran on Comfy Cloud because they would have waited too long, newest first, with their cost."""
    page = await context.engine.autoscaling.bursting.page(workflow_slug=workflow, cursor=cursor, limit=limit)
    return page_of(page, _burst)


def _burst(row: tuple[BurstRecord, str]) -> wire.Burst:
    burst, slug = row
    return wire.Burst.of(burst, workflow_slug=slug)


def _body(view: DispatchView) -> wire.DispatchSummary:
    return wire.DispatchSummary.of(view, view.dispatch, job_id=view.dispatch.tenant_job_id)
