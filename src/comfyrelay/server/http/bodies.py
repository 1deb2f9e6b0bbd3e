"""Reading the body of a request: how much, from whom, how fast, and where it is parsed.

FastAPI reads and parses the whole body before it asks who sends it. Here a body of more than the usual size is read
only by routes that say so, after the caller is known, and is parsed and checked in a thread. What it would cost is
known before it is parsed: the time goes by the number of values, not of bytes.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from comfyrelay.errors import InvalidInput, RequestTimeout, TooLarge
from comfyrelay.json_size import has_more_values
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.problems import may_answer
from comfyrelay.settings import ENV_PREFIX, Settings

# Parsed where it is read: handing it to a thread would take longer.
SMALL_BYTES = 32 * 1024

E = TypeVar("E", bound=Callable[..., Any])
# Raises `Unauthorized` or `Forbidden` for a caller who may not send a large body.
Authenticate = Callable[[Request, Context], Awaitable[object]]
_LARGE: dict[Callable[..., Any], Authenticate] = {}
_ANONYMOUS: set[Callable[..., Any]] = set()


def large_body(authenticate: Authenticate) -> Callable[[E], E]:
    """For a route that takes a graph, a batch or a report: its body may be large once the caller is known."""

    def mark(endpoint: E) -> E:
        _LARGE[endpoint] = authenticate
        return endpoint

    return mark


def anonymous_body(endpoint: E) -> E:
    """For a route that anybody may call: what it takes is small, and comes at once."""
    _ANONYMOUS.add(endpoint)
    return endpoint


class BodyRoute(APIRoute):
    """A route whose body is limited."""

    def __init__(self, *args: Any, responses: dict[int | str, dict[str, Any]] | None = None, **options: Any) -> None:
        takes_body = set(options.get("methods") or ()) & {"POST", "PUT", "PATCH"}
        super().__init__(
            *args, responses={**(may_answer(408, 413) if takes_body else {}), **(responses or {})}, **options
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        validate = self.body_field.validate

        async def limited(request: Request) -> Response:
            body = await read_body(request, self.endpoint)
            if len(body) > SMALL_BYTES and _is_json(request):
                # what FastAPI finds there it takes as parsed, and a model as checked
                request._json = await asyncio.to_thread(_parsed, body, request.app.state.context.settings, validate)
            return await handle(request)

        return limited


async def read_body(request: Request, endpoint: Callable[..., Any]) -> bytes:
    """The body, which is kept with the request as if it had been read there."""
    context: Context = request.app.state.context
    settings = context.settings
    authenticate = _LARGE.get(endpoint)
    most, name = settings.max_body_bytes, "max_body_bytes"
    seconds, seconds_name = settings.body_seconds, "body_seconds"
    if endpoint in _ANONYMOUS:
        most, name = min((most, name), (settings.max_anonymous_body_bytes, "max_anonymous_body_bytes"))
        seconds, seconds_name = min(
            (seconds, seconds_name), (settings.anonymous_body_seconds, "anonymous_body_seconds")
        )
    announced = request.headers.get("Content-Length", "")
    # without a length, as of a body in chunks, the bytes tell when they are here
    size = int(announced) if announced.isdecimal() and len(announced) < 19 else 0
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            is_whole = False
            while True:
                if max(size, len(body)) > most and authenticate is not None and name == "max_body_bytes":
                    await authenticate(request, context)
                    most, name = settings.max_large_body_bytes, "max_large_body_bytes"
                if max(size, len(body)) > most:
                    raise _too_large(f"{most} bytes", name)
                if is_whole:
                    break
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise InvalidInput("The request was cut off.")
                body += message.get("body", b"")
                is_whole = not message.get("more_body", False)
    except TimeoutError:
        raise RequestTimeout(
            f"The body did not arrive within {seconds:g} seconds ({ENV_PREFIX}{seconds_name.upper()})."
        ) from None
    request._body = bytes(body)
    return request._body


def _parsed(body: bytes, settings: Settings, validate: Callable[..., Any]) -> Any:
    if has_more_values(body, settings.max_body_values):
        raise _too_large(f"{settings.max_body_values} values", "max_body_values")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInput(errors={"body": "This is not JSON."}) from None
    checked, errors = validate(value, {}, loc=("body",))
    if errors:
        raise RequestValidationError(errors)
    return checked


def _too_large(limit: str, name: str) -> TooLarge:
    advice = "" if name == "max_body_bytes" else " Send a large batch as several smaller ones."
    return TooLarge(f"The body is larger than this server takes: {limit} ({ENV_PREFIX}{name.upper()}).{advice}")


def _is_json(request: Request) -> bool:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
