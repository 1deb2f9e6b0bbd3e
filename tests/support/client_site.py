"""A server on a socket with a user and a worker, and commands that call it."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from comfyrelay.client import Client
from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.http_client import listen
from comfyrelay.services.hooks import Hooks
from tests.support import commands
from tests.support.api import Api, Caller, open_api
from tests.support.api_calls import submit
from tests.support.commands import CommandResult
from tests.support.world import SqliteBackend

# Users see the errors of their jobs as they would on a desk.
OWNERS = Hooks(users_are_owners=True)


@dataclass
class Site:
    api: Api
    url: str
    user: Caller
    worker: Caller
    effect_id: int
    client: Client

    @property
    def token(self) -> str:
        return self.user.headers["Authorization"].removeprefix("Bearer ")

    @property
    def tenant_id(self) -> str:
        assert self.user.user is not None
        return self.user.user.tenant_id

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command that calls this server."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        return {**clean, "COMFYRELAY_URL": self.url, "COMFYRELAY_TOKEN": self.token, "COLUMNS": "160", "TERM": "xterm"}

    async def submit(self, **more: Any) -> Any:
        return await submit(self.user, self.effect_id, **more)

    async def batch(self, count: int, label: str = "look-dev") -> Any:
        body = {"effect_id": self.effect_id, "label": label, "items": [{"input_payload": {}}] * count}
        return await self.user.post("/api/batches", body)

    async def command(self, *words: str, **env: str) -> CommandResult:
        return await commands.run(*words, env={**self.env, **env})


@pytest.fixture
async def site(sqlite_backend: SqliteBackend, tmp_path: Path) -> AsyncIterator[Site]:
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings: dict[str, Any] = {"public_url": url, "max_active_jobs_per_user": 100}
    async with open_api(sqlite_backend, tmp_path / "server", hooks=OWNERS, **settings) as api:
        app: Any = cast(httpx.ASGITransport, api.anonymous.http._transport).app
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        effect_id = await api.effect()
        user, worker = await api.user(tokens=1000), await api.worker()
        token = user.headers["Authorization"].removeprefix("Bearer ")
        async with Client(url, token=token) as client:
            yield Site(api, url, user, worker, effect_id, client)
        # do not wait for open streams
        await api.context.stop_waiting()
        server.should_exit = True
        await serving
