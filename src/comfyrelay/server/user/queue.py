"""The queue: running, waiting and ended batches and single jobs."""

from typing import Annotated

from fastapi import Query

from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.protocol import jobs as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.fields import STORABLE
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import plain_page
from comfyrelay.server.http.parameters import Cursor, IdInPath, Limit, NumberCursor, Words
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router
from comfyrelay.services.jobs.views.units import QueueSort, UnitFilter

router = Router(prefix="/api/queue", tags=["queue"], route_class=BodyRoute)


@router.get("", responses=may_answer(401, 422, 503))
async def queue(
    *,
    context: ContextOf,
    user: CurrentUser,
    status: UnitStatus | None = None,
    workflow: Annotated[str | None, Query(max_length=200, pattern=STORABLE, description="its slug")] = None,
    q: Words = None,
    sort: QueueSort = QueueSort.QUEUE,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.QueueEntry]]:
    """Your batches and single jobs: the running ones, the waiting ones in queue order, and the ended ones, newest
    first; or all by creation time."""
    wanted = UnitFilter(status=status, workflow=workflow, search=q)
    page = await context.engine.jobs.units.page(user.tenant_id, wanted, sort=sort, cursor=cursor, limit=limit)
    return plain_page(page)


@router.post("/clear", responses=may_answer(401, 403, 422, 503))
async def clear(body: wire.ClearQueue, context: ContextOf, user: CurrentUser) -> Answer[wire.QueueCleared]:
    """Hide ended jobs here. Outputs, values and logs stay, also in the gallery. A batch is hidden as a whole once it
    has ended, and shown again when some of it is retried."""
    found = await context.engine.jobs.clearing.count(user.tenant_id)
    cleared = 0 if body.dry_run else await context.engine.jobs.clearing.clear(user.tenant_id, body.status)
    return Answer(data=wire.QueueCleared(found={**found}, cleared=cleared))


@router.get("/counts", responses=may_answer(401, 503))
async def counts(context: ContextOf, user: CurrentUser) -> Answer[wire.QueueCounts]:
    """Your jobs by status; prefetched jobs count as waiting."""
    return Answer(data=wire.QueueCounts.of(await context.engine.jobs.overview.summary(user.tenant_id, limit=1)))


@router.get("/{batch_id}/items", responses=may_answer(401, 404, 422, 503))
async def items(
    *,
    batch_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    status: JobStatus | None = None,
    limit: Limit = 200,
    cursor: NumberCursor = None,
) -> Answer[Page[wire.QueueItem]]:
    """The items of a batch in order, each as its newest attempt."""
    page = await context.engine.jobs.units.items(user.tenant_id, batch_id, status=status, after=cursor, limit=limit)
    return plain_page(page)
