"""The events of a job, as a list and as a stream."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse

from comfyrelay.domain.queue.customer_texts import progress_for_customer
from comfyrelay.domain.queue.states import TERMINAL_JOB
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.protocol.jobs import JobEvent
from comfyrelay.server.http.auth import AccessCheck, CurrentUser
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import IdInPath, Limit, PositionCursor, page_of, user_router
from comfyrelay.server.http.streams import KEEP_ALIVE_SECONDS, EventStreamResponse, stream_responses
from comfyrelay.server.job_bodies import event_body

router = user_router("/api/ai-jobs", "jobs")


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        204: {"description": "The job has ended and you have all its events: do not reconnect"},
        **stream_responses(404, 422, 429),
    },
)
async def events(
    request: Request,
    job_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    last_event_id: Annotated[int, Header(ge=0, le=2**31 - 1, description="the last received event")] = 0,
) -> Response:
    """Stream past and future events of a job, until its end.

    Event ids number the events of the job. Events after `Last-Event-ID` are sent again. `progress` events have no id:
    they are sent only live, at most one per second.
    """
    job = await context.engine.jobs.views.job_record(user.tenant_id, job_id)
    if job.status in TERMINAL_JOB and last_event_id >= job.event_seq:
        # A browser reconnects when a stream ends, until it gets this response.
        return Response(status_code=204)
    return EventStreamResponse(_stream(request, context, job, last_event_id))


@router.get("/{job_id}/history", responses=error_responses(404, 422))
async def history(
    job_id: IdInPath, context: ContextOf, user: CurrentUser, limit: Limit = 200, cursor: PositionCursor = None
) -> Answer[Page[JobEvent]]:
    """List the past events of a job, oldest first, without `progress`."""
    page = await context.engine.jobs.views.history(user.tenant_id, job_id, after_seq=cursor or 0, limit=limit)
    return page_of(page, event_body)


def encode_event(event: JobEvent) -> str:
    """Encode a server-sent event."""
    number = f"id: {event.id}\n" if event.id is not None else ""
    return f"{number}event: {event.type}\ndata: {json.dumps(event.data)}\n\n"


async def _stream(request: Request, context: Context, job: JobRecord, after_seq: int) -> AsyncGenerator[str, None]:
    changes = context.engine.jobs.events.subscribe(job, after_seq=after_seq, quiet_seconds=KEEP_ALIVE_SECONDS)
    is_allowed = AccessCheck(request, context)
    is_customer = context.engine.jobs.views.is_of_customer(job.effect_id)
    # The first bytes tell proxies and browsers that the stream is open.
    yield ": events\n\n"
    async with aclosing(changes):
        async for change in changes:
            if not await is_allowed():
                return
            for event in change.events:
                yield encode_event(event_body(event))
            if change.progress is not None:
                progress = progress_for_customer(change.progress) if is_customer else change.progress
                yield encode_event(JobEvent(type="progress", data=progress or {}))
            if not change.events and change.progress is None:
                yield ": still here\n\n"
