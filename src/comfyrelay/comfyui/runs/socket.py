"""ComfyUI's WebSocket: messages about runs that were submitted with this connection's client id.

The WebSocket only speeds things up. It may drop, stall or miss messages, so no decision relies on it alone.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from comfyrelay.retry import Backoff, Retries

FIRST_DELAY_SECONDS = 0.1
LAST_DELAY_SECONDS = 15.0
# A shorter connection does not reset the backoff: a server that drops every connection must not be flooded.
STABLE_SECONDS = 5.0
# The server sends nothing while idle, and may not respond to pings while it loads a model.
PING_EVERY_SECONDS = 30.0
PING_TIMEOUT_SECONDS = 180.0
log = structlog.get_logger(__name__)
_PREVIEW, _PREVIEW_WITH_METADATA = 1, 4
_FORMATS = {1: "image/jpeg", 2: "image/png"}
HELLO = '{"type": "feature_flags", "data": {"supports_preview_metadata": true}}'


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewFrame:
    image: bytes
    mime_type: str
    prompt_id: str | None = None
    node_id: str | None = None


class _Connect(connect):
    """Do not follow redirects, which would send our headers, and therefore a key, to another host."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class EventSocket:
    """Keep one connection open, with a new client id for each connection.

    With the same id, a server that has not noticed the loss of the old connection would not send messages to the new
    one.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        use_proxy: bool,
        on_message: Callable[[str | bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._url = "ws" + url.removeprefix("http") + "/ws"
        self._headers = dict(headers)
        self._use_proxy = use_proxy
        self._on_message = on_message
        self._on_lost = on_lost
        self.client_id = str(uuid4())
        # Number of connections so far. An unchanged number means that no connection was lost in between.
        self.connection = 0
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._down.set()
        self._tried = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    async def ready(self, timeout_seconds: float) -> None:
        """Wait until the WebSocket is connected, an attempt has failed, or the timeout expires."""
        if self.is_up:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_open())
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._tried.wait()
        except TimeoutError:
            return

    async def lost(self) -> None:
        """Wait until an open connection is lost."""
        await self._up.wait()
        await self._down.wait()

    async def renew(self) -> None:
        """Replace the current connection."""
        if self._socket is not None:
            await self._socket.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_open(self) -> None:
        retries = Retries(Backoff(first_seconds=FIRST_DELAY_SECONDS, max_seconds=LAST_DELAY_SECONDS))
        while True:
            began = asyncio.get_running_loop().time()
            if not await self._listen():
                self._tried.set()
            elif asyncio.get_running_loop().time() - began > STABLE_SECONDS:
                retries.reset()
            await retries.wait()

    async def _listen(self) -> bool:
        """Open a connection and read it until it closes. Returns whether it was opened."""
        self.client_id = str(uuid4())
        before = self.connection
        try:
            async with _Connect(
                f"{self._url}?clientId={self.client_id}",
                additional_headers=self._headers,
                proxy=True if self._use_proxy else None,
                compression=None,
                max_size=None,
                ping_interval=PING_EVERY_SECONDS,
                ping_timeout=PING_TIMEOUT_SECONDS,
                close_timeout=1,
            ) as socket:
                await socket.send(HELLO)
                self._mark_open(socket)
                async for message in socket:
                    self._on_message(message)
        except (OSError, TimeoutError, WebSocketException):
            pass
        except Exception:
            # Runs work without the WebSocket, but the failure must be visible.
            log.exception("comfy.socket_failed", url=self._url)
        finally:
            if self.is_up:
                self._mark_closed()
        return self.connection > before

    def _mark_open(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.connection += 1
        self._down.clear()
        self._up.set()
        self._tried.set()

    def _mark_closed(self) -> None:
        self._socket = None
        self._up.clear()
        self._tried.clear()
        self._down.set()
        self._on_lost()


def parse_frame(frame: bytes) -> PreviewFrame | None:
    """Return the preview in a frame, or `None` if the frame is invalid or has another kind."""
    try:
        kind, second = struct.unpack_from(">II", frame)
        if kind == _PREVIEW:
            return PreviewFrame(image=frame[8:], mime_type=_FORMATS.get(second, "image/jpeg"))
        if kind == _PREVIEW_WITH_METADATA:
            metadata = orjson.loads(frame[8 : 8 + second])
            return PreviewFrame(
                image=frame[8 + second :],
                mime_type=str(metadata.get("image_type") or "image/jpeg"),
                prompt_id=metadata.get("prompt_id"),
                node_id=metadata.get("node_id"),
            )
    except (struct.error, ValueError, AttributeError):
        return None
    return None


def parse_message(message: str) -> tuple[str, dict[str, Any]] | None:
    """Return the type and data of a text message, or `None` for any other message, such as one from a custom node."""
    try:
        value = orjson.loads(message)
    except ValueError:
        return None
    match value:
        case {"type": str() as kind, "data": dict() as data}:
            return kind, data
    return None
