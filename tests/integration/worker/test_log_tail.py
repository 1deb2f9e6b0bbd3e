"""A worker sends the last few lines of its log on request, without secrets."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from comfyrelay.protocol.worker import MAX_LOG_BYTES, MAX_LOG_LINES
from comfyrelay.worker.console import WorkerConsole
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.log_tail import LONGEST_LINE, LogTail
from tests.support.leases import make_lease
from tests.support.world import PATIENCE_SECONDS


@asynccontextmanager
async def plane(lines: list[str] | None) -> AsyncIterator[tuple[ControlPlane, "asyncio.Queue[Any]", dict[str, int]]]:
    """Yield a control plane that requests logs, the logs that it received, and the statuses of its answers."""
    sent: asyncio.Queue[Any] = asyncio.Queue()
    status = {"logs": 200}

    async def poll(_request: web.Request) -> web.Response:
        return web.json_response({"data": {"job": None, "wants_logs": True}})

    async def beat(_request: web.Request) -> web.Response:
        return web.json_response({"data": {"lease_expires_at": "2030-01-01T00:00:00Z", "wants_logs": True}})

    async def logs(request: web.Request) -> web.Response:
        await sent.put(await request.json())
        return web.json_response({"data": {"lines": 1}}, status=status["logs"])

    app = web.Application()
    app.router.add_post("/api/worker/poll", poll)
    app.router.add_post("/api/worker/heartbeat", beat)
    app.router.add_post("/api/worker/logs", logs)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        control = ControlPlane(url, worker_id="gpu-1", last_lines=None if lines is None else lambda: lines)
        control.token = "token"
        try:
            yield control, sent, status
        finally:
            await control.close()


async def test_log_lines_are_sent_when_a_poll_or_heartbeat_requests_them() -> None:
    async with plane(["one", "two"]) as (control, sent, _status), asyncio.timeout(PATIENCE_SECONDS):
        assert await control.poll({}) is None
        assert await sent.get() == {"lines": ["one", "two"]}
        assert control._sending is not None
        await control._sending
        assert await control.heartbeat(make_lease()) is None
        assert await sent.get() == {"lines": ["one", "two"]}


async def test_refused_logs_do_not_stop_polling() -> None:
    async with plane(["one"]) as (control, sent, status), asyncio.timeout(PATIENCE_SECONDS):
        status["logs"] = 404
        for _ in range(2):
            assert await control.poll({}) is None
            await sent.get()
            assert control._sending is not None
            await control._sending


async def test_worker_without_log_lines_sends_none() -> None:
    async with plane(None) as (control, sent, _status):
        await control.poll({})
        assert control._sending is None
        assert sent.empty()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_log_lines_are_sent_with_secrets_hidden(is_terminal: bool) -> None:
    shown = Console(file=io.StringIO(), force_terminal=is_terminal)
    with WorkerConsole(shown, shows_jobs=False) as console:
        log = structlog.get_logger("test")
        log.info("worker.registered", token="hush", url="https://s3/x?X-Amz-Signature=hush", fleet="home")
        log.debug("worker.too_much")
    [line] = console.recent.last()
    event = json.loads(line)
    assert (event["event"], event["fleet"], event["level"]) == ("worker.registered", "home", "info")
    assert "hush" not in line


def test_only_the_newest_lines_within_the_limits_are_kept() -> None:
    recent = LogTail()
    for number in range(MAX_LOG_LINES + 5):
        recent(None, "info", {"event": f"line {number}"})
    assert len(recent.last()) == MAX_LOG_LINES
    assert json.loads(recent.last()[-1])["event"] == f"line {MAX_LOG_LINES + 4}"
    for _ in range(MAX_LOG_LINES):
        recent(None, "info", {"event": "ü" * LONGEST_LINE})
    lines = recent.last()
    assert 0 < sum(len(line.encode()) for line in lines) <= MAX_LOG_BYTES
    assert all(len(line) <= LONGEST_LINE for line in lines)
