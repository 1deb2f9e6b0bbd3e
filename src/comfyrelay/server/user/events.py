"""A job's events as a stream that a browser can follow."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Response, status
from fastapi.responses import StreamingResponse

from comfyrelay.domain.records.jobs import Job
from comfyrelay.domain.states import TERMINAL_JOB
from comfyrelay.protocol.jobs import JobEvent
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.bodies import BodyRoute
from comfyrelay.server.base.context import Context, ContextOf
from comfyrelay.server.base.parameters import IdInPath
from comfyrelay.server.base.problems import may_answer

# Proxies close a connection that is silent for 30 s or more.
KEEP_ALIVE_SECONDS = 15.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
router = APIRouter(prefix="/api/ai-jobs", tags=["jobs"], route_class=BodyRoute)


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "The job has ended and all its events were seen: do not ask again"},
        **may_answer(401, 404, 422, 503),
    },
)
async def events(
    job_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    last_event_id: Annotated[int, Header(ge=0, le=2**31 - 1, description="the last event that was seen")] = 0,
) -> Response:
    """What happened to a job, then what happens, up to its end.

    Events have the job's own numbers as ids, and are replayed after `Last-Event-ID`. `progress` events have none: they
    are sent while they happen, at most one a second.
    """
    job = await context.engine.jobs.views.plain_job(user.tenant_id, job_id)
    if job.status in TERMINAL_JOB and last_event_id >= job.event_seq:
        # a browser reconnects by itself whenever a stream ends, until it hears this
        return Response(status_code=status.HTTP_204_NO_CONTENT)
    return StreamingResponse(_stream(context, job, last_event_id), media_type="text/event-stream", headers=HEADERS)


async def _stream(context: Context, job: Job, after_seq: int) -> AsyncIterator[str]:
    changes = context.engine.jobs.events.follow(job, after_seq=after_seq, quiet_seconds=KEEP_ALIVE_SECONDS)
    # the first bytes let a proxy, and a browser, know that the stream is open
    yield ": events\n\n"
    async with aclosing(changes):
        async for change in changes:
            for event in change.events:
                data = {**event.data, "at": event.created_at.isoformat()}
                yield JobEvent(id=event.seq, type=event.type, data=data).as_sent()
            if change.progress is not None:
                yield JobEvent(type="progress", data=change.progress).as_sent()
            if not change.events and change.progress is None:
                yield ": still here\n\n"
