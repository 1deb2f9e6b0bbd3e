"""The router of the admin API. Every route requires an administrator, records its change in the audit log, and
publishes it to the open pages of all administrators."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi import Depends, Request, Response

from comfyrelay.server.http.audited import handle_change, handle_read, is_object_path
from comfyrelay.server.http.auth import SAFE_METHODS, authenticate_user, current_admin
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
    """Mark a route that is not a GET but changes nothing. Publishing its calls would make pages reload."""
    _CHANGES_NOTHING.add(endpoint)
    return endpoint


class AdminRoute(BodyRoute):
    """A route that publishes its change: the kind from the first part of its path, and the names in the path."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        section, _, rest = self.path.removeprefix(f"{PREFIX}/").partition("/")
        if self.methods and self.methods <= SAFE_METHODS:
            return partial(handle_read, handle=handle, kind=section) if is_object_path(section, rest) else handle
        if self.endpoint in _CHANGES_NOTHING:
            return handle

        async def handle_and_publish(request: Request) -> Response:
            context: Context = request.app.state.context
            # The dependency of the route checks the user's rights.
            user = await authenticate_user(request, context)
            keys = request.path_params
            response = await handle_change(request, handle, user=user, action=self.name, kind=section, keys=keys)
            if response.status_code < 400:
                context.engine.operations.live.publish(KINDS.get(section, section), _name(section, request.path_params))
            return response

        return handle_and_publish


def _name(section: str, path_params: dict[str, Any]) -> str:
    """Return the name of the changed object. The path of a user does not contain the tenant."""
    if section == "users" or not path_params:
        return ANY
    return "/".join(str(value) for key, value in path_params.items() if key != "number")


def admin_router(path: str = "", *, caller: Callable[..., Any] = current_admin) -> Router:
    return Router(
        prefix=f"{PREFIX}{path}",
        tags=["admin"],
        dependencies=[Depends(caller)],
        responses=error_responses(401, 403, 503),
        route_class=AdminRoute,
    )
