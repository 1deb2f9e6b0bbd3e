"""Jobs: submit, list, and control them."""

from typing import Annotated, Any, Literal

import structlog
from fastapi import Body, Path, Query, Request, Response

from comfyrelay.domain.outputs import MAX_OUTPUT_FILES
from comfyrelay.domain.queue.ordering import MoveTo, NextTo
from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import NotFound
from comfyrelay.protocol import jobs as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.fields import ID
from comfyrelay.protocol.prices import JobPrice, PriceRequest
from comfyrelay.protocol.records import BulkResult
from comfyrelay.protocol.uploads import File
from comfyrelay.protocol.user import Deleted
from comfyrelay.server.http.auth import CurrentUser, authenticate_user
from comfyrelay.server.http.bodies import large_body
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.fast_routes import fast
from comfyrelay.server.http.guests import is_guest, refuse_urls_of_guest
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import (
    Cursor,
    IdInPath,
    Limit,
    NumberCursor,
    SearchText,
    SlugFilter,
    page_of,
    user_router,
)
from comfyrelay.server.job_bodies import job_body
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest, chosen_stage
from comfyrelay.services.jobs.views.jobs import JobView

StatusFilter = Literal["queued", "processing", "completed", "failed", "canceled", "paused", "running", "waiting"]
UNIT_STATUSES = ("running", "waiting")
router = user_router("/api/ai-jobs", "jobs")


@router.post(
    "",
    status_code=201,
    responses={
        200: {"description": "The existing job of this idempotency key", "model": Answer[wire.Job]},
        **error_responses(403, 404, 409, 422, 429),
    },
)
@fast
async def submit(
    body: wire.NewJob, request: Request, response: Response, context: ContextOf, user: CurrentUser
) -> Answer[wire.Job]:
    """Submit a job. An idempotency key submits only one job: a repeated request returns it with 200."""
    refuse_urls_of_guest(request, body.webhook_url)
    wanted = JobRequest(
        **submission(user, body),
        idempotency_key=body.idempotency_key,
        item=ItemRequest(**body.fields(wire.Item)),
        expected_tokens=body.expected_tokens,
        is_guest=is_guest(request),
    )
    submitted = await context.engine.jobs.submit.submit_once(wanted)
    structlog.contextvars.bind_contextvars(job_id=submitted.job.id)
    if submitted.is_new:
        # All data of a new job is known without a query.
        return Answer(data=job_body(JobView(job=submitted.job, seed=submitted.seed)), message="Submitted.")
    response.status_code = 200
    return await _answer(context, submitted.job, "Already submitted.")


@router.post("/price", responses=error_responses(403, 404, 409, 422))
async def find_price(body: PriceRequest, context: ContextOf, user: CurrentUser) -> Answer[JobPrice]:
    """Get the price of a job with these inputs, which the server measures. Send it as `expected_tokens`."""
    request = JobRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        idempotency_key="price",
        effect_id=body.effect_id,
        workflow_slug=body.workflow_slug,
        item=ItemRequest(input_payload=body.input_payload, input_file_id=body.input_file_id, video_id=body.video_id),
    )
    return Answer(data=JobPrice(tokens=await context.engine.jobs.submit.find_price(request)))


@router.get("", responses=error_responses(422))
async def jobs(
    *,
    context: ContextOf,
    user: CurrentUser,
    status: StatusFilter | None = None,
    batch_id: Annotated[str | None, Query(max_length=64, pattern=ID)] = None,
    no_batch: Annotated[bool, Query(description="only jobs without a batch")] = False,
    expired: Annotated[bool, Query(description="only jobs with expired outputs")] = False,
    workflow: SlugFilter = None,
    q: SearchText = None,
    sort: Literal["newest", "oldest"] = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.Job]]:
    """List your jobs, newest first by default, without wait reasons. `running` is another name for `processing`, and
    `waiting` for `queued`. A prefetched job is queued."""
    page = await context.engine.jobs.views.jobs(
        user.tenant_id,
        status=status and (UnitStatus(status) if status in UNIT_STATUSES else JobStatus(status)),
        batch_id=batch_id,
        no_batch=no_batch,
        expired=expired,
        workflow=workflow,
        search=q,
        oldest_first=sort == "oldest",
        after_id=cursor,
        limit=limit,
    )
    return page_of(page, job_body)


@router.post("/bulk", responses=error_responses(403, 409, 422))
@large_body(authenticate_user)
async def bulk(body: wire.BulkRequest, context: ContextOf, user: CurrentUser) -> Answer[BulkResult]:
    """Apply an action to many jobs, by id or by filter."""
    if body.dry_run:
        return Answer(data=await context.engine.jobs.bulk.count(user.tenant_id, ids=body.ids, among=body.filter))
    done = await context.engine.jobs.bulk.run(
        user.tenant_id,
        body.action,
        ids=body.ids,
        among=body.filter,
        mode=body.mode,
        priority=body.priority or 0,
        to=MoveTo(body.to or MoveTo.TOP),
        keep_files=body.keep_files,
        as_of=body.as_of,
    )
    return Answer(data=done)


@router.get("/{job_id}", responses=error_responses(404, 422))
async def job(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Job]:
    """Get a job with its progress, wait reason, and outputs with temporary URLs."""
    return Answer(data=job_body(await context.engine.jobs.views.job(user.tenant_id, job_id)))


@router.delete("/{job_id}", responses=error_responses(403, 404, 409, 422))
async def delete_job(
    job_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    keep_files: Annotated[bool, Query(description="on a desk: keep its files in the output folder")] = False,
) -> Answer[Deleted]:
    """Delete an ended job with its log and outputs; on a desk, also its files in the output folder. The ledger is not
    changed."""
    files = await context.engine.jobs.removal.remove_job(user.tenant_id, job_id, keep_files=keep_files)
    removed = f", with {', '.join(files.removed)}" if files.removed else ""
    remaining = f" Not deleted: {'; '.join(files.not_deleted)}." if files.not_deleted else ""
    return Answer(data=Deleted(id=job_id), message=f"Deleted{removed}.{remaining}")


@router.post("/{job_id}/again", status_code=201, responses=error_responses(403, 404, 409, 422, 429))
async def run_again(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[wire.JobRetry | None, Body()] = None
) -> Answer[wire.Job]:
    """Run an ended job again as a new job, even if it completed."""
    made = await context.engine.jobs.submit.run_again(user.tenant_id, job_id, **dict(body or wire.JobRetry()))
    structlog.contextvars.bind_contextvars(job_id=made.id)
    return await _answer(context, made, "Submitted again.")


@router.post("/{job_id}/outputs/{number}/as-input", status_code=201, responses=error_responses(403, 404, 409, 422))
async def output_as_input(
    job_id: IdInPath,
    number: Annotated[int, Path(ge=1, le=MAX_OUTPUT_FILES, description="the number of the output, starting at 1")],
    request: Request,
    context: ContextOf,
    user: CurrentUser,
) -> Answer[File]:
    """Copy an output to a file that jobs can use as input. The copy is kept when this job is deleted."""
    outputs = (await context.engine.jobs.views.job(user.tenant_id, job_id)).outputs
    output = next((output for output in outputs if output.number == number), None)
    if output is None:
        raise NotFound(f"This job has no output {number}.")
    copied = await context.engine.jobs.uploads.copy_output(
        user, output.file, output.filename, is_guest=is_guest(request)
    )
    return Answer(data=File.of(copied))


@router.get("/{job_id}/logs", responses=error_responses(404, 422))
async def logs(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, limit: Limit = 200, cursor: NumberCursor = None
) -> Answer[Page[wire.LogLine]]:
    """List the log lines of a job, oldest first. Only administrators can read the log of a job of an effect."""
    page = await context.engine.jobs.views.logs(
        user.tenant_id, job_id, after_id=cursor or 0, limit=limit, is_admin=user.is_admin
    )
    return page_of(page, wire.LogLine.of)


@router.post("/{job_id}/cancel", responses=error_responses(403, 404, 409, 422))
async def cancel(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Job]:
    """Cancel a job. The worker of a running job gets a stop request, but the job may complete before that."""
    found = await context.engine.queue.control.cancel(user.tenant_id, job_id)
    return await _answer(context, found, _canceled(found))


@router.post("/{job_id}/retry", responses=error_responses(403, 404, 409, 422, 429))
async def retry(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[wire.JobRetry | None, Body()] = None
) -> Answer[wire.Job]:
    """Retry a failed or canceled job as a new job."""
    made = await context.engine.jobs.submit.retry_once(user.tenant_id, job_id, **dict(body or wire.JobRetry()))
    structlog.contextvars.bind_contextvars(job_id=made.job.id)
    if made.is_new:
        return await _answer(context, made.job, "Submitted again.")
    return await _answer(
        context, made.job, f"The job was already retried as {made.job.id}, which is {made.job.status}."
    )


@router.post("/{job_id}/pause", responses=error_responses(403, 404, 409, 422))
async def pause(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[wire.Pause | None, Body()] = None
) -> Answer[wire.Job]:
    """Pause a job. A running job finishes; with `now` it is interrupted and requeued."""
    found = await context.engine.queue.control.pause(user.tenant_id, job_id, mode=(body or wire.Pause()).mode)
    return await _answer(context, found, f"The job is {found.status}.")


@router.post("/{job_id}/resume", responses=error_responses(403, 404, 409, 422))
async def resume(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Job]:
    """Resume a paused job."""
    found = await context.engine.queue.control.resume(user.tenant_id, job_id)
    return await _answer(context, found, f"The job is {found.status}.")


@router.post("/{job_id}/move", responses=error_responses(403, 404, 409, 422))
async def move(job_id: IdInPath, body: wire.MoveRequest, context: ContextOf, user: CurrentUser) -> Answer[wire.Job]:
    """Move a waiting job among your own jobs of the same priority."""
    message = move_message(has_moved=await context.engine.queue.control.move(user.tenant_id, job_id, move_target(body)))
    return Answer(data=job_body(await context.engine.jobs.views.job(user.tenant_id, job_id)), message=message)


async def _answer(context: Context, found: JobRecord, message: str) -> Answer[wire.Job]:
    return Answer(data=job_body(await context.engine.jobs.views.view_job(found)), message=message)


def _canceled(found: JobRecord) -> str:
    if found.status == JobStatus.CANCELED:
        return "Canceled. It will not run. It can be retried."
    return "The worker gets a stop request. The job will be canceled, unless it completes before that."


def submission(user: User, body: wire.Submission) -> dict[str, Any]:
    """Return the fields that job and batch requests share."""
    return {
        **body.fields(wire.Submission, but=("webhook_url", "stage")),
        "webhook_url": None if body.webhook_url is None else str(body.webhook_url),
        "stage": chosen_stage(user, body.stage),
        "tenant_id": user.tenant_id,
        "user_id": user.id,
        "shows_workers": user.is_admin,
    }


def move_target(body: wire.MoveRequest) -> MoveTo | NextTo:
    if body.to is not None:
        return body.to
    id_ = body.before or body.after
    assert id_ is not None
    return NextTo(id=id_, is_after=body.after is not None)


def move_message(*, has_moved: bool) -> str:
    return "Moved." if has_moved else "It is already there. A move changes the order of jobs with the same priority."
