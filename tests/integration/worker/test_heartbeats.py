"""The control plane receives the heartbeats of one lease."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.protocol.progress import Phase
from comfyrelay.protocol.worker import Device
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.jobs.heartbeats import NEWS_SECONDS, HeartbeatLoop
from comfyrelay.worker.lease import Lease, LeaseStop
from tests.support.leases import make_lease
from tests.support.world import PATIENCE_SECONDS


@dataclass
class Plane:
    """A control plane that answers heartbeats with `stop`; long-polling heartbeats wait until `must_stop` is set."""

    lease: Lease
    news: list[dict[str, Any]] = field(default_factory=list)
    stop: str | None = None
    has_news: asyncio.Condition = field(default_factory=asyncio.Condition)
    must_stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("progress") is not None or body.get("logs"):
            async with self.has_news:
                self.news.append(body)
                self.has_news.notify_all()
        elif body.get("wait_seconds"):
            await self.must_stop.wait()
        return web.json_response(
            {"data": {"lease_expires_at": "2030-01-01T00:00:00Z", "stop": self.stop, "urls": None}}
        )

    def request_stop(self, stop: str) -> None:
        self.stop = stop
        self.must_stop.set()

    async def wait_for_news(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self.has_news:
            await self.has_news.wait_for(lambda: len(self.news) >= count)


@asynccontextmanager
async def send_heartbeats(
    phase: Phase = Phase.RUNNING, *, devices: Sequence[Device] = ()
) -> AsyncIterator[tuple[Plane, HeartbeatLoop]]:
    plane = Plane(make_lease(phase=phase))
    app = web.Application()
    app.router.add_post("/api/worker/heartbeat", plane.answer)
    async with TestServer(app) as server:
        control = ControlPlane(str(server.make_url("")).rstrip("/"), worker_id="gpu-1", devices=lambda: list(devices))
        control.token = "token"
        heartbeats = HeartbeatLoop(control, plane.lease, interval_seconds=30)
        heartbeats.start()
        try:
            yield plane, heartbeats
        finally:
            await heartbeats.close()
            plane.must_stop.set()
            await control.close()


async def test_fast_progress_is_sent_once_per_second() -> None:
    async with send_heartbeats() as (plane, heartbeats):
        loop = asyncio.get_running_loop()
        began_at, steps = loop.time(), 0
        waiting = asyncio.create_task(plane.wait_for_news(3))
        while not waiting.done():
            steps += 1
            heartbeats.progress(steps / 100_000, step=steps)
            await asyncio.sleep(0.005)
        await waiting
        # the first report is sent at once, each other at least a second after the previous report
        assert loop.time() - began_at >= 2 * NEWS_SECONDS
        steps_sent = [body["progress"]["step"] for body in plane.news]
        assert steps_sent == sorted(steps_sent)
        assert steps_sent[-1] > len(steps_sent), "every step was sent: send only the newest of each second"


async def test_progress_contains_only_known_fields() -> None:
    async with send_heartbeats() as (plane, heartbeats):
        heartbeats.progress(0.0)
        await plane.wait_for_news(1)
        plane.lease.began_at, plane.lease.server = datetime(2030, 1, 1, tzinfo=UTC), "comfyui-1"
        heartbeats.progress(0.123456, node_id="3", node="KSampler", step=0.0, steps=20.0)
        await plane.wait_for_news(2)
        assert [body["progress"] for body in plane.news] == [
            {"value": 0.0, "phase": "running"},
            {
                "value": 0.1235,
                "phase": "running",
                "began_at": "2030-01-01T00:00:00+00:00",
                "server": "comfyui-1",
                "node_id": "3",
                "node": "KSampler",
                "step": 0.0,
                "steps": 20.0,
            },
        ]


async def test_devices_contain_only_known_fields() -> None:
    async with send_heartbeats(devices=[Device(server="comfyui-1", load=0.5)]) as (plane, heartbeats):
        heartbeats.log("a line")
        await plane.wait_for_news(1)
        assert plane.news[0]["devices"] == [{"server": "comfyui-1", "load": 0.5}]


@pytest.mark.parametrize("phase", [Phase.FETCHING, Phase.WAITING])
async def test_waiting_job_is_returned_on_a_release_request(phase: Phase) -> None:
    async with send_heartbeats(phase) as (plane, _):
        plane.request_stop("release")
        await asyncio.wait_for(plane.lease.stopped.wait(), PATIENCE_SECONDS)
        assert plane.lease.stop is LeaseStop.RELEASE


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STORING, Phase.SETTLING])
async def test_running_job_ignores_a_release_request(phase: Phase) -> None:
    async with send_heartbeats(phase) as (plane, heartbeats):
        plane.request_stop("release")
        for number in (1, 2):
            heartbeats.log("a line")
            await plane.wait_for_news(number)
        assert plane.lease.stop is None
        plane.request_stop("cancel")
        await asyncio.wait_for(plane.lease.stopped.wait(), PATIENCE_SECONDS)
        assert plane.lease.stop is LeaseStop.CANCEL


async def test_waiting_heartbeat_receives_the_stop_request() -> None:
    async with send_heartbeats() as (plane, _):
        plane.request_stop("cancel")
        await asyncio.wait_for(plane.lease.stopped.wait(), PATIENCE_SECONDS)
        assert plane.news == []
