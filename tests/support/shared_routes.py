"""FastAPI makes all routes anew for each application, which takes longer than most tests do; all are alike."""

import asyncio
from contextlib import suppress
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.routing import _EffectiveRouteContext as EffectiveRoute


def make_once() -> Any:
    """What makes a route that was not made before; to be put in the place of FastAPI's own."""
    make, made = EffectiveRoute.from_api_route, dict[tuple[int, str], EffectiveRoute]()

    def remembered(*, original_route: APIRoute, include_context: Any) -> EffectiveRoute:
        # who is remembered holds its original, so that no other one gets its number
        key = (id(original_route), include_context.prefix)
        if key not in made:
            made[key] = make(original_route=original_route, include_context=include_context)
        return made[key]

    return remembered


def make_all() -> None:
    """Make all routes of the server now, for every process that is forked later."""
    from comfyrelay.server.app import ROUTERS  # noqa: PLC0415 - in the process that forks
    from comfyrelay.server.operations import files  # noqa: PLC0415 - in the process that forks

    EffectiveRoute.from_api_route = make_once()  # type: ignore[method-assign]
    app = FastAPI()
    for router in (*ROUTERS, files.router):
        app.include_router(router)

    async def nothing(*_message: Any) -> Any:
        return {"type": "http.disconnect"}

    # they are made when somebody asks for one
    scope = {"type": "http", "method": "GET", "path": "/nowhere", "headers": [], "query_string": b""}
    with suppress(Exception):
        asyncio.run(app(scope, nothing, nothing))
