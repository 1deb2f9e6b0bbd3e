"""A process survives several faults at the same time."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.soak.processes import SoakProcess
from tests.support.server_processes import free_port


@pytest.mark.skipif(sys.platform != "linux", reason="the soak test reads /proc and limits other processes")
async def test_process_restarted_by_two_faults_starts_once(tmp_path: Path) -> None:
    words = ("simulator", "--port", str(free_port()), "--folder", str(tmp_path / "comfyui"))
    process = SoakProcess("comfyui", *words, environment={}, log=tmp_path / "log")

    async def started() -> int:
        await process.start()
        return process.process.pid

    [first] = set(await asyncio.gather(started(), started()))
    await asyncio.gather(process.kill(), process.kill())
    [second] = set(await asyncio.gather(started(), started(), started()))
    assert second != first
    await process.kill()
