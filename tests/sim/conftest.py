from collections.abc import AsyncIterator

import pytest

from comfyrelay.simulator import Sim
from tests.sim.client import RECORDINGS, Client


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim() as sim:
        yield sim


@pytest.fixture
async def client(sim: Sim) -> AsyncIterator[Client]:
    """A client of a server that has the recorded image and video."""
    client = Client(sim)
    async with client.http:
        await client.upload(RECORDINGS / "rec.png")
        await client.upload(RECORDINGS / "clip.mp4", "rec.mp4")
        yield client
