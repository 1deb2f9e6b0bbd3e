"""Routes of ComfyUI's API: each exists twice, at `/queue` and at `/api/queue`."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from comfyrelay.comfyui.graphs.validation import problem
from comfyrelay.domain.records.accounts import User
from comfyrelay.errors import ComfyRelayError, Forbidden, InsufficientTokens, InvalidInput, TooLarge, Unauthorized
from comfyrelay.http_client import origin_parts
from comfyrelay.json_size import has_more_values
from comfyrelay.protocol.fields import check_json
from comfyrelay.server.http.auth import API_KEY
from comfyrelay.server.http.bodies import SMALL_BYTES, large_body, read_body
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.holders import HolderKind, hold_connection
from comfyrelay.server.http.problems import problem_response
from comfyrelay.settings import Settings

log = structlog.get_logger(__name__)
SESSION_COOKIE = "comfyrelay_editor"
FOREIGN_PAGE = "This request came from a page of another site."


@dataclass(frozen=True, slots=True)
class Call:
    """A request of an authenticated user."""

    request: Request
    context: Context
    user: User

    @property
    def tenant_id(self) -> str:
        return self.user.tenant_id

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int | None, *, least: int = 0) -> int | None:
        """Return an integer from the query. Raises `InvalidInput` for other values."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > 12:
            raise InvalidInput(f"{name} must be an integer.")
        if int(text) < least:
            raise InvalidInput(f"{name} must be at least {least}.")
        return int(text)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])


Endpoint = Callable[[Call], Awaitable[Response]]


class ComfyuiRoutes:
    """Collects the routes of a module."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(
        self, method: str, path: str, *, has_twin: bool = True, body_limit: str | None = None
    ) -> Callable[[Endpoint], Endpoint]:
        """Add a route. `body_limit` is the setting that limits its body after authentication."""

        def mark(endpoint: Endpoint) -> Endpoint:
            if body_limit is not None:
                large_body(authenticate, limit=body_limit)(endpoint)

            async def handle(request: Request) -> Response:
                return await _answer(request, endpoint)

            for place in (path, f"/api{path}") if has_twin else (path,):
                self.routes.append(Route(place, handle, methods=[method]))
            return endpoint

        return mark


def session_cookie(context: Context) -> str:
    """Return the name of the cookie. Cookies ignore ports, so the servers on one machine need different names."""
    return f"{SESSION_COOKIE}_{context.settings.comfyui_api_port}"


async def authenticate(connection: HTTPConnection, context: Context) -> User:
    """Authenticate the user of a bearer token, or of a token in `X-API-Key`, which comfy-cli sends to Comfy Cloud. The
    editor has a session instead."""
    refuse_foreign_pages(connection)
    kind, _, secret = connection.headers.get("Authorization", "").partition(" ")
    secret = secret.strip() if kind.lower() == "bearer" else connection.headers.get(API_KEY, "")
    session = connection.cookies.get(session_cookie(context), "")
    if secret:
        user = await context.comfyui_user_of(secret)
    elif session:
        if connection.headers.get("Sec-Fetch-Site") == "same-site":
            # Browsers also send the cookie with requests from the pages of other ports.
            raise Forbidden(FOREIGN_PAGE)
        user = await context.editor_user_of(session)
    else:
        raise Unauthorized("Send an API token as a bearer token, or in the header X-API-Key.")
    if user is None:
        raise Unauthorized("This token or session is invalid or has expired.")
    hold_connection(connection.scope, HolderKind.USER, user.id)
    structlog.contextvars.bind_contextvars(tenant_id=user.tenant_id, user_id=user.id)
    return user


def refuse_foreign_pages(connection: HTTPConnection) -> None:
    """Refuse requests from pages of other origins, as ComfyUI does."""
    origin, host = connection.headers.get("Origin"), connection.headers.get("Host", "")
    is_foreign = origin is not None and origin_parts(origin).netloc.lower() != host.lower()
    if is_foreign or connection.headers.get("Sec-Fetch-Site") == "cross-site":
        raise Forbidden(FOREIGN_PAGE)


async def read_json(call: Call, endpoint: Endpoint, *, default: Any = None) -> Any:
    """Return the JSON body, whatever its content type is; `default` for an empty body."""
    body = await read_body(call.request, endpoint)
    if not body.strip() and default is not None:
        return default
    settings = call.context.settings
    return await asyncio.to_thread(_parse, body, settings) if len(body) > SMALL_BYTES else _parse(body, settings)


async def read_object(call: Call, endpoint: Endpoint) -> dict[str, Any]:
    body = await read_json(call, endpoint, default={})
    if not isinstance(body, dict):
        raise InvalidInput("The body must be a JSON object.")
    return body


def texts_in(value: object, name: str) -> list[str]:
    """Return a list of texts, such as ids. Raises `InvalidInput` for other values."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidInput(f"{name} must be a list of texts.")
    return value


def empty() -> Response:
    return Response(status_code=200)


def refuse(status: int, code: str, message: str) -> Response:
    """Return an error with the field that ComfyUI sends, and those of its contract."""
    return JSONResponse({"error": message, "code": code, "message": message}, status_code=status)


def not_found() -> Response:
    return PlainTextResponse("404: Not Found", status_code=404)


def _parse(body: bytes, settings: Settings) -> Any:
    if has_more_values(body, settings.max_body_values):
        raise TooLarge(f"The body has more than {settings.max_body_values} values.")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInput("This is not valid JSON.") from None
    try:
        return check_json(value)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    context: Context = request.app.state.context
    try:
        return await endpoint(Call(request, context, await authenticate(request, context)))
    except ComfyRelayError as error:
        return error_body(error)


def error_body(error: ComfyRelayError) -> Response:
    """Return an error in ComfyUI's format, with the fields of its contract."""
    own = problem_response(error)
    if own is None:
        # The cause is hidden from the caller.
        log.error("request.failed", exc_info=error)
        return PlainTextResponse("500 Internal Server Error", status_code=500)
    fields = error.errors if isinstance(error, InvalidInput) else {}
    message = " ".join([error.detail, *(f"{name}: {text}" for name, text in fields.items())])
    status = 402 if isinstance(error, InsufficientTokens) else 400 if own.status_code == 422 else own.status_code
    headers = {name: own.headers[name] for name in ("Retry-After", "WWW-Authenticate") if name in own.headers}
    content = {"error": problem(error.code, message), "node_errors": {}, "code": error.code, "message": message}
    return JSONResponse(content, status_code=status, headers=headers)
