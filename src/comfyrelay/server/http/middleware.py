"""Middleware for every request: cookies, request id, log line and security headers."""

import random
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comfyrelay import __version__
from comfyrelay.protocol.worker import PROTOCOL, VERSION_HEADER

log = structlog.get_logger(__name__)
MAX_ID_LENGTH = 64
# These paths are not logged, because monitoring calls them every few seconds.
UNLOGGED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
# Raw bytes, because every response has them, and a lookup in a headers object is slower.
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
SAFE_API_HEADERS = (*SAFE_HEADERS, (b"cache-control", b"no-store"))
# Also sent with errors, so that a worker of another version can explain them.
WORKER_HEADERS = (
    *SAFE_API_HEADERS,
    (VERSION_HEADER.lower().encode(), f"{__version__}; protocol={PROTOCOL}".encode()),
)


class RequestLog:
    """Logs one line per request with the ids that its route binds. Queries, headers and bodies are never logged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The id is not a secret, so a fast pseudo-random number is enough.
        request_id = _given_id(scope) or f"{random.getrandbits(128):032x}"
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 500
        started_at = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("ascii"))]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if scope["path"] not in UNLOGGED_PATHS:
                seconds = round(time.perf_counter() - started_at, 4)
                log.info("request", method=scope["method"], path=scope["path"], status=status, seconds=seconds)


class SecurityHeaders:
    """Adds security headers to every response that does not set them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                required = _headers_for(scope["path"])
                message["headers"] = [*message["headers"], *(header for header in required if header[0] not in present)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class UnquotedCookies:
    """Removes quoted cookies from each request. FastAPI parses the cookies of every request, and older versions of
    Python need quadratic time to unquote a value. ComfyRelay sets no quoted cookies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"cookie" and b'"' in value for name, value in scope.get("headers", ())):
            headers = [(name, _unquoted(value) if name == b"cookie" else value) for name, value in scope["headers"]]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


def _unquoted(cookies: bytes) -> bytes:
    return b";".join(cookie for cookie in cookies.split(b";") if b'"' not in cookie)


def _headers_for(path: str) -> tuple[tuple[bytes, bytes], ...]:
    if path.startswith("/api/worker/"):
        return WORKER_HEADERS
    return SAFE_API_HEADERS if path.startswith("/api/") else SAFE_HEADERS


def _given_id(scope: Scope) -> str | None:
    """Return the request id that a proxy has set, if it is valid."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            return text if 0 < len(text) <= MAX_ID_LENGTH and text.isascii() and text.isprintable() else None
    return None
