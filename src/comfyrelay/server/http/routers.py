"""Routers that are asked only for what is theirs."""

from typing import Any

from fastapi import APIRouter
from starlette.routing import Match
from starlette.types import Scope


class Router(APIRouter):
    """FastAPI tries all routes of all routers one after the other, for every request: there are some two hundred. One
    whose prefix is another need not try its own."""

    def __init__(self, *args: Any, prefix: str = "", **options: Any) -> None:
        super().__init__(*args, prefix=prefix, **options)
        self._begins = prefix.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # below another application the path begins with where that has put this one
        if not scope["path"].removeprefix(scope.get("root_path", "")).startswith(self._begins):
            return Match.NONE, {}
        return super().matches(scope)
