"""Jobs: submitting them, seeing how far they are, and the verbs."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response, status

from comfyrelay.domain.records.jobs import Job
from comfyrelay.domain.states import JobStatus
from comfyrelay.server.base.answers import Answer, Page
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import Context, ContextOf
from comfyrelay.server.base.fields import STORABLE, Limit, NumberCursor
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.job_models import (
    BulkBody,
    BulkDone,
    JobBody,
    LogLineBody,
    Move,
    NewJobBody,
    OutputBody,
    Pause,
    RefusedBody,
    Retry,
    WaitingBody,
    told_of_move,
)
from comfyrelay.server.user.models import ID, Cursor, Deleted, IdInPath
from comfyrelay.services.jobs.bulk import BulkFilter
from comfyrelay.services.jobs.requests import Item, JobRequest, chosen_stage
from comfyrelay.services.jobs.views import JobView

__all__ = ["router"]

router = APIRouter(prefix="/api/ai-jobs", tags=["jobs"])


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    responses={
        200: {"description": "The job that this key made before", "model": Answer[JobBody]},
        **may_answer(401, 403, 404, 409, 422, 429, 503),
    },
)
async def submit(body: NewJobBody, response: Response, context: ContextOf, user: CurrentUser) -> Answer[JobBody]:
    """Submit a job, once per idempotency key: the same request again gives the same job, and 200."""
    request = JobRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        idempotency_key=body.idempotency_key,
        effect_id=body.effect_id,
        workflow_slug=body.workflow_slug,
        item=Item(
            input_payload=body.input_payload,
            input_file_id=body.input_file_id,
            video_id=body.video_id,
            label=body.label,
        ),
        priority=body.priority,
        webhook_url=body.webhook,
        stage=chosen_stage(user, body.stage),
    )
    submitted = await context.engine.jobs.submit.submit_once(request)
    if submitted.is_new:
        # nothing can be said of it yet that would be worth a query
        return Answer(data=job_body(JobView(job=submitted.job)), message="Submitted.")
    response.status_code = status.HTTP_200_OK
    return await _answer(context, submitted.job, "Submitted before.")


@router.get("", responses=may_answer(401, 422, 503))
async def jobs(
    *,
    context: ContextOf,
    user: CurrentUser,
    status: JobStatus | None = None,
    batch_id: Annotated[str | None, Query(max_length=64, pattern=ID)] = None,
    no_batch: Annotated[bool, Query(description="only those that belong to no batch")] = False,
    search: Annotated[str | None, Query(max_length=200, pattern=STORABLE, description="in labels, errors, ids")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[JobBody]]:
    """Your jobs, newest first. What they wait for is told when one is asked for."""
    page = await context.engine.jobs.views.jobs(
        user.tenant_id,
        status=status,
        batch_id=batch_id,
        no_batch=no_batch,
        search=search,
        before_id=cursor,
        limit=limit,
    )
    return Answer(data=Page(items=[job_body(each) for each in page.items], next_cursor=page.next_cursor))


@router.post("/bulk", responses=may_answer(401, 403, 422, 503))
async def bulk(body: BulkBody, context: ContextOf, user: CurrentUser) -> Answer[BulkDone]:
    """One verb for many jobs: those named, or all that fit the filter."""
    among = BulkFilter(status=body.filter.status, batch_id=body.filter.batch_id) if body.filter else None
    done = await context.engine.jobs.bulk.run(user.tenant_id, body.action, ids=body.ids, among=among, mode=body.mode)
    refused = [RefusedBody(id=each.id, detail=each.detail) for each in done.refused]
    return Answer(data=BulkDone(matched=done.matched, changed=done.changed, refused=refused))


@router.get("/{job_id}", responses=may_answer(401, 404, 422, 503))
async def job(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[JobBody]:
    """One job: how far it is, what it waits for, and its output with a URL that works for a while."""
    return Answer(data=job_body(await context.engine.jobs.views.job(user.tenant_id, job_id)))


@router.delete("/{job_id}", responses=may_answer(401, 403, 404, 409, 422, 503))
async def delete_job(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deleted]:
    """Delete a job that has ended, with its output. What it cost stays in the ledger."""
    await context.engine.jobs.removal.job(user.tenant_id, job_id)
    return Answer(data=Deleted(id=job_id), message="Deleted.")


@router.get("/{job_id}/logs", responses=may_answer(401, 404, 422, 503))
async def logs(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, limit: Limit = 200, cursor: NumberCursor = None
) -> Answer[Page[LogLineBody]]:
    """What the workers printed, oldest first."""
    page = await context.engine.jobs.views.logs(user.tenant_id, job_id, after_id=cursor or 0, limit=limit)
    lines = [LogLineBody(line=each.line, created_at=each.created_at) for each in page.items]
    return Answer(data=Page(items=lines, next_cursor=page.next_cursor))


@router.post("/{job_id}/cancel", responses=may_answer(401, 403, 404, 409, 422, 503))
async def cancel(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[JobBody]:
    """Cancel a job. One that runs is asked to stop; if it completes first, it is completed."""
    found = await context.engine.queue.control.cancel(user.tenant_id, job_id)
    return await _answer(context, found, _canceled(found))


@router.post("/{job_id}/retry", responses=may_answer(401, 403, 404, 409, 422, 429, 503))
async def retry(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[Retry | None, Body()] = None
) -> Answer[JobBody]:
    """A failed or canceled job again, as a new job."""
    new_seeds = (body or Retry()).new_seeds
    made = await context.engine.jobs.submit.retry_once(user.tenant_id, job_id, new_seeds=new_seeds)
    if made.is_new:
        return await _answer(context, made.job, "Submitted again.")
    return await _answer(context, made.job, f"It was retried before, as {made.job.id}, which is {made.job.status}.")


@router.post("/{job_id}/pause", responses=may_answer(401, 403, 404, 409, 422, 503))
async def pause(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, body: Annotated[Pause | None, Body()] = None
) -> Answer[JobBody]:
    """Pause a job. One that runs is let finish, or with `now` interrupted and put back."""
    found = await context.engine.queue.control.pause(user.tenant_id, job_id, mode=(body or Pause()).mode)
    return await _answer(context, found, f"The job is {found.status}.")


@router.post("/{job_id}/resume", responses=may_answer(401, 403, 404, 409, 422, 503))
async def resume(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[JobBody]:
    """Let a paused job run."""
    found = await context.engine.queue.control.resume(user.tenant_id, job_id)
    return await _answer(context, found, f"The job is {found.status}.")


@router.post("/{job_id}/move", responses=may_answer(401, 403, 404, 409, 422, 503))
async def move(job_id: IdInPath, body: Move, context: ContextOf, user: CurrentUser) -> Answer[JobBody]:
    """Move a waiting job among your own of the same priority."""
    message = told_of_move(has_moved=await context.engine.queue.control.move(user.tenant_id, job_id, body.to))
    return Answer(data=job_body(await context.engine.jobs.views.job(user.tenant_id, job_id)), message=message)


async def _answer(context: Context, found: Job, message: str) -> Answer[JobBody]:
    return Answer(data=job_body(await context.engine.jobs.views.of_job(found)), message=message)


def _canceled(found: Job) -> str:
    return "Canceled." if found.status == JobStatus.CANCELED else "The worker is asked to stop."


def job_body(view: JobView) -> JobBody:
    found, waiting = view.job, view.waiting
    return JobBody(
        id=found.id,
        status=found.status,
        effect_id=found.effect_id,
        video_id=found.video_id,
        batch_id=found.batch_id,
        item_no=found.item_no,
        label=found.label,
        input_file_id=found.input_file_id,
        retry_of=found.retry_of,
        priority=found.priority,
        progress=view.progress,
        attempts=found.attempts,
        max_attempts=found.max_attempts,
        reserved_tokens=found.reserved_tokens,
        error=found.error_message,
        waiting=WaitingBody(
            reason=waiting.reason,
            text=waiting.text,
            until=waiting.until,
            position=waiting.position,
            expected_start_seconds=waiting.expected_start_seconds,
        )
        if waiting
        else None,
        outputs=[
            OutputBody(
                file_id=each.file.id,
                url=each.url,
                filename=each.filename,
                mime_type=each.file.mime_type,
                size=each.file.size,
                content_hash=each.file.content_hash,
            )
            for each in view.outputs
        ],
        created_at=found.created_at,
        started_at=found.started_at,
        completed_at=found.completed_at,
    )
