"""ComfyUI's WebSocket: events of the runs that were submitted under this connection's client id.

It only makes things faster. It may drop, stay silent or miss messages, so nothing is decided by it alone.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import orjson
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from comfyrelay.retry import Backoff, Retries

FIRST_DELAY_SECONDS = 0.1
LAST_DELAY_SECONDS = 15.0
# A connection that lasts shorter than this is not a success, or a server that drops each one would be stormed.
STABLE_SECONDS = 5.0
# The server sends nothing while idle, and may not answer pings while a model loads: silence is not death.
PING_EVERY_SECONDS = 30.0
PING_TIMEOUT_SECONDS = 180.0
log = structlog.get_logger(__name__)
HELLO = '{"type": "feature_flags", "data": {"supports_preview_metadata": true}}'


class _Connect(connect):
    """Follows no redirects: headers of ours would go along, and a key must not be sent elsewhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class EventSocket:
    """Keeps one connection open for as long as it is wanted, with a new client id each time.

    A new id, because a server that is late to notice the end of the old connection would take the new one for it
    and never send to it again.
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
        # how many connections there have been: the same number later means that none was lost in between
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
        """Wait until it is connected, or the attempt has failed, or time is up."""
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
        """Wait until there was a connection and is no more."""
        await self._up.wait()
        await self._down.wait()

    async def renew(self) -> None:
        """Close this connection; another is made."""
        if self._socket is not None:
            await self._socket.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_open(self) -> None:
        retries = Retries(Backoff(first_seconds=FIRST_DELAY_SECONDS, longest_seconds=LAST_DELAY_SECONDS))
        while True:
            began = asyncio.get_running_loop().time()
            if not await self._listen():
                self._tried.set()
            elif asyncio.get_running_loop().time() - began > STABLE_SECONDS:
                retries.reset()
            await retries.wait()

    async def _listen(self) -> bool:
        """Open a connection and read it to its end; whether there was one."""
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
                self._opened(socket)
                async for message in socket:
                    self._on_message(message)
        except (OSError, TimeoutError, WebSocketException):
            pass
        except Exception:
            # runs do without it; but somebody should know
            log.exception("comfy.socket_failed", url=self._url)
        finally:
            if self.is_up:
                self._closed()
        return self.connection > before

    def _opened(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.connection += 1
        self._down.clear()
        self._up.set()
        self._tried.set()

    def _closed(self) -> None:
        self._socket = None
        self._up.clear()
        self._tried.clear()
        self._down.set()
        self._on_lost()


def parse(message: str) -> tuple[str, dict[str, Any]] | None:
    """The type and data of a text message; `None` for anything else that a custom node may send."""
    try:
        value = orjson.loads(message)
    except ValueError:
        return None
    match value:
        case {"type": str() as kind, "data": dict() as data}:
            return kind, data
    return None
