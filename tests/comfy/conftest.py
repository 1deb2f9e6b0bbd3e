"""A stand-in server and a client of it for every test."""

from collections.abc import AsyncIterator

import pytest

from comfyrelay.comfyui import ComfyClient
from comfyrelay.simulator import Sim


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim() as sim:
        yield sim


@pytest.fixture
async def comfy(sim: Sim) -> AsyncIterator[ComfyClient]:
    async with ComfyClient(sim.url) as comfy:
        yield comfy
