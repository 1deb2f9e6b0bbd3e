"""The WebSocket `/ws`: the events of the prompts that a client has submitted under its `clientId`."""

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from comfyrelay.domain.queue.progress import Progress
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import ComfyRelayError, Forbidden, Unauthorized
from comfyrelay.protocol.jobs import LiveProgress
from comfyrelay.server.comfyui_api.nodes import feature_flags
from comfyrelay.server.comfyui_api.routing import authenticate, error_body
from comfyrelay.server.comfyui_api.run_messages import Message, PromptMessages, text
from comfyrelay.server.comfyui_api.views import milliseconds, queue_status
from comfyrelay.server.http.auth import CHECK_SECONDS
from comfyrelay.server.http.context import Context
from comfyrelay.services.comfyui_api.prompts import ENDED, RUNNING
from comfyrelay.services.jobs.views.live import Changed, LiveMessage
from comfyrelay.services.jobs.views.overview import QueueSummary
from comfyrelay.services.subscriptions import Reset

MAX_CLIENT_ID_LENGTH = 200
# Maximum prompts of a client whose state a socket remembers.
MAX_PROMPTS = 1000
# Codes of the WebSocket protocol.
GOING_AWAY, REPLACED, NOT_ALLOWED = 1001, 1000, 1008


class Sockets:
    """The open sockets of this process by tenant and client id."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], ClientSocket] = {}

    async def serve(self, websocket: WebSocket) -> None:
        context: Context = websocket.app.state.context
        try:
            user = await authenticate(websocket, context)
        except ComfyRelayError as error:
            await websocket.send_denial_response(error_body(error))
            return
        await websocket.accept()
        given = websocket.query_params.get("clientId", "")
        client_id = given if 0 < len(given) <= MAX_CLIENT_ID_LENGTH else uuid4().hex
        socket = ClientSocket(websocket, context, user, client_id)
        key = user.tenant_id, client_id
        if (replaced := self._open.get(key)) is not None:
            replaced.stop(REPLACED)
        self._open[key] = socket
        try:
            await socket.run()
        finally:
            # Keep a socket that has replaced this one.
            if self._open.get(key) is socket:
                del self._open[key]


class ClientSocket:
    def __init__(self, websocket: WebSocket, context: Context, user: User, client_id: str) -> None:
        self._websocket = websocket
        self._context = context
        self._engine = context.engine
        self._service = context.engine.comfyui_api.prompts
        self._user = user
        self._client_id = client_id
        self._prompts: dict[str, PromptMessages] = {}
        self._has_preview_metadata = False
        # A read that is canceled with this socket would cost a database connection.
        self._read = context.engine.jobs.live.finish_read
        self._code = GOING_AWAY
        self._sending: asyncio.Task[None] | None = None

    def stop(self, code: int) -> None:
        self._code = code
        if self._sending is not None:
            self._sending.cancel()

    async def run(self) -> None:
        """Send events until the client disconnects, may no longer read them, or another socket replaces this one."""
        self._sending = asyncio.create_task(self._send_events())
        listening = asyncio.create_task(self._listen())
        try:
            await asyncio.wait({self._sending, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (self._sending, listening):
                task.cancel()
            await asyncio.gather(self._sending, listening, return_exceptions=True)
        if self._websocket.application_state == self._websocket.client_state == WebSocketState.CONNECTED:
            with suppress(RuntimeError, WebSocketDisconnect):
                await self._websocket.close(self._code)

    async def _listen(self) -> None:
        """Read messages. As in ComfyUI, only the first one may declare what the client supports."""
        is_first = True
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            flags = _flags_in(message.get("text")) if is_first else None
            is_first = False
            if flags is not None:
                self._has_preview_metadata = flags.get("supports_preview_metadata") is True
                await self._send(text("feature_flags", feature_flags(self._context.settings.max_upload_bytes)))

    async def _send_events(self) -> None:
        summary = await self._summary()
        await self._send(text("status", {"status": queue_status(summary), "sid": self._client_id}))
        live = self._engine.jobs.live
        messages = live.subscribe(self._user.tenant_id, cursor=None, quiet_seconds=CHECK_SECONDS)
        checked_at = asyncio.get_running_loop().time()
        async with aclosing(messages):
            await self._read_running()
            async for message in messages:
                now = asyncio.get_running_loop().time()
                if now - checked_at >= CHECK_SECONDS:
                    checked_at = now
                    if not await self._is_allowed():
                        self._code = NOT_ALLOWED
                        return
                if message.content is not None:
                    await self._pass_on(message.content)

    async def _is_allowed(self) -> bool:
        try:
            await authenticate(self._websocket, self._context)
        except (Unauthorized, Forbidden):
            return False
        return True

    async def _pass_on(self, content: LiveMessage | Reset) -> None:
        match content:
            case Reset():
                await self._read_running()
                known = [job_id for job_id, messages in self._prompts.items() if not messages.has_ended]
                found = await self._read(self._service.of_jobs(self._user.tenant_id, known))
                await self._note_jobs([replace(prompt.job, status=prompt.status) for prompt in found.values()])
            case Changed() as changed:
                await self._note_jobs([view.job for view in changed.jobs if not view.is_prefetched])
            case QueueSummary() as summary:
                await self._send(text("status", {"status": queue_status(summary)}))
            case progress:
                await self._note_progress({item.id: item for item in progress})

    async def _read_running(self) -> None:
        page = await self._read(self._service.page(self._user.tenant_id, RUNNING, shows_hidden=True, limit=MAX_PROMPTS))
        await self._note_jobs([prompt.job for prompt in page.prompts])

    async def _note_jobs(self, jobs: list[JobRecord]) -> None:
        for job_id, messages in (await self._own([job.id for job in jobs])).items():
            job = next(job for job in jobs if job.id == job_id)
            if messages.has_ended:
                continue
            if job.status in ENDED:
                await self._end(messages, job_id)
            elif job.status == JobStatus.PROCESSING:
                await self._send_all(messages.start(milliseconds(job.started_at or job.created_at)))
            elif messages.has_started:
                messages.restart()

    async def _end(self, messages: PromptMessages, job_id: str) -> None:
        prompt = (await self._read(self._service.of_jobs(self._user.tenant_id, [job_id]))).get(job_id)
        if prompt is None:
            # The job was deleted.
            return
        await self._send_all(messages.end(prompt))
        summary = await self._summary()
        await self._send(text("status", {"status": queue_status(summary)}))
        await self._send(messages.done())

    async def _note_progress(self, found: dict[str, LiveProgress]) -> None:
        for job_id, messages in (await self._own(list(found))).items():
            progress = Progress.from_report(found[job_id].progress)
            if messages.has_ended or not progress.has_begun:
                continue
            began = progress.began_at
            await self._send_all(messages.start(milliseconds(began) if began is not None else 0))
            await self._send_all(messages.progress(progress))
            await self._send_preview(messages, job_id)

    async def _send_preview(self, messages: PromptMessages, job_id: str) -> None:
        previews = self._engine.queue.previews
        previews.watch(job_id)
        image = await previews.newest(self._user.tenant_id, job_id)
        if image is not None and image.tag != messages.preview:
            messages.preview = image.tag
            await self._send(messages.image(image.data, has_metadata=self._has_preview_metadata))

    async def _own(self, job_ids: list[str]) -> dict[str, PromptMessages]:
        """Return the messages of the prompts of this client among these jobs."""
        records = await self._read(self._service.records(self._user.tenant_id, job_ids))
        for job_id, record in records.items():
            if record.client_id == self._client_id and job_id not in self._prompts:
                self._prompts[job_id] = PromptMessages(record)
        while len(self._prompts) > MAX_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        return {job_id: self._prompts[job_id] for job_id in records if job_id in self._prompts}

    async def _summary(self) -> QueueSummary:
        return await self._read(self._engine.jobs.overview.summary(self._user.tenant_id, limit=1))

    async def _send_all(self, messages: Any) -> None:
        for message in messages:
            await self._send(message)

    async def _send(self, message: Message) -> None:
        if isinstance(message, bytes):
            await self._websocket.send_bytes(message)
        else:
            await self._websocket.send_text(message)


def _flags_in(message: object) -> dict[str, Any] | None:
    """Return the flags of a message of the type `feature_flags`."""
    try:
        body = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("type") != "feature_flags":
        return None
    flags = body.get("data")
    return flags if isinstance(flags, dict) else {}
