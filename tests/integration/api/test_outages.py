"""Outages around the server are found in the background and shown from memory, even without a database."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import StorageUnavailable
from comfyrelay.services.operations import outages, readiness
from comfyrelay.services.operations.outages import certificate_problem
from tests.support.api import Api, Caller, problem_of
from tests.support.certificates import certificate_for
from tests.support.outages import database_down
from tests.support.world import execute

pytestmark = pytest.mark.both_databases
NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
async def admin(api: Api, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setattr(readiness, "CACHE_SECONDS", 0.0)
    await api.stop_loops()
    async with api.engine.databases.central.read() as tx:
        now = await tx.now()
    monkeypatch.setattr(api.engine.operations.outages, "_clock", lambda: now)
    return await api.user("root@example.com", is_admin=True)


async def found(api: Api, admin: Caller) -> list[dict[str, Any]]:
    await api.engine.operations.outages.run_once()
    return list((await admin.get("/api/admin/outages"))["items"])


async def test_healthy_server_has_no_outages(api: Api, admin: Caller) -> None:
    assert await admin.get("/api/admin/outages") == {"items": [], "checked_at": None}
    assert await found(api, admin) == []
    assert (await admin.get("/api/admin/outages"))["checked_at"] is not None


@pytest.mark.parametrize(("name", "kind"), [("central", "central"), ("main", "shard")])
async def test_database_outage_is_shown_without_the_database(api: Api, admin: Caller, name: str, kind: str) -> None:
    await found(api, admin)
    with database_down(api.engine.databases, name):
        [outage] = await found(api, admin)
        assert (outage["kind"], outage["name"], outage["is_severe"]) == (kind, name, True)
        assert "ustomers" in outage["means"]
        assert "COMFYRELAY_" in outage["advice"]
        [again] = await found(api, admin)
        assert again["since"] == outage["since"]
    assert await found(api, admin) == []


@pytest.mark.parametrize("name", ["central", "main"])
@pytest.mark.usefixtures("admin")
async def test_database_outage_is_confirmed_by_the_second_check(api: Api, name: str) -> None:
    service = api.engine.operations.outages
    for _ in range(2):
        with database_down(api.engine.databases, name):
            await service.run_once()
        assert (len(service.current), list(service.confirmed)) == (1, [])
        await service.run_once()
        assert not service.current
    with database_down(api.engine.databases, name):
        await service.run_once()
        await service.run_once()
        assert [outage.name for outage in service.confirmed] == [name]


async def test_console_opens_for_a_known_administrator_while_the_database_is_down(api: Api, admin: Caller) -> None:
    user = await api.user("somebody@example.com")
    await found(api, admin)
    with database_down(api.engine.databases, "central"):
        # Before and after the background check finds the outage.
        assert (await admin.get("/api/me"))["is_admin"]
        await api.engine.operations.outages.run_once()
        assert (await admin.get("/api/me"))["email"] == "root@example.com"
        problem_of(await user.call("GET", "/api/me"), 503)
        problem_of(await api.anonymous.call("GET", "/api/me"), 401)


async def test_outages_are_shown_to_known_administrators_only(api: Api, admin: Caller) -> None:
    user = await api.user("somebody@example.com")
    await found(api, admin)
    problem_of(await user.call("GET", "/api/admin/outages"), 403)
    with database_down(api.engine.databases, "central"):
        # Before the first check, the server tries the database.
        assert await admin.get("/api/admin/outages")
        await api.engine.operations.outages.run_once()
        assert (await admin.get("/api/admin/outages"))["items"]
        problem_of(await api.anonymous.call("GET", "/api/admin/outages"), 401)


async def test_pending_migration_is_shown(api: Api, admin: Caller) -> None:
    await execute(api.engine.databases.shards["main"], "UPDATE alembic_version SET version_num = 'older'")
    [outage] = await found(api, admin)
    assert (outage["kind"], outage["name"]) == ("schema", "main")
    assert "comfyrelay db upgrade" in outage["advice"]


@pytest.mark.parametrize("failure", ["refuses", "hangs"])
async def test_unavailable_storage_is_shown(
    api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    async def check() -> None:
        if failure == "hangs":
            await asyncio.Event().wait()
        raise StorageUnavailable("It is away.")

    monkeypatch.setattr(api.engine.objects, "check", check)
    monkeypatch.setattr(readiness, "STORAGE_SECONDS", 0.1)
    assert [outage["kind"] for outage in await found(api, admin)] == ["storage"]


async def test_disk_that_is_nearly_full_is_shown(api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "disk_usage", lambda _folder: (100 * 1024**3, 1024**3))
    shown = await found(api, admin)
    assert {outage["kind"] for outage in shown} == {"disk"}
    assert not any(outage["is_severe"] for outage in shown)
    assert "1.0 GiB of 100 GiB are free" in shown[0]["detail"]


async def test_clock_difference_is_shown(api: Api, admin: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    service = api.engine.operations.outages
    clock = service._clock
    monkeypatch.setattr(service, "_clock", lambda: clock() + timedelta(minutes=2))
    [outage] = await found(api, admin)
    assert outage["kind"] == "clock"
    assert "2 min ahead of" in outage["detail"]


@pytest.mark.parametrize(
    ("valid_days", "problem"),
    [(60, None), (5, ("The certificate of localhost expires in 4 days.", False)), (-1, ("not valid", True))],
)
async def test_expiring_certificate_is_reported(
    tmp_path: Path, valid_days: int, problem: tuple[str, bool] | None
) -> None:
    now = datetime.now(UTC)
    certificate, key = certificate_for("localhost", tmp_path, expires=now + timedelta(days=valid_days))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=serving)
    port = server.sockets[0].getsockname()[1]
    try:
        result = await certificate_problem("localhost", port, now=now, context=trusting)
    finally:
        server.close()
    if problem is None:
        assert result is None
    else:
        assert result is not None
        assert problem[0] in result[0]
        assert result[1] is problem[1]


async def test_address_that_does_not_answer_has_no_certificate_problem() -> None:
    assert await certificate_problem("127.0.0.1", 1, now=NOW) is None
