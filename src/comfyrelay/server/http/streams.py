"""Server-sent event streams."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from comfyrelay.server.http.auth import AccessCheck
from comfyrelay.server.http.problems import error_responses
from comfyrelay.services.subscriptions import StreamMessage

W = TypeVar("W")

# A client that needs longer for one message is gone: the stream ends and frees its slot.
SEND_SECONDS = 60.0
# Proxies close a connection without data after 30 s or more.
KEEP_ALIVE_SECONDS = 15.0
# After this time, the stream ends and the browser reconnects.
MAX_STREAM_SECONDS = 900.0


class EventStreamResponse(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        async with aclosing(self._events):
            with suppress(TimeoutError):
                await super().stream_response(send_in_time)


def stream_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a stream in the API documentation: events, or one of these errors."""
    events = {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {200: events, **error_responses(*statuses)}


async def stream_messages(
    messages: AsyncGenerator[StreamMessage[W], None],
    encode: Callable[[StreamMessage[W]], str],
    is_allowed: AccessCheck,
) -> AsyncGenerator[str, None]:
    """Yield encoded messages while the caller is allowed to read them. Encode each message once for all streams."""
    now = asyncio.get_running_loop().time
    started_at = now()
    # The first bytes tell proxies and browsers that the stream is open.
    yield ": events\n\n"
    async with aclosing(messages):
        async for message in messages:
            if not await is_allowed():
                # The browser reconnects and gets the error.
                return
            if message.encoded is None:
                message.encoded = encode(message)
            yield message.encoded
            if now() - started_at > MAX_STREAM_SECONDS:
                return
