"""`comfyrelay simulator`: it prints its address, stops on a signal, and explains invalid options."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process

import httpx
import pytest

from comfyrelay.simulator import Simulator


async def start(*options: str, secret: str = "") -> Process:
    words = (sys.executable, "-m", "comfyrelay", "simulator", *options)
    environment = {**os.environ, "COMFYRELAY_SIMULATOR_SECRET": secret}
    return await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE, env=environment)


async def test_simulator_serves_until_interrupted() -> None:
    process = await start("--port", "0", "--slow", "ImageInvert=0.1", "--misbehave", '{"name": "LostFile"}')
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    url = line.rpartition(" ")[2].strip()
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/system_stats")).json()["system"]["comfyui_version"]
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 0


async def test_simulator_requires_the_secret_of_its_environment() -> None:
    process = await start("--port", "0", "--host", "0.0.0.0", secret="a long secret")
    assert process.stdout is not None
    port = (await process.stdout.readline()).decode().strip().rpartition(":")[2]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.get("/system_stats")).status_code == 401
        assert (await http.get("/system_stats", auth=("simulator", "a long secret"))).status_code == 200
    process.send_signal(signal.SIGINT)
    await process.communicate()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--host", "0.0.0.0"], "set COMFYRELAY_SIMULATOR_SECRET, or allow everybody with --no-secret"),
        (["--host", "0.0.0.0", "--cloud"], "set --api-key, or allow everybody with --no-secret"),
        (["--misbehave", '{"name": "Sulk"}'], "There is no misbehaviour 'Sulk'"),
        (["--misbehave", "sulk"], "Write a JSON object, not 'sulk'"),
        (["--slow", "ImageInvert"], "Write CLASS=SECONDS"),
    ],
)
async def test_invalid_option_is_explained(options: list[str], reason: str) -> None:
    process = await start("--port", "0", *options)
    _, err = await process.communicate()
    assert process.returncode == 2
    assert reason in err.decode()


async def test_taken_port_is_reported() -> None:
    async with Simulator() as simulator:
        process = await start("--port", simulator.url.rpartition(":")[2])
        _, err = await process.communicate()
    assert process.returncode == 2
    assert "choose a different one with --port" in err.decode()
