"""Routers that skip requests with another path prefix."""

from typing import Any

from fastapi import APIRouter
from starlette.routing import Match
from starlette.types import Scope


class Router(APIRouter):
    """FastAPI matches each request against all routes of all routers, about two hundred. This router checks its prefix
    first."""

    def __init__(self, *args: Any, prefix: str = "", **options: Any) -> None:
        super().__init__(*args, prefix=prefix, **options)
        self._begins = prefix.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # a mounted application has a root path
        if not scope["path"].removeprefix(scope.get("root_path", "")).startswith(self._begins):
            return Match.NONE, {}
        return super().matches(scope)
