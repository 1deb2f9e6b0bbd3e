"""Alerts reach people by mail and by web services, with a quiet time for each problem."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comfyrelay.errors import ConfigurationError
from comfyrelay.services.engine import Engine
from comfyrelay.services.operations import readiness
from comfyrelay.services.operations.alerts import Alerts
from comfyrelay.services.operations.outages import Outage, OutageKind
from comfyrelay.settings import Settings
from tests.support.api import Api, data_of, open_api, problem_of
from tests.support.mail import Mailbox, mail_server
from tests.support.operator import open_operator_scenario
from tests.support.outages import database_down
from tests.support.world import SqliteBackend

OPS = "mailto:ops@example.com"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with mail_server() as box:
        yield box


def outage(kind: OutageKind = OutageKind.DISK, name: str = "data") -> Outage:
    return Outage(
        kind=kind, name=name, detail="5% free.", means="Uploads fail.", advice="Free space.", is_severe=True, since=NOW
    )


@asynccontextmanager
async def alerting(backend: SqliteBackend, folder: Path, mailbox: Mailbox, rules: dict[str, Any]) -> AsyncIterator[Api]:
    async with open_api(backend, folder, alerts=rules, **mailbox.settings) as api:
        await api.stop_loops()
        api.engine.operations.alerts._clock = lambda: api.clock.now
        yield api


async def advance(api: Api, minutes: float) -> None:
    await api.clock.set(api.clock.now + timedelta(minutes=minutes))


async def test_problem_is_mailed_once_in_its_quiet_time(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS], "quiet_minutes": 30}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        alerts = api.engine.operations.alerts
        await alerts.notify([outage()])
        mail = await mailbox.next()
        assert (mail["To"], mail["Subject"]) == ("ops@example.com", "relay.test: 1 problem")
        assert mail.get_content().split("\r\n") == ["data: 5% free.", "Uploads fail.", "Free space.", ""]
        await advance(api, 29)
        await alerts.notify([outage()])
        assert mailbox.mails.empty()
        await advance(api, 2)
        await alerts.notify([outage()])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"


async def test_new_and_resolved_problems_are_mailed_at_once(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS], "quiet_minutes": 30}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        alerts, clock = api.engine.operations.alerts, outage(OutageKind.CLOCK)
        await alerts.notify([outage()])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"
        await alerts.notify([outage(), clock])
        assert (await mailbox.next())["Subject"] == "relay.test: 2 problems"
        await alerts.notify([clock])
        assert "data: this problem is over." in (await mailbox.next()).get_content()
        await alerts.notify([])
        assert (await mailbox.next())["Subject"] == "relay.test: all problems are over"
        await advance(api, 31)
        await alerts.notify([])
        assert mailbox.mails.empty()


async def test_problem_that_comes_and_goes_is_mailed_once_in_its_quiet_time(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS], "quiet_minutes": 30}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        alerts = api.engine.operations.alerts
        for found in ([outage()], [], [outage()], [], [outage()]):
            await alerts.notify(found)
            await advance(api, 5)
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"
        assert (await mailbox.next())["Subject"] == "relay.test: all problems are over"
        assert mailbox.mails.empty()
        await advance(api, 5)
        await alerts.notify([outage()])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"


def another_server(api: Api) -> Alerts:
    own = api.engine.operations.alerts
    return Alerts(api.engine.databases, own.rules, api.engine.accounts.mailer, host="relay.test", clock=own._clock)


async def test_one_of_several_servers_sends_each_alert(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS], "quiet_minutes": 0}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        first, second = api.engine.operations.alerts, another_server(api)
        storage, disk = outage(OutageKind.STORAGE, "storage"), outage()
        await first.notify([storage])
        await second.notify([storage])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"
        # Only the second server has the disk problem.
        await second.notify([storage, disk])
        await first.notify([storage])
        assert (await mailbox.next())["Subject"] == "relay.test: 2 problems"
        await first.notify([])
        assert mailbox.mails.empty()
        await second.notify([])
        assert (await mailbox.next())["Subject"] == "relay.test: all problems are over"
        await first.notify([])
        assert mailbox.mails.empty()


async def test_problem_of_a_stopped_server_ends(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS], "quiet_minutes": 0}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        await another_server(api).notify([outage()])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"
        await advance(api, 3)
        await api.engine.operations.alerts.notify([])
        assert (await mailbox.next())["Subject"] == "relay.test: all problems are over"


async def test_alert_is_sent_while_the_database_is_unreachable(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS], "quiet_minutes": 0}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        alerts, central = api.engine.operations.alerts, outage(OutageKind.CENTRAL, "central")
        await alerts.notify([outage()])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"
        with database_down(api.engine.databases, "central"):
            await alerts.notify([outage(), central])
            assert (await mailbox.next())["Subject"] == "relay.test: 2 problems"
            await alerts.notify([outage(), central])
        await alerts.notify([outage()])
        mail = await mailbox.next()
        assert mail["Subject"] == "relay.test: 1 problem"
        assert "central: this problem is over." in mail.get_content()
        assert mailbox.mails.empty()


async def test_database_outage_is_mailed_after_the_second_failed_check(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CACHE_SECONDS", 0.0)
    rules = {"central": {"urls": [OPS], "quiet_minutes": 30}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        for _ in range(2):
            with database_down(api.engine.databases, "central"):
                await api.engine._find_outages()
            await api.engine._find_outages()
        assert mailbox.mails.empty()
        with database_down(api.engine.databases, "central"):
            await api.engine._find_outages()
            await api.engine._find_outages()
        assert "Customers cannot sign in" in (await mailbox.next()).get_content()


async def test_problems_of_workers_and_jobs_are_found(api: Api) -> None:
    desk = await open_operator_scenario(api)
    await desk.submit()
    problems = api.engine.operations.fleet_problems
    assert [(each.kind, each.name) for each in await problems.find()] == [("unrunnable", "queue")]
    await desk.worker()
    await advance(api, 1)
    assert "worker" not in {each.kind for each in await problems.find()}
    await advance(api, 60)
    assert ("worker", "gpu-1") in {(each.kind, each.name) for each in await problems.find()}


async def test_kind_with_its_own_rule_does_not_use_the_general_rule(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    rules = {"*": {"urls": [OPS]}, "disk": {"urls": ["mailto:disks@example.com"], "quiet_minutes": 0}}
    async with alerting(sqlite_backend, tmp_path, mailbox, rules) as api:
        await api.engine.operations.alerts.notify([outage()])
        assert (await mailbox.next())["To"] == "disks@example.com"
        # Without a quiet time, the alert of a lasting problem is not repeated.
        await api.engine.operations.alerts.notify([outage()])
        assert mailbox.mails.empty()


async def test_alert_that_reached_nobody_is_sent_again(
    sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox
) -> None:
    async with alerting(sqlite_backend, tmp_path, mailbox, {"*": {"urls": [OPS]}}) as api:
        mailbox.refusal = "451 Try later"
        await api.engine.operations.alerts.notify([outage()])
        admin = await api.user("root@example.com", is_admin=True)
        [rule] = (await admin.get("/api/admin/alerts"))["items"]
        assert rule["failures"] == {OPS: "The mail server refused the recipient: 451 Try later"}
        mailbox.refusal = None
        await api.engine.operations.alerts.notify([outage()])
        assert (await mailbox.next())["Subject"] == "relay.test: 1 problem"


async def test_administrator_tests_a_rule(sqlite_backend: SqliteBackend, tmp_path: Path, mailbox: Mailbox) -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        received.put_nowait(head)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        urls = [OPS, f"ntfy://127.0.0.1:{port}/secret-topic", "json://127.0.0.1:1/hook"]
        async with alerting(sqlite_backend, tmp_path, mailbox, {"disk": {"urls": urls}}) as api:
            admin = await api.user("root@example.com", is_admin=True)
            [rule] = (await admin.get("/api/admin/alerts"))["items"]
            assert rule["urls"] == [OPS, "ntfy://…", "json://127.0.0.1:1/…"]
            tested = data_of(await admin.call("POST", "/api/admin/alerts/disk/test"))
            assert tested["failures"].keys() == {"json://127.0.0.1:1/…"}
            assert (await mailbox.next())["Subject"] == "Test alert from relay.test"
            assert b"POST" in await asyncio.wait_for(received.get(), 60)
            problem_of(await admin.call("POST", "/api/admin/alerts/none/test"), 404)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"weather": {"urls": ["ntfys://ntfy.sh/topic"]}}, "a rule for 'weather'"),
        ({"*": {"urls": [OPS]}}, "Set COMFYRELAY_SMTP_URL"),
        ({"*": {"urls": ["nothing://secret"]}}, "No service has this kind of URL"),
    ],
)
async def test_rule_that_can_never_alert_is_refused_at_the_start(
    tmp_path: Path, rules: dict[str, Any], words: str
) -> None:
    engine = Engine(Settings(data_dir=tmp_path, alerts=rules))
    try:
        with pytest.raises(ConfigurationError, match=words) as refused:
            engine.operations.alerts.check()
        assert "secret" not in str(refused.value)
    finally:
        await engine.databases.close()
