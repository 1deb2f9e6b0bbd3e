"""The network between the processes of a soak test: a proxy that can lose, duplicate and delay each request.

Like a load balancer, it has one or more servers behind it and sends each request to the next one that accepts it.
"""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import aiohttp
from aiohttp import web
from yarl import URL

from comfyrelay.http_client import listen
from tests.soak.plan import COMPLETE, OUTPUT, Fault, Kind

# Headers that belong to the connection rather than the request.
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "expect", "te", "trailer"})
MAX_BODY_BYTES = 64 * 1024**2


class Lost(Exception):
    """The request or its response was lost, so the sender gets no response."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request and its response, whether or not the sender received the response."""

    method: str
    path: str
    status: int
    body: Any


@dataclass
class Active:
    """A fault for the next matching requests; `met` has the path of the first, or the server that received it."""

    fault: Fault
    left: int
    met: asyncio.Future[str]
    # set once everything is prepared and the request may continue
    may_pass: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, kw_only=True)
class _Request:
    method: str
    raw_path: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def route(self) -> str:
        return f"{self.method} {self.raw_path}"


class Wire:
    def __init__(self, name: str, targets: Sequence[str]) -> None:
        self.name = name
        self._turns = itertools.cycle(range(len(targets)))
        self._targets = list(targets)
        self._active: list[Active] = []
        self._late: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Transport] = set()
        self._stack = contextlib.AsyncExitStack()
        self._port = 0
        self.is_cut = False
        self.answers_errors = False
        self.is_full = False
        self.forget()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                # a pooled connection may belong to a server that was killed
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
            )
        )
        listener = listen("127.0.0.1", 0)
        self._port = listener.getsockname()[1]
        # the server behind this proxy must notice that a client disconnected
        runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._stack.aclose()

    def forget(self) -> None:
        """Reset the records of requests."""
        # completed requests, and the fault that affected each request
        self.calls: list[Call] = []
        self.hit: list[Fault] = []
        # reported outputs, whether or not the report arrived
        self.reports: list[Any] = []
        # the last request to each upload URL of an output
        self._uploads: dict[str, _Request] = {}

    def add(self, fault: Fault) -> Active:
        active = Active(fault, fault.count, asyncio.get_running_loop().create_future())
        self.share(active)
        return active

    def share(self, active: Active) -> None:
        """Add a fault of another wire, which affects the first matching request on either wire."""
        self._active.append(active)

    def cut(self) -> None:
        """Abort open requests and answer no more."""
        self.is_cut = True
        for transport in self._open:
            transport.abort()

    def heal(self) -> None:
        self._active.clear()
        self.is_cut = self.answers_errors = self.is_full = False

    async def settle(self) -> None:
        """Wait for late requests."""
        while self._late:
            await asyncio.wait(self._late)

    async def write_again(self) -> list[int]:
        """Send other bytes to every upload URL of an output, as any holder of the URL can."""
        statuses = [await self._exchange(replace(upload, body=upload.body[::-1])) for upload in self._uploads.values()]
        self._uploads.clear()
        return statuses

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if self.is_cut or transport is None:
            return _abort(request)
        self._open.add(transport)
        try:
            return await self._pass_on(request)
        except (Lost, aiohttp.ClientError, OSError):
            return _abort(request)
        finally:
            self._open.discard(transport)

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        request._client_max_size = MAX_BODY_BYTES
        sent = _Request(
            method=request.method,
            raw_path=request.raw_path,
            headers=[(key, value) for key, value in request.headers.items() if key.lower() not in HOP_BY_HOP],
            body=await request.read(),
        )
        self._remember(sent)
        if self.answers_errors:
            return web.Response(status=503, text="The network simulates an outage.")
        if self.is_full and sent.method in ("PUT", "POST"):
            return web.Response(status=507, text="The network simulates a full disk.")
        active = self._next_fault(sent)
        fault = active.fault if active is not None else None
        match fault.kind if fault is not None else None:
            case Kind.LOSE_REQUEST:
                raise Lost
            case Kind.LOSE_ANSWER:
                await self._exchange(sent)
                raise Lost
            case Kind.DUPLICATE:
                # in parallel, so that two servers may handle them concurrently
                self._deliver_late(sent, 0.0)
            case Kind.DELAY:
                assert fault is not None
                await self._hold(sent, fault.seconds)
            case Kind.ARRIVE_LATE:
                assert fault is not None
                self._deliver_late(sent, fault.seconds)
                raise Lost
            case Kind.KILL_SENDER:
                assert active is not None
                self._deliver_late(sent, active.fault.seconds, or_when=active.may_pass)
                # wait until the server is killed
                await asyncio.sleep(active.fault.seconds)
                raise Lost
            case Kind.KILL_RECEIVER:
                assert active is not None
                return await self._answer(request, sent, active=active)
        return await self._answer(request, sent)

    def _next_fault(self, sent: _Request) -> Active | None:
        for active in self._active:
            if active.left and re.match(active.fault.route, sent.route):
                active.left -= 1
                if active.fault.kind is not Kind.KILL_RECEIVER and not active.met.done():
                    active.met.set_result(sent.raw_path)
                self.hit.append(active.fault)
                return active
        return None

    async def _hold(self, sent: _Request, seconds: float) -> None:
        """Deliver a request even if its sender no longer waits."""
        loop = asyncio.get_running_loop()
        arrives_at = loop.time() + seconds
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._deliver_late(sent, arrives_at - loop.time())
            raise

    def _deliver_late(self, sent: _Request, seconds: float, *, or_when: asyncio.Event | None = None) -> None:
        async def deliver() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for((or_when or asyncio.Event()).wait(), seconds)
            with contextlib.suppress(Lost, aiohttp.ClientError, OSError):
                await self._exchange(sent)

        task = asyncio.create_task(deliver())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _exchange(self, sent: _Request) -> int:
        """Send the request and discard the response."""
        answer = await self._ask(sent)
        async with answer:
            await answer.read()
            self._record(sent, answer.status)
            return answer.status

    async def _answer(
        self, request: web.BaseRequest, sent: _Request, *, active: Active | None = None
    ) -> web.StreamResponse:
        answer = await self._ask(sent, active=active)
        async with answer:
            self._record(sent, answer.status)
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            for key, value in answer.headers.items():
                if key.lower() not in HOP_BY_HOP:
                    response.headers.add(key, value)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
        return response

    async def _ask(self, sent: _Request, *, active: Active | None = None) -> aiohttp.ClientResponse:
        """Return the response of the first server that accepts the request, and tell a fault of the receiver first."""
        first = next(self._turns)
        for target in (*self._targets[first:], *self._targets[:first]):
            if active is not None and not active.met.done():
                active.met.set_result(target)
                await active.may_pass.wait()
            try:
                return await self._session.request(
                    sent.method,
                    URL(target + sent.raw_path, encoded=True),
                    headers=sent.headers,
                    data=sent.body or None,
                    skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                    allow_redirects=False,
                )
            except aiohttp.ClientConnectorError:
                # no server is running, so nothing was sent
                continue
        raise Lost

    def _remember(self, sent: _Request) -> None:
        if re.match(COMPLETE, sent.route):
            self.reports.append(json.loads(sent.body))
        # requests of servers have their signature in a header instead
        elif re.match(OUTPUT, sent.route) and "X-Amz-Signature=" in sent.raw_path:
            self._uploads[sent.raw_path.partition("?")[0]] = sent

    def _record(self, sent: _Request, status: int) -> None:
        path = sent.raw_path.partition("?")[0]
        # node definitions are compressed
        is_json = path.startswith("/api/") and sent.body and not path.startswith("/api/worker/definitions/")
        self.calls.append(
            Call(method=sent.method, path=path, status=status, body=json.loads(sent.body) if is_json else None)
        )


def _abort(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
