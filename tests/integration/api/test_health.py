"""Liveness and readiness checks are public and name the part that is unavailable."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from comfyrelay.errors import StorageUnavailable
from comfyrelay.server.app import create_app
from comfyrelay.services.databases import Databases
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations.readiness import Readiness
from comfyrelay.settings import Settings
from comfyrelay.store.database import Database
from comfyrelay.store.notify import NotifyChannel
from tests.support.api import SECRETS, Api, problem_of
from tests.support.outages import database_down
from tests.support.world import PostgresBackend, SqliteBackend, execute


@pytest.fixture
async def two_shards(backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[Databases]:
    async with backend.databases(["a", "b"]) as (central, shards, _):
        databases = Databases(Database("central", central), {name: Database(name, url) for name, url in shards.items()})
        yield databases
        await databases.close()


async def test_ready_server_reports_ready_without_authentication(api: Api) -> None:
    assert await api.anonymous.get("/healthz") == {"status": "ok"}
    assert await api.anonymous.get("/readyz") == {"status": "ok", "problems": {}}


async def test_liveness_ignores_unreachable_databases(api: Api) -> None:
    await api.stop_loops()
    with database_down(api.engine.databases, "central"), database_down(api.engine.databases, "main"):
        assert await api.anonymous.get("/healthz") == {"status": "ok"}


@pytest.mark.parametrize("name", ["central", "main"])
async def test_unreachable_database_is_named(api: Api, name: str) -> None:
    await api.stop_loops()
    with database_down(api.engine.databases, name):
        problem = problem_of(await api.anonymous.call("GET", "/readyz"), 503)
    assert problem["errors"].keys() == {name}
    assert name in problem["detail"]


async def test_outdated_schema_is_named(api: Api) -> None:
    await execute(api.engine.databases.shards["main"], "UPDATE alembic_version SET version_num = 'older'")
    problem = problem_of(await api.anonymous.call("GET", "/readyz"), 503)
    assert "comfyrelay db upgrade" in problem["errors"]["main"]


async def test_schema_of_another_version_is_named(api: Api) -> None:
    await execute(api.engine.databases.central, "ALTER TABLE workflows RENAME COLUMN may_burst TO bursts")
    problem = problem_of(await api.anonymous.call("GET", "/readyz"), 503)
    assert problem["errors"] == {"central": "The schema belongs to another version. Run `comfyrelay db status`."}


async def test_unusable_storage_is_named_without_its_path(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        raise StorageUnavailable("cannot write to /secret/folder")

    monkeypatch.setattr(api.engine.objects, "check", check)
    problem = problem_of(await api.anonymous.call("GET", "/readyz"), 503)
    assert problem["errors"].keys() == {"storage"}
    assert "/secret" not in str(problem)


async def test_unreachable_shard_keeps_the_server_ready(api: Api, two_shards: Databases) -> None:
    """Tenants of the other shards keep working."""
    with database_down(two_shards, "a"):
        checked = await Readiness(two_shards, api.engine.objects).check()
        assert checked.is_ready
        assert checked.problems.keys() == {"a"}
        with database_down(two_shards, "b"):
            engine = Engine(
                Settings(data_dir=api.engine.settings.data_dir),
                notify_channel=NotifyChannel(),
                signing_secrets=SECRETS.signing,
            )
            app = create_app(engine, SECRETS)
            engine.operations.readiness = Readiness(two_shards, api.engine.objects)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay.test") as http:
                assert problem_of(await http.get("/readyz"), 503)["errors"].keys() == {"a", "b"}


async def test_frequent_health_checks_are_cached(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = []

    async def check() -> None:
        checks.append(1)

    monkeypatch.setattr(api.engine.objects, "check", check)
    for _ in range(5):
        await api.anonymous.get("/readyz")
    assert len(checks) == 1


async def test_unknown_address_is_html_for_browsers_and_json_for_programs(api: Api) -> None:
    shown = await api.anonymous.call("GET", "/nowhere", headers={"Accept": "text/html"})
    # 503, with a page that says so, if the app is not built
    assert shown.status_code in (404, 503)
    assert shown.headers["Content-Type"].startswith("text/html")
    problem_of(await api.anonymous.call("GET", "/nowhere", headers={"Accept": "application/json"}), 404)
    problem_of(await api.anonymous.call("GET", "/api/nowhere", headers={"Accept": "text/html"}), 404)
