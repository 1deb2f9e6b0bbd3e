"""Server processes on a socket, which tests can kill."""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO

import httpx

from comfyrelay.configuration import ENV_PREFIX
from tests.support import forked_commands, log_secrets
from tests.support.api import SECRETS


@dataclass
class ServerProcess:
    url: str
    process: Process | forked_commands.ForkedProcess
    http: httpx.AsyncClient
    _log: BinaryIO

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    async def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        await self.process.wait()


@cache
def _ports() -> Iterator[int]:
    """Cycle through the ports of this test process.

    They are below the ephemeral ports, which a connection could take before the server listens.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 20
    own = range(11_000 + 1_000 * worker, 12_000 + 1_000 * worker)
    begin = os.getpid() % len(own)
    return itertools.cycle([*own[begin:], *own[:begin]])


def free_port() -> int:
    """Return a port for a server that is about to start."""
    for port in _ports():
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("unreachable")


@asynccontextmanager
async def server_process(settings: Mapping[str, str]) -> AsyncIterator[ServerProcess]:
    """Run `comfyrelay server` with these settings, and wait until it answers."""
    port = free_port()
    own = {
        "PORT": str(port),
        "FLEET_SECRETS": json.dumps(SECRETS.fleet),
        "SIGNING_SECRETS": json.dumps(SECRETS.signing),
        **settings,
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    env |= {f"{ENV_PREFIX}{name}": value for name, value in own.items()}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        with tempfile.TemporaryFile() as log:
            process = await forked_commands.start(["server", "--log-level", "error"], env=env, out=log.fileno())
            try:
                await _wait_until_ready(process, http, log)
                yield ServerProcess(url, process, http, log)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()
                log.seek(0)
                log_secrets.note(line for line in log.read().decode().splitlines() if line.startswith("{"))


async def _wait_until_ready(
    process: Process | forked_commands.ForkedProcess, http: httpx.AsyncClient, log: BinaryIO
) -> None:
    """Wait for the first answer: the port opens only once the databases are ready."""
    while True:
        if process.returncode is not None:
            log.seek(0)
            raise AssertionError(f"the server exited before it answered:\n{log.read().decode()}")
        try:
            await http.get("/healthz")
        except httpx.ConnectError:
            # poll until the port is open
            await asyncio.sleep(0.05)
        else:
            return
