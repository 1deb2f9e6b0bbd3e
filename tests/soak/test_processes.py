"""What faults do to the processes of a rig, also when several are about one."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.soak.processes import RigProcess
from tests.support.server_processes import free_port


@pytest.mark.skipif(sys.platform != "linux", reason="the rig looks into /proc, and limits other processes")
async def test_process_that_two_faults_start_again_is_started_once(tmp_path: Path) -> None:
    words = ("simulator", "--port", str(free_port()), "--folder", str(tmp_path / "comfyui"))
    process = RigProcess("comfyui", *words, environment={}, log=tmp_path / "log")

    async def started() -> int:
        await process.start()
        return process.process.pid

    [first] = set(await asyncio.gather(started(), started()))
    await asyncio.gather(process.kill(), process.kill())
    [second] = set(await asyncio.gather(started(), started(), started()))
    assert second != first
    await process.kill()
