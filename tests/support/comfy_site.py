"""A server on a socket that speaks the Comfy API, with a worker and a simulator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn

from comfyrelay.http_client import listen
from comfyrelay.simulator import Simulator
from comfyrelay.worker.agent import Agent
from comfyrelay.worker.settings import WorkerSettings
from tests.support.api import FLEET_SECRET, Api, Caller, open_api
from tests.support.world import Backend


@dataclass
class ComfySite:
    api: Api
    url: str
    user: Caller
    simulator: Simulator

    @property
    def token(self) -> str:
        return self.user.headers["Authorization"].removeprefix("Bearer ")


@asynccontextmanager
async def open_comfy_site(
    backend: Backend, folder: Path, *, simulator: Simulator | None = None, **options: Any
) -> AsyncIterator[ComfySite]:
    """Open a server with a worker, for a given simulator or a new one."""
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    options = {"public_url": url, "default_fleet": "home", **options}
    started = Simulator() if simulator is None else nullcontext(simulator)
    async with started as used, open_api(backend, folder / "server", **options) as api:
        app: Any = cast(httpx.ASGITransport, api.anonymous.http._transport).app
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        site = ComfySite(api, url, await api.user(tokens=100), used)
        async with working(url, folder / "worker", used):
            yield site
        await api.context.stop_waiting()
        server.should_exit = True
        await serving


@asynccontextmanager
async def working(url: str, folder: Path, simulator: Simulator, *, worker_id: str = "gpu-1") -> AsyncIterator[None]:
    """Run a worker with this simulator."""
    settings = WorkerSettings(
        api_base_url=url,
        fleet_secret=FLEET_SECRET,
        fleet_slug="home",
        fleet_stage="production",
        worker_id=worker_id,
        comfyui_base_url=[simulator.url],
        data_dir=folder,
        metadata_url="off",
    )
    agent = Agent(settings, signals=False)
    working = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        agent.stop()
        await asyncio.gather(working, return_exceptions=True)
