"""Middleware for every request: request id, log line and security headers."""

import random
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger(__name__)
LONGEST_ID = 64
# Called every few seconds by monitoring; not logged.
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
# As raw bytes: every response has them, and a lookup in a headers object is slower.
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
SAFE_API_HEADERS = (*SAFE_HEADERS, (b"cache-control", b"no-store"))


class RequestLog:
    """Logs one line per request with the ids bound on the way. Queries, headers and bodies are never logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or _new_id()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 500
        began = time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("ascii"))]
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            if scope["path"] not in QUIET:
                seconds = round(time.perf_counter() - began, 4)
                log.info("request", method=scope["method"], path=scope["path"], status=status, seconds=seconds)


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                wanted = SAFE_API_HEADERS if scope["path"].startswith("/api/") else SAFE_HEADERS
                message["headers"] = [*message["headers"], *(each for each in wanted if each[0] not in given)]
            await send(message)

        await self._app(scope, receive, answer)


def _new_id() -> str:
    """Not a secret, so a fast pseudo-random number is enough."""
    return f"{random.getrandbits(128):032x}"


def _given_id(scope: Scope) -> str | None:
    """Return the request id that a proxy has set, if it is valid."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            return text if 0 < len(text) <= LONGEST_ID and text.isascii() and text.isprintable() else None
    return None
