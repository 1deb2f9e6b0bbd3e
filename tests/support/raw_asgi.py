"""Call an ASGI application without a client, to count its own work or to disconnect at any time."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from tests.support.api import Api

JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class RawResponse:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def data(self) -> Any:
        assert self.status == 200, self.body
        return json.loads(self.body)["data"]


def app_of(api: Api) -> ASGIApp:
    app: ASGIApp = api.anonymous.http._transport.app  # type: ignore[attr-defined]
    return app


async def call(
    app: ASGIApp,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    disconnected: asyncio.Event | None = None,
    **scope: Any,
) -> RawResponse:
    """Send a request, whose caller disconnects when the event is set."""
    sent: list[Message] = []
    is_read = False
    never = asyncio.Event()

    async def receive() -> Message:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        await (disconnected or never).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in {"x-request-id": "raw", **headers}.items()]
    request = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": raw,
        "state": {},
        **scope,
    }
    await app(request, receive, send)
    start, *parts = sent
    return RawResponse(start["status"], start["headers"], b"".join(part.get("body", b"") for part in parts))


@contextmanager
def count_calls() -> Iterator[Callable[[], int]]:
    """Count the calls of Python functions in this thread, including resumed coroutines."""
    counted = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield lambda: counted
    finally:
        sys.setprofile(before)
