"""Limit the statements per submission, lease, completion and idle pass: a slower design fails here first."""

import asyncio
from collections.abc import Mapping

import pytest

from comfyrelay.services.queue.leasing import LeaseRequest
from tests.support.statements import count_statements
from tests.support.world import Desk, World

pytestmark = pytest.mark.both_databases

# Statements per database for a submission, a lease and a completion, with the deliveries that follow. SQLite runs the
# writes of a transaction one by one.
EXPECTED = {
    "sqlite": ({"central": 6, "a": 11}, {"central": 10, "a": 8}, {"central": 9, "a": 11}),
    "postgresql": ({"central": 3, "a": 6}, {"central": 7, "a": 5}, {"central": 5, "a": 4}),
}
IDLE_SECONDS = 8
# Statements on the central database while polls are parked; a busy machine runs fewer.
MAX_IDLE = {"sqlite": 30, "postgresql": 16}


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


async def test_idle_reaper_pass_takes_one_statement(world: World, desk: Desk) -> None:
    await desk.submit_and_lease()
    await world.wait_for_deliveries()
    async with count_statements(world) as counted:
        assert await world.engine.queue.reaper.run_once() == 0
    # SQLite begins a transaction for each read.
    assert counted == {"central": 1 if world.backend == "postgresql" else 2}


async def test_idle_engine_with_parked_polls_takes_few_statements(world: World, desk: Desk) -> None:
    request = LeaseRequest(worker_id=desk.worker, providers=("self_hosted",))
    await world.engine.start()
    parked = asyncio.create_task(world.engine.queue.polls.poll(request, wait_seconds=60))
    # The first passes of some loops have more to do.
    await asyncio.sleep(1)
    async with count_statements(world) as counted:
        await asyncio.sleep(IDLE_SECONDS)
    parked.cancel()
    assert 0 < counted["central"] <= MAX_IDLE[world.backend]


async def test_cycle_of_a_job_takes_few_statements(world: World, desk: Desk) -> None:
    # The first cycle fills caches.
    await _count_cycle(world, desk)
    assert await _count_cycle(world, desk) == EXPECTED[world.backend]


async def _count_cycle(world: World, desk: Desk) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]:
    async with count_statements(world) as submitted:
        await desk.submit()
        await world.wait_for_deliveries()
    async with count_statements(world) as leased:
        lease = await world.lease(desk.worker)
        await world.wait_for_deliveries()
    assert lease is not None
    async with count_statements(world) as completed:
        await world.complete(lease)
        await world.wait_for_deliveries()
    return submitted, leased, completed
