"""Make API calls of users and workers: upload, submit, run, read events."""

import asyncio
import contextlib
import hashlib
import io
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from PIL import Image

from tests.support.api import Api, Caller
from tests.support.world import PATIENCE_SECONDS

_NUMBERS = itertools.count(1)


def png(colour: str = "red", *, width: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, 8), colour).save(file, "PNG")
    return file.getvalue()


async def upload(
    user: Caller, data: bytes | None = None, *, name: str = "cat.png", mime_type: str = "image/png"
) -> str:
    """Upload a file and return its id."""
    data = png() if data is None else data
    body = {"mime_type": mime_type, "size": len(data), "original_filename": name}
    created = await user.post("/api/videos/uploads", body)
    sent = await user.http.put(created["upload_url"], content=data, headers=created["upload_headers"])
    assert sent.status_code == 200, sent.text
    return str(created["file"]["id"])


async def submit(user: Caller, effect_id: int, **more: Any) -> Any:
    """Submit a job."""
    body = {"effect_id": effect_id, "idempotency_key": f"key-{next(_NUMBERS)}", **more}
    return await user.post("/api/ai-jobs", body)


async def lease(worker: Caller, worker_id: str = "gpu-1") -> Any:
    """Lease the next job of a worker."""
    job = (await worker.post("/api/worker/poll", {"worker_id": worker_id}))["job"]
    assert job is not None
    return job


def lease_of(job: Any) -> dict[str, Any]:
    return {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}


async def complete(
    api: Api, worker: Caller, job: Any, data: bytes | None = None, *, more: Sequence[tuple[str, bytes]] = ()
) -> None:
    """Upload outputs and wait until the shard has the result; `more` has extensions and contents of further outputs."""
    data = png("blue") if data is None else data
    sent = await worker.http.put(job["output_url"], content=data, headers=job["output_headers"])
    assert sent.status_code == 200, sent.text
    body = {**lease_of(job), "output": {"size": len(data), "mime_type": "image/png"}}
    if more:
        body["more_outputs"] = [await upload_more(worker, job, n, *file) for n, file in enumerate(more, start=2)]
    await worker.post("/api/worker/complete", body)
    await api.engine.outbox.delivery.idle()


async def upload_more(worker: Caller, job: Any, number: int, extension: str, data: bytes) -> dict[str, Any]:
    """Upload a further output; return its description for the completion."""
    url = await worker.post("/api/worker/output-url", {**lease_of(job), "number": number, "extension": extension})
    sent = await worker.http.put(url["url"], content=data, headers=url["headers"])
    assert sent.status_code == 200, sent.text
    digest = hashlib.sha256(data).hexdigest()
    return {"extension": extension, "size": len(data), "mime_type": "application/octet-stream", "sha256": digest}


async def fail(api: Api, worker: Caller, job: Any, error: str = "It broke.") -> None:
    await worker.post("/api/worker/fail", {**lease_of(job), "error_message": error})
    await api.engine.outbox.delivery.idle()


async def run(api: Api, user: Caller, worker: Caller, effect_id: int, **more: Any) -> Any:
    """Submit and complete a job."""
    job = await submit(user, effect_id, **more)
    await complete(api, worker, await lease(worker))
    return await user.get(f"/api/ai-jobs/{job['id']}")


@dataclass
class StreamEvent:
    type: str
    id: str | None
    data: Any


@dataclass
class Stream:
    """An open stream of events that reads each message as it is sent, which httpx's ASGI transport cannot do."""

    status: int
    headers: httpx.Headers
    _comments: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    _events: asyncio.Queue[StreamEvent | None] = field(default_factory=asyncio.Queue)
    _rest: str = ""

    async def next(self) -> StreamEvent | None:
        """Return the next event, or None when the stream has ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._events.get()

    async def until(self, type_: str) -> list[StreamEvent]:
        """Return the events up to the first of this type."""
        found: list[StreamEvent] = []
        while not found or found[-1].type != type_:
            event = await self.next()
            assert event is not None, f"the stream ended before {type_}: {found}"
            found.append(event)
        return found

    async def rest(self) -> list[StreamEvent]:
        """Return the events up to the end."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    async def comment(self, text: str) -> None:
        """Wait for a comment, which the server sends to keep a quiet stream open."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._comments.get() != text:
                pass

    def receive(self, text: str) -> None:
        *blocks, self._rest = (self._rest + text).split("\n\n")
        for block in blocks:
            if block.startswith(":"):
                self._comments.put_nowait(block)
                continue
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            self._events.put_nowait(StreamEvent(fields["event"], fields.get("id"), json.loads(fields["data"])))

    def end(self) -> None:
        self._events.put_nowait(None)


def follow(user: Caller, job_id: str, *, last_event_id: int | None = None) -> AbstractAsyncContextManager[Stream]:
    """Follow a job's events."""
    return open_stream(user, f"/api/ai-jobs/{job_id}/events", last_event_id=last_event_id)


def follow_all(user: Caller, *, last_event_id: str | None = None) -> AbstractAsyncContextManager[Stream]:
    """Follow all changes of a user."""
    return open_stream(user, "/api/events", last_event_id=last_event_id)


@asynccontextmanager
async def open_stream(user: Caller, path: str, *, last_event_id: int | str | None = None) -> AsyncIterator[Stream]:
    """Open a stream of events; the client disconnects at the end of the block."""
    app: Any = cast(httpx.ASGITransport, user.http._transport).app
    headers = {**user.headers, **({} if last_event_id is None else {"Last-Event-ID": str(last_event_id)})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("relay.test", 80),
    }
    disconnected = asyncio.Event()
    opened: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
    is_sent = False

    async def receive() -> dict[str, Any]:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            sent = [(name.decode(), value.decode()) for name, value in message["headers"]]
            opened.set_result(Stream(message["status"], httpx.Headers(sent)))
            return
        opened.result().receive(message.get("body", b"").decode())
        if not message.get("more_body"):
            opened.result().end()

    call = asyncio.create_task(app(scope, receive, send))
    try:
        yield await asyncio.wait_for(opened, PATIENCE_SECONDS)
    finally:
        disconnected.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call, PATIENCE_SECONDS)
