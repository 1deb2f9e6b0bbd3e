"""A worker uploads its node definitions, whether or not the control plane accepts them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from comfyrelay.comfyui.graphs.node_definitions import merge, pack, unpack
from comfyrelay.worker.comfyui.node_definitions import NodeDefinitionSender
from comfyrelay.worker.control import ControlPlane
from tests.integration.worker.test_servers import fake_comfyui, loader, open_servers
from tests.support.world import PATIENCE_SECONDS


class Plane:
    """A control plane that first answers uploads with `answers`, then stores them."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.stored: dict[str, bytes] = {}
        self.calls = 0
        self._changed = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        async with self._changed:
            self.calls += 1
            self._changed.notify_all()
        status = self.answers.pop(0) if self.answers else 200
        if status != 200:
            problem = {"type": "urn:comfyrelay:x", "title": "x", "status": status, "detail": "No."}
            return web.json_response(problem, status=status)
        if request.method == "PUT":
            async with self._changed:
                self.stored[request.match_info["sha256"]] = await request.read()
                self._changed.notify_all()
            return web.json_response({"data": {"is_known": True}})
        is_known = (await request.json())["sha256"] in self.stored
        return web.json_response({"data": {"is_known": is_known}})

    async def until(self, *, calls: int = 0, stored: int = 0) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.calls >= calls and len(self.stored) >= stored)


@asynccontextmanager
async def open_sender(plane: Plane, *infos: dict[str, Any]) -> AsyncIterator[NodeDefinitionSender]:
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/api/worker/definitions", plane.handle)
    app.router.add_put("/api/worker/definitions/{sha256}", plane.handle)
    async with TestServer(app) as server, _comfyuis(*infos) as urls, open_servers(*urls) as servers:
        control = ControlPlane(str(server.make_url("")).rstrip("/"), worker_id="gpu-1")
        control.token = "secret"
        definitions = NodeDefinitionSender(control, servers)
        keeping = asyncio.create_task(definitions.keep())
        try:
            yield definitions
        finally:
            keeping.cancel()
            await control.close()


@asynccontextmanager
async def _comfyuis(*infos: dict[str, Any]) -> AsyncIterator[list[str]]:
    if not infos:
        yield []
        return
    async with fake_comfyui({}, infos[0]) as url, _comfyuis(*infos[1:]) as urls:
        yield [url, *urls]


async def test_node_definitions_are_sent_once_and_then_only_by_hash() -> None:
    plane = Plane()
    async with open_sender(plane, {"A": loader()}) as definitions:
        definitions.send_soon()
        await plane.until(calls=2, stored=1)
        definitions.send_soon()
        await plane.until(calls=3)
    assert plane.calls == 3


async def test_node_definitions_of_all_servers_are_merged() -> None:
    plane, infos = Plane(), ({"A": loader("a"), "B": loader()}, {"A": loader("b"), "C": loader()})
    async with open_sender(plane, *infos) as definitions:
        definitions.send_soon()
        await plane.until(stored=1)
    [(sha256, data)] = plane.stored.items()
    assert unpack(data, sha256=sha256) == merge(infos)
    assert sha256 == pack(merge(infos)).sha256


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        pytest.param([404], 1, id="old control plane"),
        pytest.param([401], 1, id="unknown worker"),
        pytest.param([403], 1, id="revoked worker"),
        pytest.param([200, 413], 2, id="too large"),
        pytest.param([200, 422], 2, id="invalid"),
        pytest.param([502], 1, id="unavailable"),
    ],
)
async def test_refused_node_definitions_are_sent_again_on_the_next_request(answers: list[int], calls: int) -> None:
    plane = Plane(*answers)
    async with open_sender(plane, {"A": loader()}) as definitions:
        definitions.send_soon()
        await plane.until(calls=calls)
        definitions.send_soon()
        await plane.until(stored=1)
