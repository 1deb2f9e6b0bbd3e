"""Stream the events of a job in the format of the Comfy API."""

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobEventType, JobStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.media.previews import TYPE
from comfyrelay.protocol import comfy_api as wire
from comfyrelay.protocol.comfy_api import ComfyPreviewEvent, ComfyStatusEvent
from comfyrelay.protocol.progress import Progress
from comfyrelay.server.comfy_api.problems import comfy_responses, comfy_router
from comfyrelay.server.comfy_api.views import comfy_status, output_bodies, progress_body, status_of
from comfyrelay.server.http.auth import AccessCheck, CurrentUser
from comfyrelay.server.http.context import Context, ContextOf
from comfyrelay.server.http.routing import IdInPath
from comfyrelay.server.http.streams import EventStreamResponse

router = comfy_router("/api/v2/jobs")
# Clients give up after 45 s without data. A worker sends previews for 10 s after the last request.
QUIET_SECONDS = 5.0


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "The job has ended and you have all its events: do not reconnect"},
        **comfy_responses(404, 422, 429),
    },
)
async def events(
    request: Request,
    job_id: IdInPath,
    context: ContextOf,
    user: CurrentUser,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**31 - 1, description="the last received event")] = None,
) -> Response:
    """Stream the status, progress, previews and outputs of a job until its end. The first event is the current status.

    Status events have ids. With `Last-Event-ID`, the status changes since that event come first.
    """
    job = await context.engine.jobs.views.job_record(user.tenant_id, job_id)
    if last_event_id is not None and job.status in TERMINAL_JOB and last_event_id >= job.event_seq:
        # A browser reconnects when a stream ends, until it gets this response.
        return Response(status_code=204)
    return EventStreamResponse(_JobStream(request, context, user, job).run(last_event_id))


class _JobStream:
    """One open stream, which keeps track of the data that it has sent."""

    def __init__(self, request: Request, context: Context, user: User, job: JobRecord) -> None:
        self._request = request
        self._context = context
        self._user = user
        self._job = job
        self._status: str | None = None
        self._position: int | None = None
        # The node in the last progress update.
        self._node_id = ""
        self._preview_tag: str | None = None

    async def run(self, last_event_id: int | None) -> AsyncGenerator[str, None]:
        job = self._job
        is_allowed = AccessCheck(self._request, self._context)
        after_seq = last_event_id
        # The first bytes tell proxies and clients that the stream is open.
        yield ": events\n\n"
        if after_seq is None:
            after_seq = job.event_seq
            async for text in self._snapshot(job.event_seq):
                yield text
        changes = self._context.engine.jobs.events.subscribe(job, after_seq=after_seq, quiet_seconds=QUIET_SECONDS)
        async with aclosing(changes):
            async for change in changes:
                if not await is_allowed():
                    return
                for event in change.events[:-1]:
                    if (missed := self._status_event(_status(event), event.seq)) is not None:
                        yield missed
                # Whenever nothing else has happened, the position of a waiting job is read.
                if change.events or self._status == "queued":
                    async for text in self._snapshot(change.events[-1].seq if change.events else None):
                        yield text
                if change.progress is not None and Progress.from_report(change.progress).has_begun:
                    progress = progress_body(change.progress)
                    self._node_id = progress.current_node or self._node_id
                    yield _encode("progress", progress)
                async for text in self._preview():
                    yield text
                if not change.events and change.progress is None:
                    yield ": still here\n\n"

    async def _snapshot(self, seq: int | None) -> AsyncIterator[str]:
        """Yield the outputs and the status as they are now. Outputs come first, because the last status ends the
        stream."""
        view = await self._context.engine.jobs.views.job(self._user.tenant_id, self._job.id)
        status = status_of(view)
        if status == "running" and view.progress is not None and self._status is None:
            yield _encode("progress", progress_body(view.progress))
        for output in await output_bodies(self._context, self._user, view):
            yield _encode("output", output)
        position = view.waiting.position if status == "queued" and view.waiting is not None else None
        if (text := self._status_event(status, seq, position)) is not None:
            yield text

    def _status_event(self, status: wire.ComfyStatus, seq: int | None, position: int | None = None) -> str | None:
        if (status, position) == (self._status, self._position):
            return None
        self._status, self._position = status, position
        return _encode("status", ComfyStatusEvent(status=status, queue_position=position), seq)

    async def _preview(self) -> AsyncIterator[str]:
        previews = self._context.engine.queue.previews
        previews.watch(self._job.id)
        if self._status != "running":
            return
        preview = await previews.newest(self._user.tenant_id, self._job.id)
        if preview is not None and preview.tag != self._preview_tag:
            self._preview_tag = preview.tag
            data = base64.b64encode(preview.data).decode()
            yield _encode("preview", ComfyPreviewEvent(node_id=self._node_id, content_type=TYPE, data_base64=data))


def _status(event: Event) -> wire.ComfyStatus:
    if event.type == JobEventType.CANCEL_REQUESTED:
        return "canceling"
    return comfy_status(event.data.get("status", JobStatus.QUEUED))


def _encode(name: str, body: BaseModel, seq: int | None = None) -> str:
    number = f"id: {seq}\n" if seq is not None else ""
    return f"{number}event: {name}\ndata: {body.model_dump_json()}\n\n"
