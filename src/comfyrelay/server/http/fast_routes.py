"""Routes that run without FastAPI's machinery, because they are called for every job.

FastAPI matches a request against all routes, resolves dependencies, and validates and serializes through several
layers, which takes longer than the rest of a poll. `FastRoutes` reads the declaration of a route once, finds the route
by its exact path, and calls the same endpoint with the same models. It passes every request that is not plainly valid
on to FastAPI, so that the responses are identical.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comfyrelay.errors import ComfyRelayError
from comfyrelay.server.http.bodies import SMALL_BYTES, is_json, read_body
from comfyrelay.server.http.problems import error_response
from comfyrelay.server.lazy_routers import LazyRouter

E = TypeVar("E", bound=Callable[..., Any])
_FAST: set[Callable[..., Any]] = set()


def fast(endpoint: E) -> E:
    """Mark a route that `FastRoutes` serves. Its parameters are a body, the request, dependencies that need only the
    request, and the response, whose status it may change. It returns a model."""
    _FAST.add(endpoint)
    return endpoint


class _NotPlain(Exception):
    """FastAPI must handle this request. Its body has already been read."""

    def __init__(self, body: bytes) -> None:
        self.body = body


class _FastRoute:
    def __init__(self, route: APIRoute) -> None:
        dependant = route.dependant
        [body] = dependant.body_params
        model = body.field_info.annotation
        are_simple = _is_simple(dependant, has_body=True) and all(map(_is_simple, dependant.dependencies))
        if model is None or not are_simple:
            raise TypeError(f"{route.path} has parameters that a fast route does not support.")
        self.route = route
        self._body_name = body.name
        self._request_name = dependant.request_param_name
        self._response_name = dependant.response_param_name
        self._dependencies = [_named_call(dependency) for dependency in dependant.dependencies]
        self._validate = TypeAdapter(model).validator.validate_python
        self._serialize = TypeAdapter(route.response_model).serializer.to_json

    async def answer(self, request: Request) -> tuple[int, bytes]:
        """Return the status and the body of a successful response, or raise the endpoint's exception."""
        endpoint = self.route.endpoint
        content = await read_body(request, endpoint)
        # A large body is parsed in a thread.
        if len(content) > SMALL_BYTES or not is_json(request):
            raise _NotPlain(content)
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError):
            raise _NotPlain(content) from None
        # Callers are authenticated before their body is validated, as by FastAPI.
        values = {name: await resolve(request) for name, resolve in self._dependencies}
        try:
            values[self._body_name] = self._validate(parsed)
        except ValidationError:
            raise _NotPlain(content) from None
        if self._request_name is not None:
            values[self._request_name] = request
        status = self.route.status_code or 200
        if self._response_name is None:
            return status, self._serialize(await endpoint(**values))
        response = values[self._response_name] = Response(status_code=status)
        content = self._serialize(await endpoint(**values))
        return response.status_code, content


class FastRoutes:
    """ASGI middleware next to FastAPI's router that serves the routes marked with `fast`."""

    def __init__(self, app: ASGIApp, *, routers: Iterable[LazyRouter]) -> None:
        self._app = app
        self._routers = list(routers)
        self._loaded: dict[LazyRouter, dict[tuple[str, str], _FastRoute]] = {}

    def find(self, method: str, path: str) -> _FastRoute | None:
        """Return the marked route with this method and path. The first request to a router imports it."""
        for router in self._routers:
            if path.startswith(router.prefix):
                if router not in self._loaded:
                    self._loaded[router] = _marked(router.load().routes)
                return self._loaded[router].get((method, path))
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope["method"], scope["path"]) if scope["type"] == "http" else None
        # The path of a mounted application begins with its root path.
        if found is None or scope.get("root_path"):
            await self._app(scope, receive, send)
            return
        # Metrics and error responses read the route.
        scope["route"] = found.route
        request = Request(scope, receive, send)
        try:
            status, content = await found.answer(request)
        except _NotPlain as error:
            await self._app(scope, _replay(error.body, receive), send)
        except (ComfyRelayError, HTTPException) as error:
            await (await error_response(request, error))(scope, receive, send)
        else:
            length = str(len(content)).encode()
            headers = [(b"content-length", length), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})


def _marked(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], _FastRoute]:
    marked = [route for route in routes if isinstance(route, APIRoute) and route.endpoint in _FAST]
    return {(method, route.path): _FastRoute(route) for route in marked for method in route.methods or ()}


def _is_simple(dependant: Dependant, *, has_body: bool = False) -> bool:
    """Whether a function only takes the request and its dependencies, and possibly a body."""
    others = (
        dependant.path_params,
        dependant.query_params,
        dependant.header_params,
        dependant.cookie_params,
        dependant.background_tasks_param_name,
        None if has_body else dependant.response_param_name,
        [] if has_body else [*dependant.body_params, *dependant.dependencies],
    )
    return not any(others)


def _named_call(dependency: Dependant) -> tuple[str, Callable[[Request], Awaitable[Any]]]:
    name, call = dependency.name, dependency.call
    is_async = any(map(inspect.iscoroutinefunction, (call, type(call).__call__)))
    if name is None or call is None or not is_async or dependency.request_param_name is None:
        raise TypeError(f"The dependency {name} of a fast route must be a coroutine of the request.")
    return name, call


def _replay(body: bytes, receive: Receive) -> Receive:
    """Replay a body that was already read, then pass on the following messages."""
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
