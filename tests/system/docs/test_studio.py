"""The tutorial "A studio in an hour" works as written, in a terminal and in a browser."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser

from comfyrelay.configuration import ENV_PREFIX
from comfyrelay.simulator import Simulator
from tests.support.chromium import PATIENCE_MS
from tests.support.paths import ROOT
from tests.support.server_processes import free_port
from tests.support.world import PATIENCE_SECONDS
from tests.system.browser.server_setup import PRINTED, set_up

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]

PAGE = ROOT / "docs" / "tutorial" / "studio-in-an-hour.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


class Terminal:
    """Run commands in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[asyncio.subprocess.Process] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COMFYRELAY_WORKER_METADATA_URL": "off",
        }

    async def type(self, commands: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"set -eu\n{commands}\nwait"),
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )
        self._processes.append(process)

    async def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in self._processes))


async def printed(log: Path) -> str:
    """Return the address that the server printed for its first administrator."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        # another process writes the file and sends no signal
        while (found := PRINTED.search(log.read_text() if log.exists() else "")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found[1]


@pytest.mark.journey
async def test_tutorial_leads_to_a_finished_job(tmp_path: Path, chromium: Browser) -> None:
    terminal = Terminal(tmp_path)
    async with Simulator() as comfyui:
        try:
            await terminal.type("\n".join(BLOCKS).replace("8440", str(free_port())))
            address = await printed(tmp_path / "server.log")
            context = await chromium.new_context(base_url=address.partition("/setup")[0])
            context.set_default_timeout(PATIENCE_MS)
            page = await context.new_page()
            await page.goto(address)

            async def start_worker(command: str) -> None:
                await terminal.type(f"{command.replace('http://127.0.0.1:8188', comfyui.url)} > worker.log 2>&1 &")

            await set_up(page, start_worker)
            await context.close()
        finally:
            await terminal.close()
