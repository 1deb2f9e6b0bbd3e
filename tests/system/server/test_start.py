"""`comfyrelay server` prints its address when it starts."""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from comfyrelay.configuration import ENV_PREFIX
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS


async def test_printed_address_answers(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with started(tmp_path, {"PORT": url.rpartition(":")[2]}) as out, httpx.AsyncClient() as http:
        while f"serves at {url}" not in (line := (await out.readline()).decode()):
            assert line, "the server ended without an address"
        # this request is not retried
        assert (await http.get(f"{url}/healthz")).status_code == 200


@pytest.mark.parametrize("missing", ["port", "database"])
async def test_server_that_cannot_start_prints_no_address(missing: str, tmp_path: Path) -> None:
    nobody = free_port()
    settings = {"DATABASE_URL": f"postgresql://relay@127.0.0.1:{nobody}/relay", "DATABASE_WAIT_SECONDS": "0"}
    with socket.create_server(("127.0.0.1", free_port())) as other:
        taken = {"PORT": str(other.getsockname()[1])}
        own = taken if missing == "port" else {**settings, "PORT": str(free_port())}
        async with started(tmp_path, own) as out:
            printed = (await out.read()).decode()
    assert "Error: " in printed
    assert "serves at" not in printed


@asynccontextmanager
async def started(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[asyncio.StreamReader]:
    """Start a server and read its output."""
    own = {"DATA_DIR": str(folder), **settings}
    env = {**os.environ, **{f"{ENV_PREFIX}{name}": value for name, value in own.items()}}
    words = (sys.executable, "-m", "comfyrelay", "server", "--log-level", "error")
    process = await asyncio.create_subprocess_exec(*words, env=env, stderr=PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield process.stderr
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
