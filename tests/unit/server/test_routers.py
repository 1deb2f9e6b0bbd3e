"""A router is imported and its routes are tried only for its own paths."""

import sys
from types import ModuleType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match
from structlog.testing import capture_logs

from comfyrelay.desk.routes import ROUTERS as DESK_ROUTERS
from comfyrelay.protocol.base import SentBody, build_models
from comfyrelay.server.app import ROUTERS
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.routing import Router
from comfyrelay.server.lazy_routers import LazyApp, LazyRouter, lazy_routers

PACKAGE = "routers_of_a_test"
PREFIXES = {"jobs": "/api/jobs", "fleets": "/api/fleets/{slug}", "others": "/api"}


class Module(ModuleType):
    """A module that records when its router is read."""

    def __init__(self, prefix: str, router: Router, loaded: list[str]) -> None:
        super().__init__(prefix)
        self._router, self._loaded = router, loaded

    @property
    def router(self) -> Router:
        self._loaded.append(self._router.prefix)
        return self._router


class Application:
    """An application with three routers, which records the routers that are loaded and tried."""

    def __init__(self) -> None:
        self.app = LazyApp()
        self.app.include_routers(lazy_routers(PACKAGE, PREFIXES))
        self.tried: list[str] = []
        self.loaded: list[str] = []

    def module(self, prefix: str) -> ModuleType:
        tried = self.tried

        class Noted(BodyRoute):
            def matches(self, scope: Any) -> tuple[Match, Any]:
                tried.append(prefix)
                return super().matches(scope)

        router = Router(prefix=prefix, route_class=Noted)

        @router.get("/state")
        async def state() -> str:
            return prefix

        @router.post("/state")
        async def change() -> str:
            return f"changed {prefix}"

        return Module(prefix, router, self.loaded)


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Application:
    found = Application()
    for name, prefix in PREFIXES.items():
        monkeypatch.setitem(sys.modules, f"{PACKAGE}.{name}", found.module(prefix))
    return found


async def call(app: FastAPI, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.request(method, path)


@pytest.mark.parametrize("prefix", PREFIXES.values())
async def test_other_routers_are_not_tried(application: Application, prefix: str) -> None:
    path = f"{prefix}/state".replace("{slug}", "a")
    assert (await call(application.app, path)).json() == prefix
    assert set(application.tried) == {prefix}
    assert (await call(application.app, path, "POST")).json() == f"changed {prefix}"
    assert (await call(application.app, path, "DELETE")).status_code == 405


async def test_mounted_application_matches_the_same_paths(application: Application) -> None:
    outer = FastAPI()
    outer.mount("/relay", application.app)
    assert (await call(outer, "/relay/api/jobs/state")).json() == "/api/jobs"
    assert (await call(outer, "/relay/nowhere")).status_code == 404


async def test_api_documentation_has_the_routes_of_all_routers(application: Application) -> None:
    assert set(application.app.openapi()["paths"]) == {f"{prefix}/state" for prefix in PREFIXES.values()}


async def test_warm_up_does_its_work_and_imports_all_routers(application: Application) -> None:
    done: list[str] = []
    application.app.warm_ups = (lambda: done.append("statements"),)
    application.loaded.clear()
    async with application.app.warming_up() as task:
        assert done == []
        await task
    assert done == ["statements"]
    assert application.loaded == [*PREFIXES.values()]


@pytest.mark.parametrize("router", [*ROUTERS, *DESK_ROUTERS], ids=lambda router: f"{router.module}:{router.name}")
def test_table_has_the_prefix_of_each_router(router: LazyRouter) -> None:
    assert router.load().prefix == router.prefix
    with pytest.raises(TypeError, match=f"{router.module} has the prefix"):
        router._replace(prefix="/other").load()


async def test_failed_warm_up_is_logged_and_ends_nothing_else(application: Application) -> None:
    def fail() -> None:
        raise RuntimeError("no statement")

    application.app.warm_ups = (fail,)
    with capture_logs() as logs:
        async with application.app.warming_up() as task:
            await task
    assert [log["event"] for log in logs] == ["server.warm_up_failed"]


def test_models_are_built_at_their_first_use_or_by_the_warm_up() -> None:
    class Used(SentBody):
        name: str

    class Unused(SentBody):
        name: str

    assert not Used.__pydantic_complete__
    assert Used(name="a").name == "a"
    assert (Used.__pydantic_complete__, Unused.__pydantic_complete__) == (True, False)
    build_models()
    assert Unused.__pydantic_complete__
