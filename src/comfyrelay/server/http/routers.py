"""Routers that skip requests with another path prefix."""

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.problems import error_responses


class Router(APIRouter):
    """FastAPI matches each request against all routes of all routers, about two hundred. This router checks its prefix
    first."""

    def __init__(self, *, prefix: str, route_class: type[APIRoute] = BodyRoute, **options: Any) -> None:
        super().__init__(prefix=prefix, route_class=route_class, **options)
        self._path_start = prefix.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # A mounted application has a root path.
        if not scope["path"].removeprefix(scope.get("root_path", "")).startswith(self._path_start):
            return Match.NONE, {}
        return super().matches(scope)


def user_router(prefix: str, tag: str) -> Router:
    """Create a router whose routes require a user, and document the errors that all of them share."""
    return Router(prefix=prefix, tags=[tag], responses=error_responses(401, 503))
