from collections.abc import AsyncIterator

import pytest

from comfyrelay.simulator import Simulator
from tests.integration.simulator.raw_client import Client
from tests.support.paths import RECORDINGS


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def client(simulator: Simulator) -> AsyncIterator[Client]:
    """Yield a client of a simulator that has the recorded image and video."""
    client = Client(simulator)
    async with client.http:
        await client.upload(RECORDINGS / "rec.png")
        await client.upload(RECORDINGS / "clip.mp4", "rec.mp4")
        yield client
