"""The newest preview of a running job. The worker sends previews only while users request them."""

from typing import Annotated

from fastapi import Header, Response

from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus
from comfyrelay.media.previews import TYPE
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, user_router

# A browser may display an upload of a worker, and must never execute it.
HEADERS = {
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
router = user_router("/api/ai-jobs", "jobs")


@router.get(
    "/{job_id}/preview",
    response_class=Response,
    responses={
        200: {"description": "The picture", "content": {TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        204: {"description": "There is no preview: the job is not running, or has not sent one yet"},
        304: {"description": "The preview has not changed"},
        **error_responses(404, 422),
    },
)
async def get_preview(
    job_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    if_none_match: Annotated[str | None, Header(description="the `ETag` of the preview that you have")] = None,
) -> Response:
    """Get the newest preview of a running job. Poll about once a second: the worker sends at most one per second,
    until 10 s after the last request."""
    job = await context.engine.jobs.views.job_record(user.tenant_id, job_id)
    previews = context.engine.queue.previews
    if job.status not in TERMINAL_JOB:
        # Register the viewer even before the job runs, so that its first previews are sent at once.
        previews.watch(job.id)
    preview = await previews.newest(user.tenant_id, job.id) if job.status == JobStatus.PROCESSING else None
    if preview is None:
        return Response(status_code=204, headers=HEADERS)
    headers = {**HEADERS, "ETag": preview.tag}
    if preview.tag in {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(preview.data, media_type=TYPE, headers=headers)
