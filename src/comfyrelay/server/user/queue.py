"""The queue: running, waiting and ended batches and single jobs."""

from typing import Annotated

from fastapi import Body

from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.protocol import jobs as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import Context, ContextOf
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
    """Hide ended jobs in the queue. Their outputs, values and logs are kept. A batch is hidden as a whole once all its
    items have ended with these statuses, and shown again when one of its items is retried."""
    clearing = context.engine.jobs.clearing
    found = await clearing.count(user.tenant_id)
    clear = clearing.count_chosen if body.dry_run else clearing.clear
    cleared = await clear(user.tenant_id, body.status)
    return Answer(data=wire.QueueCleared(found={**found}, cleared=cleared))


@router.get("/counts")
async def counts(context: ContextOf, user: CurrentUser) -> Answer[wire.QueueCounts]:
    """Count your jobs by status, and tell whether your queue is paused. Prefetched jobs count as waiting."""
    return await _counts(context, user, "OK")


@router.post("/pause", responses=error_responses(403, 422))
async def pause(
    context: ContextOf, user: CurrentUser, body: Annotated[wire.Pause | None, Body()] = None
) -> Answer[wire.QueueCounts]:
    """Pause your queue: no job starts until you resume it, including jobs that are added later. Running jobs finish;
    with `now` they are interrupted and return to the queue."""
    await context.engine.queue.pauses.pause(user.tenant_id, mode=(body or wire.Pause()).mode)
    return await _counts(context, user, None)


@router.post("/resume", responses=error_responses(403))
async def resume(context: ContextOf, user: CurrentUser) -> Answer[wire.QueueCounts]:
    """Resume your queue. Jobs and batches that you paused individually stay paused."""
    was_paused = await context.engine.queue.pauses.resume(user.tenant_id)
    return await _counts(context, user, "The queue is resumed." if was_paused else "The queue is not paused.")


async def _counts(context: Context, user: User, message: str | None) -> Answer[wire.QueueCounts]:
    """Return the counts. Without a `message`, the response describes the jobs that the paused queue holds."""
    found = wire.QueueCounts.of(await context.engine.jobs.overview.summary(user.tenant_id, limit=1))
    return Answer(data=found, message=message or found.pause_text or "OK")


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
