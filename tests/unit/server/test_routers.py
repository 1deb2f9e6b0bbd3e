"""A router matches its routes only for its own paths."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match

from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.routing import Router

PREFIXES = ("/api/jobs", "/api/fleets/{slug}", "/api")


class Application:
    """An application of three routers that records which of them match routes."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.tried: set[str] = set()
        for prefix in PREFIXES:
            self._add(prefix)

    def _add(self, prefix: str) -> None:
        tried = self.tried

        class Noted(BodyRoute):
            def matches(self, scope: Any) -> tuple[Match, Any]:
                tried.add(prefix)
                return super().matches(scope)

        router = Router(prefix=prefix, route_class=Noted)

        @router.get("/state")
        async def state() -> str:
            return prefix

        self.app.include_router(router)


async def get(app: FastAPI, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.get(path)


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_other_routers_are_not_tried(prefix: str) -> None:
    application = Application()
    assert (await get(application.app, f"{prefix}/state".replace("{slug}", "a"))).json() == prefix
    assert application.tried == {prefix}


async def test_mounted_application_matches_the_same_paths() -> None:
    outer = FastAPI()
    outer.mount("/relay", Application().app)
    assert (await get(outer, "/relay/api/jobs/state")).json() == "/api/jobs"
    assert (await get(outer, "/relay/nowhere")).status_code == 404
