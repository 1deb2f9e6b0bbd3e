"""The daily loop of a creator works with the simulator; `make compat` runs it with real versions of ComfyUI."""

import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser

from comfyrelay.simulator import Simulator, Slow
from tests.support.daily_loop import JourneyDesk, walk_daily_loop

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("built_app")]


@pytest.mark.journey
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is a thing of POSIX")
async def test_daily_loop_of_a_creator_survives_a_kill(tmp_path: Path, chromium: Browser) -> None:
    async with Simulator() as simulator:
        simulator.misbehave(Slow(class_type="RepeatImageBatch", seconds=0.3, steps=3))
        await walk_daily_loop(JourneyDesk(tmp_path, comfyui_url=simulator.url), chromium)
