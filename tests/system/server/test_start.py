"""What `comfyrelay server` prints, and when."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import httpx

from comfyrelay.configuration import ENV_PREFIX
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS


async def test_printed_address_answers_at_once(tmp_path: Path) -> None:
    port = free_port()
    own = {"DATA_DIR": str(tmp_path), "PORT": str(port)}
    env = {**os.environ, **{f"{ENV_PREFIX}{name}": value for name, value in own.items()}}
    words = (sys.executable, "-m", "comfyrelay", "server", "--log-level", "error")
    process = await asyncio.create_subprocess_exec(*words, env=env, stderr=PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), httpx.AsyncClient() as http:
            while f"serves at http://127.0.0.1:{port}" not in (line := (await process.stderr.readline()).decode()):
                assert line, "the server ended without an address"
            # without a retry: the server listens
            assert (await http.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
    finally:
        process.kill()
        await process.wait()
