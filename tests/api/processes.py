"""Real server processes, to be talked to over a socket and to be killed."""

import asyncio
import json
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from comfyrelay.settings import ENV_PREFIX
from tests.api.harness import SECRETS


@dataclass
class ServerProcess:
    url: str
    process: Process
    http: httpx.AsyncClient

    async def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        await self.process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def server_process(settings: Mapping[str, str]) -> AsyncIterator[ServerProcess]:
    """`comfyrelay server` with these settings, ready to answer."""
    port = free_port()
    own = {
        "PORT": str(port),
        "FLEET_SECRETS": json.dumps(SECRETS.fleet),
        "SIGNING_SECRETS": json.dumps(SECRETS.signing),
        **settings,
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    env |= {f"{ENV_PREFIX}{name}": value for name, value in own.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comfyrelay", "server", "--log-level", "error", env=env, stdout=DEVNULL, stderr=PIPE
    )
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        try:
            await _answers(process, http)
            yield ServerProcess(url, process, http)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def _answers(process: Process, http: httpx.AsyncClient) -> None:
    """The port is open only once the databases are up, so the first answer means ready."""
    while True:
        assert process.returncode is None, "the server ended before it answered"
        try:
            await http.get("/healthz")
        except httpx.ConnectError:
            # nothing tells from outside when a port opens
            await asyncio.sleep(0.05)
        else:
            return
