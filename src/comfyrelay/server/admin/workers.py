"""Workers. They register themselves: administrators neither create nor assign them."""

from typing import Annotated

from fastapi import Query, Response

from comfyrelay.domain.queue.states import Stage, WorkerState
from comfyrelay.domain.queue.worker_order import WorkerSort
from comfyrelay.protocol.admin import workers as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.auth import Admin
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Limit, NumberCursor, TextFilter, WorkerCursor, WorkerId, page_of

router = admin_router("/workers")
# A request for logs answers a parked poll, and a worker with a job sends heartbeats at least this often.
LOGS_WITHIN_SECONDS = 30.0
SORTS = f"{', '.join(WorkerSort)}; a leading `-` reverses the order"
Sort = Annotated[str, Query(pattern=f"^-?({'|'.join(WorkerSort)})$", description=SORTS)]


@router.get("", responses=error_responses(422))
async def list_workers(
    context: ContextOf,
    *,
    fleet: TextFilter = None,
    stage: Stage | None = None,
    state: WorkerState | None = None,
    search: TextFilter = None,
    sort: Sort = "name",
    limit: Limit = 50,
    cursor: WorkerCursor = None,
) -> Answer[wire.WorkerPage]:
    """List workers. `fleet` is the slug of a fleet. Each word of `search` must occur in an id, a name, a fleet, a GPU,
    a version or an assigned workflow. `counts` are by state and ignore the state filter."""
    page = await context.engine.workers.views.workers(
        fleet_slug=fleet,
        stage=stage,
        state=state,
        search=search,
        sort=WorkerSort(sort.removeprefix("-")),
        is_descending=sort.startswith("-"),
        cursor=cursor,
        limit=limit,
    )
    items = [wire.WorkerSummary.of(item, item.worker) for item in page.items]
    return Answer(data=wire.WorkerPage(items=items, next_cursor=page.next_cursor, counts=dict(page.counts)))


# A worker id may contain slashes, so it matches the rest of the path: longer paths come first.
@router.get("/{worker_id:path}/audit-logs", responses=error_responses(404, 422))
async def list_worker_audit_logs(
    worker_id: WorkerId, context: ContextOf, event: TextFilter = None, limit: Limit = 50, cursor: NumberCursor = None
) -> Answer[Page[wire.AuditEntry]]:
    """List the audit log of a worker, newest first. This also works after it has deregistered."""
    page = await context.engine.operations.inspection.audit_logs_of(worker_id, event=event, cursor=cursor, limit=limit)
    return page_of(page, wire.AuditEntry.of)


@router.get("/{worker_id:path}/logs", responses={202: {"model": Answer[wire.WorkerLogs]}, **error_responses(404, 422)})
async def worker_logs(worker_id: WorkerId, response: Response, context: ContextOf) -> Answer[wire.WorkerLogs]:
    """Get the last lines of a worker's log. The worker is asked to send them, and the response is 202 until they
    arrive. Poll every few seconds."""
    logs = await context.engine.workers.logs.read_last(worker_id)
    if logs.received_at is None:
        response.status_code = 202
    data = wire.WorkerLogs.of(logs, worker_id=worker_id, within_seconds=LOGS_WITHIN_SECONDS)
    return Answer(data=data, message="OK" if logs.received_at else "The log was requested from the worker.")


@router.get("/{worker_id:path}", responses=error_responses(404, 422))
async def get_worker(worker_id: WorkerId, context: ContextOf) -> Answer[wire.WorkerDetails]:
    """Get a worker with the workflows of its fleet, its blocks, and its reported capabilities."""
    return Answer(data=await _worker(context, worker_id))


@router.post("/{worker_id:path}/approve", responses=error_responses(404, 422))
async def approve_worker(worker_id: WorkerId, context: ContextOf, admin: Admin) -> Answer[wire.WorkerDetails]:
    """Approve a revoked worker again."""
    await context.engine.workers.workers.set_approved(worker_id, is_approved=True, by=admin.id)
    context.forget_worker(worker_id)
    return Answer(data=await _worker(context, worker_id), message="Approved.")


@router.post("/{worker_id:path}/revoke", responses=error_responses(404, 422))
async def revoke_worker(worker_id: WorkerId, context: ContextOf, admin: Admin) -> Answer[wire.WorkerDetails]:
    """Revoke a worker. Its leases are requeued without penalty, and its later reports are refused."""
    await context.engine.workers.workers.set_approved(worker_id, is_approved=False, by=admin.id)
    context.forget_worker(worker_id)
    return Answer(data=await _worker(context, worker_id), message="Revoked.")


@router.post("/{worker_id:path}/drain", responses=error_responses(404, 422))
async def drain_worker(worker_id: WorkerId, context: ContextOf, admin: Admin) -> Answer[wire.WorkerDetails]:
    """Let a worker finish its jobs, and give it no new jobs."""
    await context.engine.workers.workers.set_draining(worker_id, is_draining=True, by=admin.id)
    return Answer(data=await _worker(context, worker_id), message="Draining.")


@router.post("/{worker_id:path}/undrain", responses=error_responses(404, 422))
async def undrain_worker(worker_id: WorkerId, context: ContextOf, admin: Admin) -> Answer[wire.WorkerDetails]:
    """Give a draining worker new jobs again."""
    await context.engine.workers.workers.set_draining(worker_id, is_draining=False, by=admin.id)
    return Answer(data=await _worker(context, worker_id), message="No longer draining.")


@router.post("/{worker_id:path}/unblock", responses=error_responses(404, 422))
async def unblock_worker(
    worker_id: WorkerId, context: ContextOf, admin: Admin, body: wire.UnblockRequest | None = None
) -> Answer[wire.WorkerDetails]:
    """Remove a worker's block for one workflow, or all its blocks, so that it gets jobs of these workflows again."""
    workflow_hash = body.workflow_hash if body is not None else None
    pairs = await context.engine.workers.workers.unblock(worker_id, workflow_hash=workflow_hash, by=admin.id)
    return Answer(data=await _worker(context, worker_id), message="Unblocked." if pairs else "Nothing was blocked.")


@router.post("/{worker_id:path}/rotate-token", responses=error_responses(404, 422))
async def rotate_worker_token(worker_id: WorkerId, context: ContextOf, admin: Admin) -> Answer[wire.RotatedToken]:
    """Issue a new token for a worker. It is shown only once. The old token ends within 5 seconds."""
    token = await context.engine.workers.workers.rotate_token(worker_id, by=admin.id)
    context.forget_worker(worker_id)
    return Answer(data=wire.RotatedToken(worker_id=worker_id, token=token), message="The old token is no longer valid.")


async def _worker(context: Context, worker_id: str) -> wire.WorkerDetails:
    view = await context.engine.workers.views.worker(worker_id)
    return wire.WorkerDetails.of(
        view,
        view.summary,
        view.line,
        view.worker,
        blocks=[
            wire.WorkflowBlock.of(block, workflow_slug=view.slugs.get(block.workflow_hash)) for block in view.blocks
        ],
        missing_requirements=[
            wire.MissingForWorkflow.of(unmet, workflow_slug=view.slugs.get(unmet.workflow_hash))
            for unmet in view.missing_requirements
        ],
        loaded=[
            wire.LoadedWorkflow(workflow_hash=warm_hash_, workflow_slug=view.slugs.get(warm_hash_))
            for warm_hash_ in view.worker.warm_hashes or ()
        ],
    )
