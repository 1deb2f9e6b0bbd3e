"""Routes are matched in order, so the most frequent ones come first."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from tests.support.api import Api, open_api
from tests.support.world import SqliteBackend


@pytest.fixture
async def api(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Api]:
    """Route matching uses no database, so one backend is enough."""
    async with open_api(sqlite_backend, tmp_path) as api:
        yield api


async def test_no_path_is_redirected(api: Api) -> None:
    """A redirect would repeat the host that the request names."""
    paths = ["/api/ai-jobs/", "/api/worker/poll/", "/api/admin/workflows/", "/healthz/", "/api/presets/", "/files/"]
    answers = [await api.anonymous.http.get(path, headers={"Host": "evil.example"}) for path in paths]
    assert [answer.status_code // 100 for answer in answers] == [4] * len(paths)
    assert not any("evil.example" in f"{answer.headers}{answer.text}" for answer in answers)


@pytest.mark.parametrize("path", ["/", "/create", "/create/", "/queue/", "/console/workers/", "/sign-in/"])
async def test_page_is_found_with_and_without_a_slash(api: Api, path: str) -> None:
    # 503 without a built web app
    assert (await api.anonymous.http.get(path, headers={"Accept": "text/html"})).status_code in (200, 503)


async def test_frequent_routes_match_without_trying_other_routers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    matches = APIRoute.matches

    def counted(self: APIRoute, scope: Scope) -> tuple[Match, Scope]:
        tried.append(self.path)
        return matches(self, scope)

    monkeypatch.setattr(APIRoute, "matches", counted)
    calls: list[tuple[str, str, str]] = [
        ("POST", "/api/worker/poll", "/api/worker/"),
        ("POST", "/api/worker/complete", "/api/worker/"),
        ("GET", "/files/tenants/t/cat.png", "/files/"),
        ("POST", "/api/ai-jobs", "/api/ai-jobs"),
        ("GET", "/api/queue", "/api/queue"),
        ("GET", "/api/events", "/api/events"),
        ("POST", "/api/v2/jobs", "/api/v2/jobs"),
        ("GET", "/api/v2/assets/1", "/api/v2/assets"),
    ]
    for method, path, own in calls:
        tried.clear()
        answer = await api.anonymous.http.request(method, path)
        assert answer.status_code in {401, 403}
        assert tried
        assert [route for route in tried if not route.startswith(own)] == []
