"""Limits on slow senders and on the number of connections.

uvicorn waits without limit for the rest of a request and buffers it. A request is *half open* from its connection, or
from its first byte on a reused connection, until its headers are complete. A request that was answered early is half
open until the rest of its body has arrived. `ConnectionLimits` limits the time, number and bytes of half-open requests,
the number of bodies in transit, in total and per address, the time that a connection is idle or stalled, which means
that its caller reads nothing or sends nothing of a file, and the number of connections, in total and per holder.

`LimitedConnection` wraps uvicorn's protocol and parses the request boundaries itself. `ResponseTracker` reports from
inside the application when a response starts and ends.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address, ip_network
from itertools import chain
from typing import Any, cast

import structlog
import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from comfyrelay.server.http.holders import STATE_KEY, Holder, HolderKind, Holders, too_many_connections
from comfyrelay.server.http.limits import network_of
from comfyrelay.server.http.problems import problem_response
from comfyrelay.settings import Settings
from comfyrelay.system.processes import raise_open_file_limit

log = structlog.get_logger(__name__)

MAX_HEADER_BYTES = 64 * 1024
# This route receives files in forms.
ASSETS_PATH = b"/api/v2/assets"
# At most one log line per interval, however many connections an attack opens.
LOG_SECONDS = 10.0
# File descriptors that are reserved for databases, files and outgoing calls.
SPARE_FILES = 256
# A caller that reads nothing of a response, or sends nothing of a file, for this long is gone.
MAX_STALL_SECONDS = 60.0
# Time for the rest of a response when its connection is closed.
FLUSH_SECONDS = 5.0
_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class ConnectionLimits:
    """All connections of one server by state. Each collection is ordered from old to new."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.header_seconds
        self._max_half_open = settings.max_half_open_requests
        self._max_bodies = settings.max_unfinished_bodies
        self._max_bodies_per_address = settings.max_unfinished_bodies_per_address
        self._max_connections = limit_to_open_files(settings.max_connections)
        self._proxies = [ip_network(trusted_proxy, strict=False) for trusted_proxy in settings.trusted_proxies]
        self._half_open: OrderedDict[LimitedConnection, asyncio.TimerHandle] = OrderedDict()
        self._bodies: dict[LimitedConnection, None] = {}
        self._bodies_by_address: dict[str, dict[LimitedConnection, None]] = {}
        self._idle: dict[LimitedConnection, asyncio.TimerHandle] = {}
        self._uploads: dict[LimitedConnection, asyncio.TimerHandle] = {}
        self._idle_seconds = settings.idle_seconds
        self._anonymous_idle_seconds = min(settings.anonymous_idle_seconds, settings.idle_seconds)
        self._holders: Holders[LimitedConnection] = Holders(settings, max_connections=self._max_connections)
        self._connections = 0
        self._closed: dict[str, int] = {}
        self._next_log: asyncio.TimerHandle | None = None

    def connect(self, connection: "LimitedConnection") -> None:
        self._connections += 1
        if self._connections > self._max_connections:
            closed = self._choose_victim(connection)
            self.close(closed, "too_many_connections")
            if closed is connection:
                return
        connection.is_proxy = self._is_proxy(connection.address)
        if connection.is_proxy or self.hold(connection, connection.origin) is None:
            self.begin_request(connection)
        else:
            self.close(connection, "too_many_connections_of_one")

    def _choose_victim(self, new: "LimitedConnection") -> "LimitedConnection":
        """Return a connection whose client does not wait for a response, or else the new one."""
        anonymous = (connection for connection in self._idle if not self._is_known(connection))
        return next(chain(anonymous, self._half_open, self._idle, self._bodies), new)

    def disconnect(self, connection: "LimitedConnection") -> None:
        self._connections -= 1
        self.release(connection)
        self._holders.assign(connection, ())

    def hold(self, connection: "LimitedConnection", holder: Holder, *, slots: int = 0) -> int | None:
        """Count a connection for a holder. Over the limit, close the connection that the holder has not used for the
        longest time, or return the limit if all are in use."""
        if holder.kind in (HolderKind.TENANT, HolderKind.TENANT_WORKERS) and self._is_known(connection):
            return None
        has_address = holder.kind in (HolderKind.USER, HolderKind.TENANT)
        holders = (connection.origin, holder) if has_address else (holder,)
        current = self._holders.holders_of(connection)
        for new in holders:
            limit = self._holders.limit(new, slots=slots)
            if new in current or self._holders.count(new) < limit:
                continue
            others = self._holders.connections_of(new)
            is_idle, is_half_open = self._idle.__contains__, self._half_open.__contains__
            unused = next(chain(filter(is_idle, others), filter(is_half_open, others)), None)
            if unused is None:
                return limit
            self.close(unused, "too_many_connections_of_one")
        self._holders.assign(connection, holders)
        return None

    def begin_forwarded(self, connection: "LimitedConnection", address: str) -> int | None:
        """Count a proxy's connection for the caller of this request. Return the limit if the caller has too many."""
        connection.origin = Holder(HolderKind.ADDRESS, network_of(address))
        return self.hold(connection, connection.origin)

    def begin_request(self, connection: "LimitedConnection") -> None:
        if connection in self._half_open:
            return
        self.release(connection)
        loop = asyncio.get_running_loop()
        self._half_open[connection] = loop.call_later(self._seconds, self.close, connection, "too_slow")
        if len(self._half_open) > self._max_half_open:
            # An honest client needs one round trip, so the oldest request is the least likely to be from one.
            self.close(next(iter(self._half_open)), "too_many")

    def begin_body(self, connection: "LimitedConnection") -> None:
        """Track a request whose headers are complete. The application limits the time for its body."""
        if connection in self._bodies:
            return
        self.release(connection)
        self._bodies[connection] = None
        same_address = self._bodies_by_address.setdefault(connection.address, {})
        same_address[connection] = None
        # A proxy forwards the requests of many clients.
        if len(same_address) > self._max_bodies_per_address and not self._is_proxy(connection.address):
            self.close(next(iter(same_address)), "too_many_bodies_of_one")
        if len(self._bodies) > self._max_bodies:
            self.close(next(iter(self._bodies)), "too_many_bodies")

    def continue_upload(self, connection: "LimitedConnection") -> None:
        """Restart the stall timer of an upload after new bytes. An upload may take hours."""
        self.release(connection)
        timer = asyncio.get_running_loop().call_later(MAX_STALL_SECONDS, self._end_stalled_upload, connection)
        self._uploads[connection] = timer

    def _end_stalled_upload(self, connection: "LimitedConnection") -> None:
        if connection.is_paused:
            # The storage is slow, not the caller.
            self.continue_upload(connection)
        else:
            self.close(connection, "stalled")

    def keep_alive(self, connection: "LimitedConnection") -> None:
        self.release(connection)
        # The connections of a holder are in the order of their last use.
        holders = () if connection.is_proxy else self._holders.holders_of(connection)
        self._holders.assign(connection, holders)
        is_trusted = connection.is_proxy or self._is_known(connection)
        seconds = self._idle_seconds if is_trusted else self._anonymous_idle_seconds
        self._idle[connection] = asyncio.get_running_loop().call_later(seconds, self._end_idle, connection)

    def _end_idle(self, connection: "LimitedConnection") -> None:
        self.release(connection)
        connection.end()

    def _is_known(self, connection: "LimitedConnection") -> bool:
        """Whether a user or a worker has authenticated on a connection."""
        return any(
            holder.kind in (HolderKind.USER, HolderKind.WORKER) for holder in self._holders.holders_of(connection)
        )

    def release(self, connection: "LimitedConnection") -> None:
        """Stop limiting a connection: the server processes its request, or the connection is closed."""
        for timers in (self._half_open, self._idle, self._uploads):
            if (timer := timers.pop(connection, None)) is not None:
                timer.cancel()
        if connection in self._bodies:
            del self._bodies[connection]
            same_address = self._bodies_by_address[connection.address]
            del same_address[connection]
            if not same_address:
                del self._bodies_by_address[connection.address]

    def close(self, connection: "LimitedConnection", reason: str) -> None:
        self.release(connection)
        self._holders.assign(connection, ())
        connection.refuse()
        self._closed[reason] = self._closed.get(reason, 0) + 1
        if self._next_log is None:
            self._log()

    def _is_proxy(self, address: str) -> bool:
        with suppress(ValueError):
            return any(ip_address(address) in proxy for proxy in self._proxies)
        return False

    def _log(self) -> None:
        self._next_log = None
        if not self._closed:
            return
        closed, self._closed = self._closed, {}
        log.warning("requests.half_open_closed", **closed, half_open=len(self._half_open), bodies=len(self._bodies))
        self._next_log = asyncio.get_running_loop().call_later(LOG_SECONDS, self._log)


def limit_to_open_files(connections: int) -> int:
    """Return the number of connections that the process can open, after raising its soft limit as far as possible."""
    files = raise_open_file_limit(connections + SPARE_FILES)
    return min(connections, files - min(SPARE_FILES, files // 2))


class LimitedConnection(asyncio.Protocol):
    """Passes all events of a connection to uvicorn's protocol, and tracks the state of its requests."""

    def __init__(self, limits: ConnectionLimits, *, app_state: dict[str, Any], **options: Any) -> None:
        # uvicorn copies `app_state` into the scope of each request.
        self._http = HttpToolsProtocol(app_state={**app_state, STATE_KEY: self}, **options)
        self._limits = limits
        self._parser = HttpRequestParser(self)
        self._url = b""
        # The parser reports a header at its end, so incomplete ones are counted as they arrive.
        self._incomplete_bytes = self._header_bytes = 0
        self._has_long_headers = False
        # True from the first to the last byte of a request.
        self._is_receiving = False
        self._has_headers = False
        self._is_upload = False
        self._is_answering = False
        self._unanswered = 0
        self._stall: asyncio.TimerHandle | None = None
        self.is_proxy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are not subclasses of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.origin = Holder(HolderKind.ADDRESS, network_of(self.address))
        self._http.connection_made(self._transport)
        self._limits.connect(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end_stall()
        self._limits.disconnect(self)
        self._http.connection_lost(exc)

    def close_upgraded(self) -> None:
        """Forget a connection that became a WebSocket and was closed."""
        self.end_stall()
        self._limits.disconnect(self)

    def pause_writing(self) -> None:
        self.begin_stall()
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self.end_stall()
        self._http.resume_writing()

    def begin_stall(self) -> None:
        self._stall = asyncio.get_running_loop().call_later(MAX_STALL_SECONDS, self._limits.close, self, "stalled")

    def end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def data_received(self, data: bytes) -> None:
        # uvicorn answers an invalid request, and closes the connection.
        with suppress(HttpParserError, HttpParserUpgrade):
            self._parser.feed_data(data)
        if self._is_receiving and not self._has_headers:
            self._incomplete_bytes += len(data)
        if self._has_long_headers or self._incomplete_bytes > MAX_HEADER_BYTES:
            self._limits.close(self, "too_long")
            return
        self._http.data_received(data)
        if self._transport.is_closing():
            return
        if self._is_receiving and not self._has_headers:
            self._limits.begin_request(self)
        elif not self._unanswered:
            # The data are empty lines before a request, or the rest of a request that was answered.
            self._limits.begin_request(self)
        elif self._is_receiving and self._is_upload:
            self._limits.continue_upload(self)
        elif self._is_receiving:
            self._limits.begin_body(self)
        else:
            self._limits.release(self)

    def on_message_begin(self) -> None:
        self._is_receiving, self._has_headers, self._url = True, False, b""
        self._incomplete_bytes = self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._has_headers, self._is_answering = True, False
        self._incomplete_bytes = 0
        # Another request may follow in the same packet.
        self._has_long_headers = self._has_long_headers or self._header_bytes > MAX_HEADER_BYTES
        self._unanswered += 1
        # The upload of a file may take hours. The application refuses a wrong signature or a caller without a token at
        # once.
        path = parse_url(self._url).path or b""
        method = self._parser.get_method()
        self._is_upload = path.startswith(b"/files/") if method == b"PUT" else (method, path) == (b"POST", ASSETS_PATH)

    def on_message_complete(self) -> None:
        self._is_receiving = False

    def start_response(self) -> None:
        self._is_answering = True

    def complete_response(self) -> None:
        self._unanswered -= 1
        if self._unanswered or self._transport.is_closing():
            return
        if self._is_receiving:
            # uvicorn would wait for the rest as for the next request: without a limit of its own.
            self._limits.begin_request(self)
        else:
            self._limits.keep_alive(self)

    @property
    def is_paused(self) -> bool:
        """Whether the server has stopped reading, because the application reads slowly."""
        return self._http.flow.read_paused

    def hold(self, holder: Holder, *, slots: int) -> int | None:
        return self._limits.hold(self, holder, slots=slots)

    def begin_forwarded(self, address: str) -> int | None:
        return self._limits.begin_forwarded(self, address) if self.is_proxy else None

    def refuse(self) -> None:
        """Close the connection, with a response if a request has begun and none was sent."""
        is_unanswered = not self._has_headers or not self._is_answering
        if self._is_receiving and is_unanswered and not self._transport.is_closing():
            self._transport.write(_TIMEOUT_RESPONSE)
        self.end()

    def end(self) -> None:
        """Close the connection. `close` alone would wait without limit for a caller that does not read."""
        self.end_stall()
        self._stall = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)
        self._transport.close()


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol for a WebSocket, which replaces the `LimitedConnection` that was upgraded. The connection
    stays counted until it is closed."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._limited: LimitedConnection = app_state[STATE_KEY]

    def connection_lost(self, exc: Exception | None) -> None:
        self._limited.close_upgraded()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._limited.begin_stall()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._limited.end_stall()
        super().resume_writing()


class ResponseTracker:
    """ASGI middleware that tells a `LimitedConnection` whose request it serves, and when a response starts and ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: LimitedConnection | None = scope.get("state", {}).get(STATE_KEY)
        if connection is None:
            await self._app(scope, receive, send)
            return
        is_complete = False

        def complete() -> None:
            nonlocal is_complete
            if not is_complete:
                is_complete = True
                connection.complete_response()

        async def send_and_track(message: Message) -> None:
            if message["type"] == "http.response.start":
                connection.start_response()
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                complete()

        limit = connection.begin_forwarded(scope["client"][0] if scope.get("client") else "")
        refusal = problem_response(too_many_connections(HolderKind.ADDRESS, limit)) if limit is not None else None
        try:
            await (refusal or self._app)(scope, receive, send_and_track)
        finally:
            complete()
