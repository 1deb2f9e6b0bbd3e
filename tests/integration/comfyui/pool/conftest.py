from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from comfyrelay.comfyui.pool import WorkflowPool
from comfyrelay.simulator import Simulator
from tests.support.pool import ready_pool


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


@pytest.fixture
async def pool(simulator: Simulator) -> AsyncIterator[WorkflowPool]:
    """Yield a pool with one server, "a"."""
    async with ready_pool(simulator) as pool:
        yield pool


@pytest.fixture
async def simulators() -> AsyncIterator[list[Simulator]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Simulator()) for _ in range(3)]
