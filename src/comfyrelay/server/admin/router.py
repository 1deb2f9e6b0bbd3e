"""How every part of the admin API begins: with an administrator, whatever its routes say. What one of them changes, the
pages of all administrators hear of."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Depends, Request, Response

from comfyrelay.server.http.auth import SAFE_METHODS, current_admin
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import Context
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router
from comfyrelay.services.operations.live import ANY

E = TypeVar("E", bound=Callable[..., Any])
PREFIX = "/api/admin"
# Where what is changed is called otherwise than the path begins.
KINDS = {"users": "tenants", "outbox": "webhooks", "bursts": "dispatches"}


_CHANGES_NOTHING: set[Callable[..., Any]] = set()


def changes_nothing(endpoint: E) -> E:
    """For a route that only looks, though it is no GET: a page that hears of it would look again, for ever."""
    _CHANGES_NOTHING.add(endpoint)
    return endpoint


class AdminRoute(BodyRoute):
    """A route that says what was changed by it: by the first word of its path, and the names in it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if (self.methods and self.methods <= SAFE_METHODS) or self.endpoint in _CHANGES_NOTHING:
            return handle
        word = self.path.removeprefix(f"{PREFIX}/").partition("/")[0]

        async def handle_and_publish(request: Request) -> Response:
            response = await handle(request)
            if response.status_code < 400:
                context: Context = request.app.state.context
                context.engine.operations.live.publish(KINDS.get(word, word), _name(word, request.path_params))
            return response

        return handle_and_publish


def _name(word: str, named: dict[str, Any]) -> str:
    """As the API names it; nobody knows the tenant of a user by the path."""
    if word == "users" or not named:
        return ANY
    return "/".join(str(each) for key, each in named.items() if key not in {"number"})


def admin_router(path: str = "") -> Router:
    return Router(
        prefix=f"{PREFIX}{path}",
        tags=["admin"],
        dependencies=[Depends(current_admin)],
        responses=may_answer(401, 403, 503),
        route_class=AdminRoute,
    )
