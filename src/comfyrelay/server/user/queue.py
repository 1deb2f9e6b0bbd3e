"""The queue: running, waiting and ended batches and single jobs."""

from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.protocol import jobs as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import (
    Cursor,
    IdInPath,
    Limit,
    PositionCursor,
    SearchText,
    SlugFilter,
    plain_page,
    user_router,
)
from comfyrelay.services.jobs.views.units import QueueSort, UnitFilter

router = user_router("/api/queue", "queue")


@router.get("", responses=error_responses(422))
async def queue(
    *,
    context: ContextOf,
    user: CurrentUser,
    status: UnitStatus | None = None,
    workflow: SlugFilter = None,
    q: SearchText = None,
    sort: QueueSort = QueueSort.QUEUE,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.QueueEntry]]:
    """List your batches and single jobs: first the running ones, then the waiting ones in queue order, then the ended
    ones, newest first; or all by creation time."""
    filter_ = UnitFilter(status=status, workflow=workflow, search=q)
    page = await context.engine.jobs.units.page(user.tenant_id, filter_, sort=sort, cursor=cursor, limit=limit)
    return plain_page(page)


@router.post("/clear", responses=error_responses(403, 422))
async def clear(body: wire.ClearQueue, context: ContextOf, user: CurrentUser) -> Answer[wire.QueueCleared]:
    """Hide ended jobs in the queue. Their outputs, values and logs stay. A batch is hidden as a whole once it has
    ended with these statuses only, and shown again when one of its items is retried."""
    clearing = context.engine.jobs.clearing
    found = await clearing.count(user.tenant_id)
    clear = clearing.count_chosen if body.dry_run else clearing.clear
    cleared = await clear(user.tenant_id, body.status)
    return Answer(data=wire.QueueCleared(found={**found}, cleared=cleared))


@router.get("/counts")
async def counts(context: ContextOf, user: CurrentUser) -> Answer[wire.QueueCounts]:
    """Count your jobs by status. Prefetched jobs count as waiting."""
    return Answer(data=wire.QueueCounts.of(await context.engine.jobs.overview.summary(user.tenant_id, limit=1)))


@router.get("/{batch_id}/items", responses=error_responses(404, 422))
async def items(
    *,
    batch_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    status: JobStatus | None = None,
    limit: Limit = 200,
    cursor: PositionCursor = None,
) -> Answer[Page[wire.QueueItem]]:
    """List the items of a batch in order, each with its newest attempt."""
    page = await context.engine.jobs.units.items(user.tenant_id, batch_id, status=status, after=cursor, limit=limit)
    return plain_page(page)
