"""Limits on request bodies: size, time, and authentication before large ones.

FastAPI reads and parses the whole body before it authenticates the caller. `BodyRoute` accepts a large body only for
routes marked with `large_body`, after authentication. It refuses a body with too many values, because their number
determines the cost, and parses and validates all other large bodies in a thread.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.errors import InvalidInput, RequestTimeout, TooLarge
from comfyrelay.json_size import has_more_values
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.problems import MAX_NAMED_ERRORS, error_responses
from comfyrelay.settings import Settings

# Up to this size, a thread switch takes longer than parsing.
SMALL_BYTES = 32 * 1024

E = TypeVar("E", bound=Callable[..., Any])
# Raises `Unauthorized` or `Forbidden` if the caller may not send a large body.
Authenticate = Callable[[Request, Context], Awaitable[object]]
# By endpoint: how to authenticate the caller, and the name of the setting that limits the body.
_LARGE_BODIES: dict[Callable[..., Any], tuple[Authenticate, str]] = {}
_ANONYMOUS_BODIES: set[Callable[..., Any]] = set()


def large_body(authenticate: Authenticate, *, limit: str = "max_large_body_bytes") -> Callable[[E], E]:
    """Mark a route whose body may be large after authentication: a graph, a batch or a report. `limit` is a setting."""

    def mark(endpoint: E) -> E:
        _LARGE_BODIES[endpoint] = authenticate, limit
        return endpoint

    return mark


def anonymous_body(endpoint: E) -> E:
    """Mark a route without authentication, whose body must be small and arrive quickly."""
    _ANONYMOUS_BODIES.add(endpoint)
    return endpoint


class BodyRoute(APIRoute):
    """A route that limits the size of its body and the time to receive it."""

    def __init__(self, *args: Any, responses: dict[int | str, dict[str, Any]] | None = None, **options: Any) -> None:
        takes_body = set(options.get("methods") or ()) & {"POST", "PUT", "PATCH"}
        super().__init__(
            *args, responses={**(error_responses(408, 413) if takes_body else {}), **(responses or {})}, **options
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = self.body_field._type_adapter

        async def limited(request: Request) -> Response:
            body = await read_body(request, self.endpoint)
            if len(body) > SMALL_BYTES and is_json(request):
                # FastAPI uses this as the parsed body, and does not validate a model again.
                request._json = await asyncio.to_thread(_parse, body, request.app.state.context.settings, model)
            return await handle(request)

        return limited


async def read_body(request: Request, endpoint: Callable[..., Any]) -> bytes:
    """Read the body and cache it in the request, as `Request.body` does."""
    context: Context = request.app.state.context
    settings = context.settings
    authenticate, large = _LARGE_BODIES.get(endpoint, (None, ""))
    max_bytes, name = settings.max_body_bytes, "max_body_bytes"
    seconds, seconds_name = settings.body_seconds, "body_seconds"
    if endpoint in _ANONYMOUS_BODIES:
        max_bytes, name = min((max_bytes, name), (settings.max_anonymous_body_bytes, "max_anonymous_body_bytes"))
        seconds, seconds_name = min(
            (seconds, seconds_name), (settings.anonymous_body_seconds, "anonymous_body_seconds")
        )
    announced = request.headers.get("Content-Length", "")
    # A chunked body has no length: its bytes are counted as they arrive.
    size = int(announced) if announced.isdecimal() and len(announced) < 19 else 0
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            is_complete = False
            while True:
                if max(size, len(body)) > max_bytes and authenticate is not None and name == "max_body_bytes":
                    await authenticate(request, context)
                    max_bytes, name = max(max_bytes, getattr(settings, large)), large
                if max(size, len(body)) > max_bytes:
                    raise _too_large(f"{max_bytes} bytes", name)
                if is_complete:
                    break
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise InvalidInput("The connection was closed before the body was complete.")
                body += message.get("body", b"")
                is_complete = not message.get("more_body", False)
    except TimeoutError:
        raise RequestTimeout(
            f"The body did not arrive within {seconds:g} seconds ({ENV_PREFIX}{seconds_name.upper()})."
        ) from None
    request._body = bytes(body)
    return request._body


def _parse(body: bytes, settings: Settings, model: TypeAdapter[Any]) -> Any:
    if has_more_values(body, settings.max_body_values):
        raise _too_large(f"{settings.max_body_values} values", "max_body_values")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInput(errors={"body": "This is not valid JSON."}) from None
    try:
        return model.validate_python(value, from_attributes=True)
    except ValidationError as error:
        # Counting takes no time, but a list of 200,000 errors takes 2 s and blocks all threads.
        if error.error_count() > MAX_NAMED_ERRORS:
            too_many = f"{error.error_count()} values are invalid, too many to list."
            raise InvalidInput(errors={"body": too_many}) from None
        errors = [{**found, "loc": ("body", *found["loc"])} for found in error.errors(include_url=False)]
        raise RequestValidationError(errors) from None


def _too_large(limit: str, name: str) -> TooLarge:
    advice = "" if name in ("max_body_bytes", "max_graph_bytes") else " Send a large batch as several smaller ones."
    return TooLarge(f"The body exceeds the limit of {limit} ({ENV_PREFIX}{name.upper()}).{advice}")


def is_json(request: Request) -> bool:
    """Whether the body is JSON, by its content type."""
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
