"""All changes of a tenant, as one stream for each open page."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse

from comfyrelay.protocol import jobs as wire
from comfyrelay.server.http.auth import AccessCheck, CurrentUser
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.routers import Router
from comfyrelay.server.http.streams import (
    KEEP_ALIVE_SECONDS,
    LONGEST_SECONDS,
    EventStreamResponse,
    may_stream,
    stream_messages,
)
from comfyrelay.server.user.batches import batch_body
from comfyrelay.server.user.jobs import job_body
from comfyrelay.services.jobs.views.live import Changed, LiveMessage
from comfyrelay.services.jobs.views.overview import QueueSummary
from comfyrelay.services.subscriptions import Reset, StreamMessage

router = Router(prefix="/api/events", tags=["jobs"], route_class=BodyRoute)


@router.get(
    "",
    response_class=StreamingResponse,
    responses=may_stream(401, 422, 429, 503),
)
async def events(
    request: Request,
    context: ContextOf,
    user: CurrentUser,
    last_event_id: Annotated[str | None, Header(max_length=200, description="the last received id")] = None,
) -> Response:
    """All changes of your jobs, batches, queue, gallery and wallet.

    `changed` has changed jobs and batches, and the ids of deleted ones; `queue` the counts, and the running and waiting
    units; `progress` the progress of jobs; `gallery` the marked outputs; `wallet` means that tokens were credited
    without a job; `reset` means: fetch everything again. With `Last-Event-ID`, missed changes are sent first.
    """
    live = context.engine.jobs.live
    live.check_subscriber_limit(user.tenant_id)
    messages = live.subscribe(user.tenant_id, cursor=last_event_id, quiet_seconds=KEEP_ALIVE_SECONDS)
    let_in = AccessCheck(request, context)
    return EventStreamResponse(stream_messages(messages, _encoded, is_allowed=let_in, longest_seconds=LONGEST_SECONDS))


def _encoded(message: StreamMessage[LiveMessage]) -> str:
    number = f"id: {message.cursor}\n" if message.cursor is not None else ""
    match message.what:
        case None:
            # not an event, but a new position for replays
            return f": still here\n{number}\n"
        case Reset():
            type_, data = "reset", "{}"
        case Changed() as changed:
            parts = [f"event: {each}\ndata: {data}\n\n" for each, data in _parts(changed)]
            # the id comes last: a client that reconnects after a part gets all parts again
            return "".join([*parts[:-1], number, parts[-1]])
        case QueueSummary() as glance:
            type_, data = "queue", wire.LiveQueue.of(glance).model_dump_json()
        case progress:
            type_, data = (
                "progress",
                wire.LiveProgresses(jobs=list(progress)).model_dump_json(),
            )
    return f"{number}event: {type_}\ndata: {data}\n\n"


def _parts(changed: Changed) -> Iterator[tuple[str, str]]:
    if changed.has_jobs or (changed.marked is None and not changed.has_credit):
        yield "changed", _changes(changed).model_dump_json()
    if changed.marked is not None:
        told = wire.LiveGallery(outputs=sorted(changed.marked.ids), is_all=changed.marked.is_all)
        yield "gallery", told.model_dump_json()
    if changed.has_credit:
        yield "wallet", "{}"


def _changes(changed: Changed) -> wire.LiveChanges:
    return wire.LiveChanges(
        jobs=[job_body(job) for job in changed.jobs],
        batches=[batch_body(batch) for batch in changed.batches],
        removed=list(changed.removed),
    )
