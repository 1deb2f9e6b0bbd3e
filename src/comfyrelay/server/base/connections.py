"""Connections that send a request so slowly that they only take up room: limited in time, in number and in bytes.

uvicorn waits for ever for the rest of a request that has begun, and keeps all of it. A request is half open from its
connection, or its first byte on one that was used before, until its headers are whole; and once it was answered, until
the rest of its body has come.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from comfyrelay.settings import Settings

log = structlog.get_logger(__name__)

MOST_HEADER_BYTES = 64 * 1024
# An attack is one line in a while, not one for each of its connections.
LOG_SECONDS = 10.0


class HalfOpen:
    """The requests of one server that have begun and are not whole, oldest first."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.header_seconds
        self._most = settings.max_half_open_requests
        self._open: OrderedDict[CarefulProtocol, asyncio.TimerHandle] = OrderedDict()
        self._closed: dict[str, int] = {}
        self._report: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, connection: "CarefulProtocol") -> None:
        if connection in self._open:
            return
        loop = asyncio.get_running_loop()
        self._open[connection] = loop.call_later(self._seconds, self.close, connection, "too_slow")
        if len(self._open) > self._most:
            # who is honest is done within a round trip, so the oldest is the least likely to be
            self.close(next(iter(self._open)), "too_many")

    def end(self, connection: "CarefulProtocol") -> None:
        if (timer := self._open.pop(connection, None)) is not None:
            timer.cancel()

    def close(self, connection: "CarefulProtocol", why: str) -> None:
        self.end(connection)
        connection.refuse()
        self._closed[why] = self._closed.get(why, 0) + 1
        if self._report is None:
            self._log()
            self._report = asyncio.get_running_loop().call_later(LOG_SECONDS, self._log_again)

    def _log(self) -> None:
        closed, self._closed = self._closed, {}
        log.warning("requests.half_open_closed", **closed, half_open=len(self._open))

    def _log_again(self) -> None:
        self._report = None
        if self._closed:
            self._log()


class CarefulProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a limit on what is half open."""

    def __init__(self, *args: Any, half_open: HalfOpen, **options: Any) -> None:
        super().__init__(*args, **options)
        self._half_open = half_open
        # from the first byte of a request to its last
        self._is_receiving = False
        self._has_headers = False
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._half_open.begin(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._half_open.end(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        # nothing before the first request, whatever uvicorn declares
        cycle: Any = self.cycle
        if self._is_receiving and not self._has_headers:
            self._header_bytes += len(data)
            self._half_open.begin(self)
            if self._header_bytes > MOST_HEADER_BYTES:
                self._half_open.close(self, "too_long")
        elif cycle is None or cycle.response_complete:
            # empty lines before a request, or what is left of one that was answered
            self._half_open.begin(self)
        else:
            self._half_open.end(self)

    def on_message_begin(self) -> None:
        self._is_receiving, self._has_headers, self._header_bytes = True, False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_headers = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_receiving = False
        super().on_message_complete()

    def refuse(self) -> None:
        """Hang up; with a word to whoever has begun to say something."""
        if self._is_receiving and not self._has_headers and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
