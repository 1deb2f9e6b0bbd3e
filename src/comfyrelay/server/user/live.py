"""A stream of all changes of a tenant, for an open page."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse

from comfyrelay.protocol import jobs as wire
from comfyrelay.server.http.auth import AccessCheck, CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.routing import user_router
from comfyrelay.server.http.streams import KEEP_ALIVE_SECONDS, EventStreamResponse, stream_messages, stream_responses
from comfyrelay.server.job_bodies import job_body
from comfyrelay.server.user.batches import batch_body
from comfyrelay.services.jobs.views.live import Changed, LiveMessage
from comfyrelay.services.jobs.views.overview import QueueSummary
from comfyrelay.services.subscriptions import Reset, StreamMessage

router = user_router("/api/events", "jobs")


@router.get("", response_class=StreamingResponse, responses=stream_responses(422, 429))
async def events(
    request: Request,
    context: ContextOf,
    user: CurrentUser,
    last_event_id: Annotated[str | None, Header(max_length=200, description="the last received id")] = None,
) -> Response:
    """Stream all changes of your jobs, batches, queue, gallery and wallet.

    `changed` contains changed jobs and batches, and the ids of deleted ones; `queue` the counts, and the running and
    waiting units; `progress` the progress of jobs; `gallery` the marked outputs; `wallet` means that tokens were
    credited without a job; `reset` means: fetch everything again. With `Last-Event-ID`, missed changes are sent first.
    """
    live = context.engine.jobs.live
    messages = live.subscribe(user.tenant_id, cursor=last_event_id, quiet_seconds=KEEP_ALIVE_SECONDS)
    return EventStreamResponse(stream_messages(messages, _encode, AccessCheck(request, context)))


def _encode(message: StreamMessage[LiveMessage]) -> str:
    number = f"id: {message.cursor}\n" if message.cursor is not None else ""
    match message.content:
        case None:
            # This is not an event, but a new position for replays.
            return f": still here\n{number}\n"
        case Reset():
            type_, data = "reset", "{}"
        case Changed() as changed:
            parts = [f"event: {type_}\ndata: {data}\n\n" for type_, data in _parts(changed)]
            # The id comes last: a client that reconnects after a part gets all parts again.
            return "".join([*parts[:-1], number, parts[-1]])
        case QueueSummary() as summary:
            type_, data = "queue", wire.LiveQueue.of(summary).model_dump_json()
        case progress:
            type_, data = "progress", wire.LiveProgresses(jobs=list(progress)).model_dump_json()
    return f"{number}event: {type_}\ndata: {data}\n\n"


def _parts(changed: Changed) -> Iterator[tuple[str, str]]:
    if changed.has_jobs or (changed.marked is None and not changed.has_credit):
        yield "changed", _changes(changed).model_dump_json()
    if changed.marked is not None:
        gallery = wire.LiveGallery(outputs=sorted(changed.marked.ids), is_all=changed.marked.is_all)
        yield "gallery", gallery.model_dump_json()
    if changed.has_credit:
        yield "wallet", "{}"


def _changes(changed: Changed) -> wire.LiveChanges:
    return wire.LiveChanges(
        jobs=[job_body(job) for job in changed.jobs],
        batches=[batch_body(batch) for batch in changed.batches],
        removed=list(changed.removed),
    )
