"""A worker reports its capabilities to the server, and reports them again when they change."""

import asyncio

from comfyrelay.simulator import Simulator
from tests.support.whole_system import System
from tests.support.world import PATIENCE_SECONDS


async def test_new_model_after_a_comfyui_restart_is_reported_by_a_poll(system: System) -> None:
    await system.plain_effect()
    await system.started(poll_wait_seconds=0.5)

    async def until_models(*names: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await system.admin("GET", "/workers/gpu-1"))["capabilities"]["models"] != sorted(names):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    before = (await system.admin("GET", "/workers/gpu-1"))["capabilities"]["models"]
    port, folder = int(system.simulator.url.rpartition(":")[2]), system.simulator.folder
    await system.simulator.stop()
    async with Simulator(port=port, folder=folder, models={"checkpoints": [*before, "new.safetensors"]}):
        await until_models(*before, "new.safetensors")
    assert system.api.asked("POST /api/worker/register") == 1
