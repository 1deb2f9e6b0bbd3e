"""The newest preview of a running job. Requests make its worker send previews."""

from typing import Annotated

from fastapi import Header, Response, status

from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus
from comfyrelay.media.previews import TYPE
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.parameters import IdInPath
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router

# Uploads of a worker are displayed, and never executed.
HEADERS = {
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
router = Router(prefix="/api/ai-jobs", tags=["jobs"], route_class=BodyRoute)


@router.get(
    "/{job_id}/preview",
    response_class=Response,
    responses={
        200: {"description": "The picture", "content": {TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        204: {"description": "There is none: the job does not run, or has not sent any"},
        304: {"description": "It is as you have it"},
        **may_answer(401, 404, 422, 503),
    },
)
async def preview(
    job_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    if_none_match: Annotated[str | None, Header(description="the `ETag` of the one you have")] = None,
) -> Response:
    """The newest preview of a running job. Poll about once a second: for 10 s after each request the worker sends at
    most one preview per second."""
    job = await context.engine.jobs.views.job_record(user.tenant_id, job_id)
    previews = context.engine.queue.previews
    if job.status not in TERMINAL_JOB:
        # also before it runs, so that its first previews are sent at once
        previews.watch(job.id)
    picture = await previews.newest(user.tenant_id, job.id) if job.status == JobStatus.PROCESSING else None
    if picture is None:
        return Response(status_code=status.HTTP_204_NO_CONTENT, headers=HEADERS)
    headers = {**HEADERS, "ETag": picture.tag}
    if picture.tag in {each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")}:
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(picture.data, media_type=TYPE, headers=headers)
