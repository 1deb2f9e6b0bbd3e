"""If a worker would poll right after a completion, it sends the poll together with the completion."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay import __version__
from comfyrelay.errors import LeaseLost
from comfyrelay.protocol.worker import MIN_NEXT_PROTOCOL, VERSION_HEADER
from comfyrelay.worker.capacity import Capacity, capacity_for
from comfyrelay.worker.comfyui.capabilities import Capabilities
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.files.outputs import CollectedOutput
from comfyrelay.worker.jobs.outcome import OutcomeReporter
from comfyrelay.worker.lease import Lease, LeaseStop
from comfyrelay.worker.poller import Poller
from tests.support.leases import make_lease
from tests.support.world import PATIENCE_SECONDS

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
OUTPUT = CollectedOutput(path=Path("output.png"), size=1, sha256="0" * 64, mime_type="image/png", metadata={})


async def nothing() -> None:
    """Replace the heartbeats that are sent before a report."""


@dataclass
class Site:
    """A control plane that records requests, and a worker with one slot and no background uploads."""

    protocol: int = MIN_NEXT_PROTOCOL
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    # Answers to the next completions, in place of the usual answer.
    answers: list[Answer] = field(default_factory=list)
    polled: asyncio.Event = field(default_factory=asyncio.Event)
    held: list[Lease] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    # What the control plane had received when the poller said that it received changes.
    reported: list[Any] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    control: ControlPlane = field(init=False)
    poller: Poller = field(init=False)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(("complete", body))
        if self.answers:
            return await self.answers.pop(0)(request, body)
        job = make_lease(18).job.model_dump(mode="json")
        following = {"next": {"job": job, "more_waiting": 3}} if "next" in body else {}
        return self.respond({"status": "completed", **following})

    async def poll(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(("poll", body))
        if not body["wait_seconds"]:
            return self.respond({"job": None})
        self.polled.set()
        # A long poll that lasts until the worker disconnects.
        await asyncio.Event().wait()
        raise NotImplementedError

    def respond(self, data: Any) -> web.Response:
        headers = {VERSION_HEADER: f"{__version__}; protocol={self.protocol}"}
        return web.json_response({"data": data, "message": ""}, headers=headers)

    def capacity(self, ended: Lease | None) -> Capacity | None:
        held = [lease for lease in self.held if lease is not ended]
        return capacity_for(held, slots={"self_hosted": 1}, max_concurrency=1, prefetch=0, upload_behind=0)

    async def settle(self, lease: Lease, *, report_timeout_seconds: float = 60.0) -> OutcomeReporter:
        tools = SimpleNamespace(
            control=self.control,
            next_poll=self.poller.next_poll,
            on_change=self.poller.changed,
            settings=SimpleNamespace(report_timeout_seconds=report_timeout_seconds),
        )
        loop = asyncio.get_running_loop()
        heartbeats = SimpleNamespace(flush=nothing, answered_at=loop.time(), sent_at=loop.time())
        reporter = OutcomeReporter(lease, cast(Any, tools), cast(Any, heartbeats), running_seconds=lambda: 1.0)
        await reporter.complete(OUTPUT, provider_job_id="p")
        return reporter

    @property
    def next_polls(self) -> list[Any]:
        return [body.get("next") for call, body in self.requests if call == "complete"]


@asynccontextmanager
async def open_site(**fields: Any) -> AsyncIterator[tuple[Site, Lease]]:
    """Open a site whose worker holds one lease."""
    site = Site(**fields)
    lease = make_lease(17)
    site.held.append(lease)
    app = web.Application()
    app.router.add_post("/api/worker/complete", site.complete)
    app.router.add_post("/api/worker/poll", site.poll)
    async with TestServer(app) as server:
        site.control = ControlPlane(str(server.make_url("")).rstrip("/"), worker_id="gpu-1")
        site.control.token, site.control.server_protocol = "token", site.protocol
        servers = SimpleNamespace(warm_hashes=lambda: ["w"], restarts=lambda: site.restarts, slots=lambda _name: 1)
        capabilities = Capabilities(cast(Any, servers), site.changes)
        capabilities.sent = {}
        site.poller = Poller(
            site.control,
            capacity=site.capacity,
            servers=cast(Any, servers),
            capabilities=capabilities,
            accept=site.held.append,
            register=lambda _token: nothing(),
            on_reported=lambda: site.reported.extend(body.get("capabilities") for _, body in site.requests),
            wait_seconds=30.0,
        )
        try:
            yield site, lease
        finally:
            await site.control.close()


async def _hang_up(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@asynccontextmanager
async def polling(site: Site) -> AsyncIterator[None]:
    task = asyncio.create_task(site.poller.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_completion_includes_the_poll_for_the_freed_slot() -> None:
    async with open_site() as (site, lease):
        await site.settle(lease)
    [sent] = site.next_polls
    assert sent.pop("request_id")
    assert sent == {
        "worker_id": "gpu-1",
        "current_load": 0,
        "max_concurrency": 1,
        "prefetch": 0,
        "providers": ["self_hosted"],
        "wait_seconds": 0.0,
        "warm_workflow_hashes": ["w"],
    }
    assert [held.dispatch_id for held in site.held] == [17, 18]
    assert site.poller.more_waiting == 3


async def test_older_server_gets_no_poll_with_a_completion() -> None:
    async with open_site(protocol=MIN_NEXT_PROTOCOL - 1) as (site, lease):
        reporter = await site.settle(lease)
    assert (site.next_polls, reporter.outcome) == ([None], "completed")


async def test_protocol_of_the_server_is_read_from_each_answer() -> None:
    async with open_site() as (site, lease):
        site.protocol = MIN_NEXT_PROTOCOL - 1
        await site.settle(lease)
        assert site.control.server_protocol == MIN_NEXT_PROTOCOL - 1
        site.held[:] = [lease]
        await site.settle(lease)
    assert [sent is not None for sent in site.next_polls] == [True, False]


async def test_pending_poll_is_not_repeated_with_a_completion() -> None:
    async with open_site() as (site, lease), asyncio.timeout(PATIENCE_SECONDS):
        site.held.clear()
        async with polling(site):
            await site.polled.wait()
            # The poll is still pending when all slots of the worker are used again.
            site.held.append(lease)
            await site.settle(lease)
    assert site.next_polls == [None]


@pytest.mark.parametrize("news", [{"changes": {"gpus": 1}}, {"restarts": {"a": 1}}])
async def test_changes_are_left_to_the_next_poll(news: dict[str, Any]) -> None:
    async with open_site(**news) as (site, lease):
        await site.settle(lease)
    assert site.next_polls == [None]


async def test_changed_capabilities_are_reported_before_the_long_poll() -> None:
    """The worker sends its node definitions once the control plane knows its nodes."""
    changes = {"node_types": ["New"]}
    async with open_site(changes=changes) as (site, _), asyncio.timeout(PATIENCE_SECONDS):
        site.held.clear()
        async with polling(site):
            await site.polled.wait()
    assert site.reported == [changes]
    first, second = [body for _, body in site.requests]
    assert (first["wait_seconds"], second["wait_seconds"]) == (0, 30)
    assert "capabilities" not in second


async def test_paused_worker_does_not_poll_with_a_completion() -> None:
    async with open_site() as (site, lease):
        site.poller.pause(3600)
        await site.settle(lease)
    assert site.next_polls == [None]


async def test_repeated_completion_sends_the_same_poll() -> None:
    async with open_site(answers=[_hang_up]) as (site, lease):
        await site.settle(lease)
    first, second = site.next_polls
    assert first == second
    assert [held.dispatch_id for held in site.held] == [17, 18]


async def test_lost_answer_is_repeated_by_the_next_poll() -> None:
    async with open_site(answers=[_hang_up]) as (site, lease), asyncio.timeout(PATIENCE_SECONDS):
        # A heartbeat reports that the lease has ended, because the completion was processed.
        lease.request_stop(LeaseStop.LOST)
        with pytest.raises(LeaseLost):
            await site.settle(lease)
        site.held.clear()
        async with polling(site):
            await site.polled.wait()
    [sent] = site.next_polls
    assert sent["request_id"] == site.requests[-1][1]["request_id"]
