"""A server on a socket with ComfyUI's API, and workers on simulators that have different models."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.versions import TRIED
from comfyrelay.http_client import listen
from comfyrelay.server.http.connections import ConnectionLimits
from comfyrelay.server.main import serving_comfyui
from comfyrelay.simulator import Simulator
from comfyrelay.worker.agent import Agent
from comfyrelay.worker.settings import WorkerSettings
from tests.support.api import FLEET_SECRET, Api, Caller, open_api
from tests.support.provider_contract import until
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, SqliteBackend

MODELS = ("first.safetensors", "second.safetensors")


@dataclass
class Client:
    """A client of ComfyUI's API."""

    http: httpx.AsyncClient
    user: Caller | None = None

    async def get(self, path: str, **options: Any) -> Any:
        response = await self.http.get(path, **options)
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        return response.json()

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **options)

    async def prompt(self, graph: Mapping[str, Any], **more: Any) -> str:
        """Submit a graph and return the id of its prompt."""
        response = await self.post("/prompt", {"prompt": graph, **more})
        assert response.status_code == 200, response.text
        assert response.json()["node_errors"] == {}
        return str(response.json()["prompt_id"])

    async def ended(self, prompt_id: str) -> Any:
        """Wait for a prompt and return its entry of the history."""
        found: Any = {}

        async def has_ended() -> bool:
            nonlocal found
            found = await self.get(f"/history/{prompt_id}")
            return bool(found)

        await until(has_ended)
        return found[prompt_id]

    async def until_running(self, count: int) -> None:
        async def are_running() -> bool:
            return len((await self.get("/queue"))["queue_running"]) == count

        await until(are_running)

    async def until_pending(self, prompt_ids: Sequence[str]) -> None:
        async def are_pending() -> bool:
            return [item[1] for item in (await self.get("/queue"))["queue_pending"]] == list(prompt_ids)

        await until(are_pending)

    async def upload(self, name: str, data: bytes, **fields: str) -> Any:
        response = await self.http.post("/upload/image", files={"image": (name, data)}, data=fields)
        assert response.status_code == 200, response.text
        return response.json()

    @asynccontextmanager
    async def socket(self, client_id: str, *, path: str = "/ws") -> AsyncIterator["Events"]:
        url = f"{self.http.base_url}".replace("http://", "ws://").rstrip("/")
        headers = {"Authorization": self.http.headers["Authorization"]}
        async with connect(f"{url}{path}?clientId={client_id}", additional_headers=headers) as connection:
            yield Events(connection)


@dataclass
class Events:
    """The messages of a WebSocket."""

    connection: ClientConnection

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await self.connection.recv()
        if isinstance(message, bytes):
            return "binary", message
        body = json.loads(message)
        return body["type"], body["data"]

    async def until_done(self, prompt_id: str) -> list[tuple[str, Any]]:
        """Return the messages up to the end of a prompt."""
        found = []
        while True:
            kind, data = await self.next()
            found.append((kind, data))
            if kind == "executing" and data == {"node": None, "prompt_id": prompt_id}:
                return found


@dataclass
class ComfyuiSite:
    api: Api
    # the URL of ComfyUI's API
    url: str
    limits: ConnectionLimits
    simulators: Sequence[Simulator]
    client: Client

    @property
    def public_url(self) -> str:
        """The address of ComfyRelay's own API."""
        return str(self.api.context.settings.public_url)

    async def new_client(self, email: str) -> Client:
        return self.client_of(await self.api.user(email, tokens=100))

    def client_of(self, user: Caller | None) -> Client:
        http = httpx.AsyncClient(base_url=self.url, headers=dict(user.headers) if user else {}, timeout=30)
        return Client(http, user)


@asynccontextmanager
async def working(url: str, folder: Path, simulator: Simulator, *, name: str) -> AsyncIterator[None]:
    settings = WorkerSettings(
        api_base_url=url,
        fleet_secret=FLEET_SECRET,
        fleet_slug="home",
        fleet_stage="production",
        worker_id=name,
        comfyui_base_url=[simulator.url],
        data_dir=folder,
        metadata_url="off",
    )
    agent = Agent(settings, signals=False)
    task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        agent.stop()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_site(
    backend: SqliteBackend | PostgresBackend,
    storage_url: str | None,
    folder: Path,
    *,
    models: Sequence[str] = MODELS,
    versions: Sequence[str] = (),
    packs: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> AsyncIterator[ComfyuiSite]:
    """Open a site with a worker for each of these models.

    `versions` are ComfyUI versions, which have different nodes; `packs` have node classes of all workers and scripts.
    """
    listener, comfyui_listener = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    url, comfyui_url = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (listener, comfyui_listener))
    options: dict[str, Any] = {
        "public_url": url,
        "comfyui_api_port": comfyui_listener.getsockname()[1],
        "default_fleet": "home",
        "storage_url": storage_url,
        **settings,
    }
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(open_api(backend, folder / "server", **options))
        app: Any = cast(httpx.ASGITransport, api.anonymous.http._transport).app
        await stack.enter_async_context(_serving(app, api, listener))
        limits = ConnectionLimits(api.context.settings)
        await stack.enter_async_context(serving_comfyui(api.context, comfyui_listener, limits=limits))
        await api.engine.workers.fleets.create(slug="home", workflow_slugs=[])
        simulators = []
        for number, model in enumerate(models, start=1):
            version = versions[number - 1] if versions else TRIED[-1]
            simulator = Simulator(models={"checkpoints": [model], "loras": []}, version=version, packs=packs or {})
            simulators.append(await stack.enter_async_context(simulator))
            await stack.enter_async_context(working(url, folder / f"gpu-{number}", simulator, name=f"gpu-{number}"))
        site = ComfyuiSite(api, comfyui_url, limits, simulators, Client(httpx.AsyncClient()))
        site.client = await site.new_client("ada@example.com")
        await _all_known(site, models)
        yield site
        for simulator in simulators:
            simulator.behave()


@asynccontextmanager
async def _serving(app: Any, api: Api, listener: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        await api.context.stop_waiting()
        server.should_exit = True
        await serving


async def _all_known(site: ComfyuiSite, models: Sequence[str]) -> None:
    """Wait until every worker has reported its models."""

    async def are_known() -> bool:
        return sorted(await site.client.get("/models/checkpoints")) == sorted(models)

    await until(are_known)


def painted(model: str, *, seed: int = 5, steps: int = 2) -> Graph:
    """Return a picture that needs a model."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": model}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["1", 1]}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "4": {
            "class_type": "KSampler",
            "inputs": {
                **{"seed": seed, "steps": steps, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal"},
                **{"denoise": 1.0, "model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0]},
                "latent_image": ["3", 0],
            },
        },
        "5": {"class_type": "VAEDecode", "inputs": {"samples": ["4", 0], "vae": ["1", 2]}},
        "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "ComfyUI"}},
    }
