"""Batches: jobs that are submitted together and share a progress and actions."""

from typing import Annotated

from fastapi import Body, Response

from comfyrelay.domain.bulk import BatchAxis
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.pacing import paced
from comfyrelay.protocol import jobs as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.prices import BatchPrice, BatchPriceRequest
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, page_of, user_router
from comfyrelay.server.user.jobs import move_message, move_target, submission
from comfyrelay.services.jobs.batches import BatchRequest, BatchState
from comfyrelay.services.jobs.submission.requests import ItemRequest

router = user_router("/api/batches", "batches")


@router.post(
    "",
    status_code=201,
    responses={
        200: {"description": "The existing batch of this idempotency key", "model": Answer[wire.Batch]},
        **error_responses(403, 404, 409, 422, 429),
    },
)
@large_body(authenticate_user)
async def submit(body: wire.NewBatch, response: Response, context: ContextOf, user: CurrentUser) -> Answer[wire.Batch]:
    """Submit many jobs at once, all or none. An idempotency key submits only one batch."""
    request = BatchRequest(
        **submission(user, body),
        idempotency_key=body.idempotency_key or new_id(),
        items=[ItemRequest(**dict(item)) async for item in paced(body.items)],
        label=body.label,
        axes=[BatchAxis(**dict(axis)) for axis in body.axes],
        expected_tokens=body.expected_tokens,
    )
    state, is_new = await context.engine.jobs.batches.submit_once(request)
    if not is_new:
        response.status_code = 200
    return Answer(data=batch_body(state), message="Submitted." if is_new else "Already submitted.")


@router.post("/price", responses=error_responses(403, 404, 409, 422))
@large_body(authenticate_user)
async def find_prices(body: BatchPriceRequest, context: ContextOf, user: CurrentUser) -> Answer[BatchPrice]:
    """Get the price of a batch with these items. Send `tokens` as `expected_tokens`."""
    request = BatchRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        idempotency_key="price",
        effect_id=body.effect_id,
        workflow_slug=body.workflow_slug,
        items=[ItemRequest(**dict(item)) async for item in paced(body.items)],
    )
    prices = await context.engine.jobs.batches.find_prices(request)
    return Answer(data=BatchPrice(tokens=sum(prices), items=prices))


@router.get("", responses=error_responses(422))
async def batches(
    context: ContextOf, user: CurrentUser, limit: Limit = 50, cursor: Cursor = None
) -> Answer[Page[wire.Batch]]:
    """List your batches, newest first."""
    page = await context.engine.jobs.batches.page(user.tenant_id, before_id=cursor, limit=limit)
    return page_of(page, batch_body)


@router.get("/{batch_id}", responses=error_responses(404, 422))
async def batch(batch_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Batch]:
    """Get a batch with its items by status."""
    return await _answer(context, user, batch_id, "OK")


@router.get("/{batch_id}/grid", responses=error_responses(404, 422))
async def grid(batch_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.SweepGrid]:
    """Get the outputs of a sweep by its axes."""
    return Answer(data=wire.SweepGrid.of(await context.engine.jobs.batches.grid(user.tenant_id, batch_id)))


@router.post("/{batch_id}/pause", responses=error_responses(403, 404, 422))
async def pause(
    batch_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[wire.Pause | None, Body()] = None
) -> Answer[wire.Batch]:
    """Pause queued items. Running items finish; with `now` they are interrupted and requeued."""
    changed = await context.engine.queue.control.pause_batch(user.tenant_id, batch_id, mode=(body or wire.Pause()).mode)
    return await _answer(context, user, batch_id, _count(changed, "paused"))


@router.post("/{batch_id}/resume", responses=error_responses(403, 404, 409, 422, 429))
async def resume(batch_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Batch]:
    """Resume paused items. In a held batch, retry the failed items that caused the hold, as new jobs."""
    changed = await context.engine.jobs.batches.resume(user.tenant_id, batch_id)
    return await _answer(context, user, batch_id, _count(changed, "resumed"))


@router.post("/{batch_id}/cancel", responses=error_responses(403, 404, 422))
async def cancel(batch_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Batch]:
    """Cancel all items that have not ended. Workers get a stop request for running items."""
    changed = await context.engine.queue.control.cancel_batch(user.tenant_id, batch_id)
    return await _answer(context, user, batch_id, _count(changed, "canceled"))


@router.post("/{batch_id}/retry-failed", responses=error_responses(403, 404, 409, 422, 429))
async def retry_failed(
    batch_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[wire.Retry | None, Body()] = None
) -> Answer[wire.Batch]:
    """Retry the items whose newest attempt failed, as new jobs in the same batch."""
    new_seeds = (body or wire.Retry()).new_seeds
    made = await context.engine.jobs.batches.retry_failed(user.tenant_id, batch_id, new_seeds=new_seeds)
    return await _answer(context, user, batch_id, _count(made, "submitted again"))


@router.post("/{batch_id}/again", status_code=201, responses=error_responses(403, 404, 409, 422, 429))
async def run_again(
    batch_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[wire.Retry | None, Body()] = None
) -> Answer[wire.Batch]:
    """Run all items again, including completed ones, as a new batch."""
    state = await context.engine.jobs.batches.run_again(
        user.tenant_id, batch_id, new_seeds=(body or wire.Retry()).new_seeds
    )
    return Answer(data=batch_body(state), message="Submitted.")


@router.post("/{batch_id}/move", responses=error_responses(403, 404, 409, 422))
async def move(batch_id: IdInPath, body: wire.MoveRequest, context: ContextOf, user: CurrentUser) -> Answer[wire.Batch]:
    """Move the waiting items as a group among your own jobs."""
    has_moved = await context.engine.queue.control.move_batch(user.tenant_id, batch_id, move_target(body))
    return await _answer(context, user, batch_id, move_message(has_moved=has_moved))


async def _answer(context: Context, user: User, batch_id: str, message: str) -> Answer[wire.Batch]:
    return Answer(data=batch_body(await context.engine.jobs.batches.state(user.tenant_id, batch_id)), message=message)


def _count(count: int, what: str) -> str:
    return f"1 job {what}." if count == 1 else f"{count} jobs {what}."


def batch_body(state: BatchState) -> wire.Batch:
    return wire.Batch.of(state, counts={status: state.counts.get(status, 0) for status in JobStatus})
