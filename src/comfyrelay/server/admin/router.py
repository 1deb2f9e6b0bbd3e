"""The router of the admin API. Every route requires an administrator, and publishes its change to the open pages of all
administrators."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Depends, Request, Response

from comfyrelay.server.http.auth import SAFE_METHODS, current_admin
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.services.operations.live import ANY

E = TypeVar("E", bound=Callable[..., Any])
PREFIX = "/api/admin"
# Kinds that differ from the first part of the path.
KINDS = {"users": "tenants", "outbox": "webhooks", "bursts": "dispatches"}
_CHANGES_NOTHING: set[Callable[..., Any]] = set()


def changes_nothing(endpoint: E) -> E:
    """Mark a route that changes nothing, although it is not a GET. Publishing it would make pages reload."""
    _CHANGES_NOTHING.add(endpoint)
    return endpoint


class AdminRoute(BodyRoute):
    """A route that publishes its change: the kind from the first part of its path, and the names in the path."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if (self.methods and self.methods <= SAFE_METHODS) or self.endpoint in _CHANGES_NOTHING:
            return handle
        section = self.path.removeprefix(f"{PREFIX}/").partition("/")[0]

        async def handle_and_publish(request: Request) -> Response:
            response = await handle(request)
            if response.status_code < 400:
                context: Context = request.app.state.context
                context.engine.operations.live.publish(KINDS.get(section, section), _name(section, request.path_params))
            return response

        return handle_and_publish


def _name(section: str, path_params: dict[str, Any]) -> str:
    """Return the name of the changed object. The path of a user does not contain the tenant."""
    if section == "users" or not path_params:
        return ANY
    return "/".join(str(value) for key, value in path_params.items() if key != "number")


def admin_router(path: str = "") -> Router:
    return Router(
        prefix=f"{PREFIX}{path}",
        tags=["admin"],
        dependencies=[Depends(current_admin)],
        responses=error_responses(401, 403, 503),
        route_class=AdminRoute,
    )
