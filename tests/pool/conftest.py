from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from comfyrelay.comfyui.pool import WorkflowPool
from comfyrelay.simulator import Sim
from tests.pool.harness import ready_pool


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with Sim() as sim:
        yield sim


@pytest.fixture
async def pool(sim: Sim) -> AsyncIterator[WorkflowPool]:
    """A pool with one server, "a"."""
    async with ready_pool(sim) as pool:
        yield pool


@pytest.fixture
async def sims() -> AsyncIterator[list[Sim]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Sim()) for _ in range(3)]
