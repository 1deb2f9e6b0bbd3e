"""Answers that go on while something happens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Message as Sending
from starlette.types import Send

from comfyrelay.server.http.auth import StillLetIn
from comfyrelay.server.http.problems import may_answer
from comfyrelay.services.subscriptions import StreamMessage

W = TypeVar("W")

# Nobody who still reads takes so long for one message: the stream ends, and its place is free for another.
SEND_SECONDS = 60.0
# Proxies close a connection that is silent for 30 s or more.
KEEP_ALIVE_SECONDS = 15.0
# Then a browser comes back by itself.
LONGEST_SECONDS = 900.0


class EventStreamResponse(StreamingResponse):
    """Server-sent events, for as long as somebody reads them."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Sending) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        async with aclosing(self._events):
            with suppress(TimeoutError):
                await super().stream_response(in_time)


def may_stream(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's documentation: it answers with events, or with one of these errors."""
    events = {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {200: events, **may_answer(*statuses)}


async def stream_messages(
    messages: AsyncGenerator[StreamMessage[W], None],
    encoded: Callable[[StreamMessage[W]], str],
    *,
    is_still_let_in: StillLetIn,
    longest_seconds: float,
) -> AsyncGenerator[str, None]:
    """Messages as they go over the wire, each encoded once however many hear it, to whoever may still hear them."""
    now = asyncio.get_running_loop().time
    began_at = now()
    # the first bytes let a proxy, and a browser, know that the stream is open
    yield ": events\n\n"
    async with aclosing(messages):
        async for message in messages:
            if not await is_still_let_in():
                # the browser comes back by itself, and is told so
                return
            if message.encoded is None:
                message.encoded = encoded(message)
            yield message.encoded
            if now() - began_at > longest_seconds:
                return
