"""Every test gets a simulator and a client of it."""

from collections.abc import AsyncIterator

import pytest

from comfyrelay.comfyui import ComfyClient
from comfyrelay.simulator import Simulator


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def comfy(simulator: Simulator) -> AsyncIterator[ComfyClient]:
    async with ComfyClient(simulator.url) as comfy:
        yield comfy
