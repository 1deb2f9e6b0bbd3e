"""Workers and servers of neighbouring versions run jobs together.

A proxy between them makes one side look like another version: it adds unknown fields and changes the protocol.
"""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from aiohttp import ClientSession, web

from comfyrelay.protocol.worker import PROTOCOL, VERSION_HEADER
from tests.support.api_calls import png
from tests.support.full import full_only
from tests.support.whole_system import System

Side = Literal["worker", "server"]
# The keys of these objects are data, not fields.
MAPS = {"about", "assets", "capabilities", "extra_data", "metadata", "progress", "workflow"}


def with_unknown_fields(value: Any) -> Any:
    if isinstance(value, dict):
        changed = {
            key: item if key in MAPS or key.endswith("headers") else with_unknown_fields(item)
            for key, item in value.items()
        }
        return {**changed, "of_another_version": [1]}
    return [with_unknown_fields(item) for item in value] if isinstance(value, list) else value


@asynccontextmanager
async def translating(target: str, side: Side, protocol: int) -> AsyncIterator[str]:
    """Run a proxy that makes one side use another protocol version; yield its URL."""

    def changed(body: bytes) -> bytes:
        found = json.loads(body)
        if "protocol" in found:
            found["protocol"] = protocol
        return json.dumps(with_unknown_fields(found)).encode()

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        kept = {name: request.headers[name] for name in ("Authorization", "X-Fleet-Secret") if name in request.headers}
        headers = {**kept, "Content-Type": "application/json"}
        sent = changed(body) if side == "worker" and body else body
        async with session.request(request.method, f"{target}{request.path_qs}", data=sent, headers=headers) as answer:
            text, versions = await answer.read(), answer.headers.get(VERSION_HEADER, "")
            if side == "server" and text:
                text, versions = changed(text), f"99.0.0; protocol={protocol}"
            more = {VERSION_HEADER: versions, "Content-Type": answer.headers.get("Content-Type", "application/json")}
            return web.Response(status=answer.status, body=text, headers=more)

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with ClientSession() as session:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@pytest.mark.parametrize("side", ["worker", "server"])
@pytest.mark.parametrize("protocol", [*full_only(PROTOCOL - 1), PROTOCOL + 1])
async def test_worker_and_server_of_neighbouring_versions_run_jobs(system: System, side: Side, protocol: int) -> None:
    effect_id = await system.effect()
    async with translating(str(system.http.base_url), side, protocol) as url:
        worker = await system.started(api_base_url=url)
        if side == "worker":
            assert (await system.admin("GET", "/workers/gpu-1"))["protocol"] == protocol
        jobs = [await system.submit(effect_id, png(color)) for color in ("#112233", "#445566")]
        for job_id in jobs:
            assert await system.completed(job_id)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
