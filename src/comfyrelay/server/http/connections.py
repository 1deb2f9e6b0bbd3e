"""Connections that send a request so slowly that they only take up room: limited in time, in number and in bytes.

uvicorn waits for ever for the rest of a request that has begun, and keeps all of it. A request is half open from its
connection, or its first byte on one that was used before, until its headers are whole; and once it was answered, until
the rest of its body has come. Bodies that are being read are counted by themselves, in all and of one address. There
are never more connections than the process may open files.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from comfyrelay.settings import Settings
from comfyrelay.system.processes import most_open_files

log = structlog.get_logger(__name__)

MOST_HEADER_BYTES = 64 * 1024
# An attack is one line in a while, not one for each of its connections.
LOG_SECONDS = 10.0
# For databases, files and calls to others.
SPARE_FILES = 256


class HalfOpen:
    """The connections of one server whose requests have begun and are not whole, oldest first, and all others."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.header_seconds
        self._most = settings.max_half_open_requests
        self._most_bodies = settings.max_unfinished_bodies
        self._most_bodies_of_one = settings.max_unfinished_bodies_per_address
        self._most_connections = _room_for(settings.max_connections)
        self._proxies = settings.trusted_proxies
        self._open: OrderedDict[LimitedProtocol, asyncio.TimerHandle] = OrderedDict()
        self._bodies: dict[LimitedProtocol, None] = {}
        self._bodies_of: dict[str, dict[LimitedProtocol, None]] = {}
        # between two requests
        self._idle: dict[LimitedProtocol, None] = {}
        self._connections = 0
        self._closed: dict[str, int] = {}
        self._report: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def connect(self, connection: "LimitedProtocol") -> None:
        self._connections += 1
        if self._connections > self._most_connections:
            # nobody waits for an answer there; else the one that came last has to come again
            least = next(iter(self._idle), None) or next(iter(self._open), None) or next(iter(self._bodies), connection)
            self.close(least, "too_many_connections")
            if least is connection:
                return
        self.begin(connection)

    def disconnect(self, connection: "LimitedProtocol") -> None:
        self._connections -= 1
        self.end(connection)

    def begin(self, connection: "LimitedProtocol") -> None:
        if connection in self._open:
            return
        self.end(connection)
        loop = asyncio.get_running_loop()
        self._open[connection] = loop.call_later(self._seconds, self.close, connection, "too_slow")
        if len(self._open) > self._most:
            # who is honest is done within a round trip, so the oldest is the least likely to be
            self.close(next(iter(self._open)), "too_many")

    def begin_body(self, connection: "LimitedProtocol") -> None:
        """The headers are whole, and the body is not; how long it may take is the application's matter."""
        if connection in self._bodies:
            return
        self.end(connection)
        address = connection.client[0] if connection.client is not None else ""
        self._bodies[connection] = None
        of_one = self._bodies_of.setdefault(address, {})
        of_one[connection] = None
        # behind a proxy are many
        if len(of_one) > self._most_bodies_of_one and not self._is_proxy(address):
            self.close(next(iter(of_one)), "too_many_bodies_of_one")
        if len(self._bodies) > self._most_bodies:
            self.close(next(iter(self._bodies)), "too_many_bodies")

    def rest(self, connection: "LimitedProtocol") -> None:
        """It was answered, and may be used again."""
        self.end(connection)
        self._idle[connection] = None

    def end(self, connection: "LimitedProtocol") -> None:
        if (timer := self._open.pop(connection, None)) is not None:
            timer.cancel()
        self._idle.pop(connection, None)
        if connection in self._bodies:
            del self._bodies[connection]
            address = connection.client[0] if connection.client is not None else ""
            self._bodies_of[address].pop(connection)
            if not self._bodies_of[address]:
                del self._bodies_of[address]

    def _is_proxy(self, address: str) -> bool:
        with suppress(ValueError):
            return any(ip_address(address) in ip_network(each, strict=False) for each in self._proxies)
        return False

    def close(self, connection: "LimitedProtocol", why: str) -> None:
        self.end(connection)
        connection.refuse()
        self._closed[why] = self._closed.get(why, 0) + 1
        if self._report is None:
            self._log()
            self._report = asyncio.get_running_loop().call_later(LOG_SECONDS, self._log_again)

    def _log(self) -> None:
        closed, self._closed = self._closed, {}
        log.warning("requests.half_open_closed", **closed, half_open=len(self._open), bodies=len(self._bodies))

    def _log_again(self) -> None:
        self._report = None
        if self._closed:
            self._log()


def _room_for(connections: int) -> int:
    """How many connections fit into what the system lets a process open, as much of it as this one can get."""
    files = most_open_files(connections + SPARE_FILES)
    return min(connections, files - min(SPARE_FILES, files // 2))


class LimitedProtocol(HttpToolsProtocol):
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
        self._half_open.connect(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._half_open.disconnect(self)
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
        elif self._is_receiving and not self._is_upload():
            self._half_open.begin_body(self)
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

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        if self._is_receiving:
            # uvicorn would wait for the rest as long as for another request
            self._half_open.begin(self)
        else:
            self._half_open.rest(self)

    def _is_upload(self) -> bool:
        """A file, which may take hours: the URL is signed, and refused at once if it is not."""
        return self.scope["method"] == "PUT" and self.scope.get("path", "").startswith("/files/")

    def refuse(self) -> None:
        """Hang up; with a word to whoever has begun to say something."""
        is_unanswered = not self._has_headers or not self.cycle.response_started
        if self._is_receiving and is_unanswered and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
