"""A worker that fails on a workflow is blocked temporarily, and only for that workflow."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from comfyrelay.domain.queue.blocks import BLOCKED_EVENT, UNBLOCKED_EVENT
from comfyrelay.errors import Fault
from comfyrelay.store.central import audit
from comfyrelay.store.central.queue import blocks
from tests.support.world import START, Desk, PostgresBackend, SqliteBackend, World, graph_of, open_world

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


@pytest.fixture
async def other(world: World, desk: Desk) -> str:
    return await world.worker(desk.fleet, concurrency=10)


async def fail_on(world: World, worker: str, fault: Fault = Fault.WORKER) -> None:
    leased = await world.lease(worker)
    assert leased is not None
    await world.fail(leased, fault=fault, error="CUDA out of memory")


async def leases_job(world: World, worker: str) -> bool:
    return await world.lease(worker) is not None


class TestCooldown:
    """A failure blocks for 60 s."""

    @pytest.fixture(autouse=True)
    async def fail_once(self, world: World, desk: Desk, other: str) -> None:
        await desk.submit()
        await fail_on(world, desk.worker)

    async def test_block_is_recorded_with_its_end(self, world: World, desk: Desk) -> None:
        async with world.engine.databases.central.read() as tx:
            entries = {entry.event: entry for entry in (await audit.page(tx, worker_id=desk.worker))[0]}
        data = entries[BLOCKED_EVENT].data
        assert data is not None
        assert data["blocked_until"] == (START + timedelta(seconds=60)).isoformat()
        assert data["workflow_hash"]

    @pytest.mark.parametrize("seconds", [0, 59.999])
    async def test_blocked_worker_gets_no_job_of_the_workflow(
        self, world: World, desk: Desk, other: str, seconds: float
    ) -> None:
        await world.advance(seconds)
        await desk.submit()
        assert not await leases_job(world, desk.worker)
        assert await leases_job(world, other)
        assert await leases_job(world, other)

    async def test_block_ends_after_exactly_60_seconds_and_is_recorded_once(self, world: World, desk: Desk) -> None:
        await world.advance(60)
        assert await leases_job(world, desk.worker)
        assert not await leases_job(world, desk.worker)
        assert (await world.audit(desk.worker))[-3:] == [BLOCKED_EVENT, UNBLOCKED_EVENT, "lease"]

    async def test_failure_after_a_block_blocks_again(self, world: World, desk: Desk, other: str) -> None:
        await world.advance(60)
        await fail_on(world, desk.worker)
        await world.advance(59.999)
        assert not await leases_job(world, desk.worker)
        await world.advance(0.001)
        assert await leases_job(world, desk.worker)


@pytest.mark.parametrize("fault", [Fault.JOB, Fault.INTERRUPTED])
async def test_only_a_worker_fault_blocks_the_worker(world: World, desk: Desk, fault: Fault) -> None:
    await desk.submit()
    await fail_on(world, desk.worker, fault)
    await desk.submit()
    assert await leases_job(world, desk.worker)
    assert BLOCKED_EVENT not in await world.audit(desk.worker)


async def test_silent_worker_is_not_blocked_for_its_expired_lease(world: World, desk: Desk) -> None:
    await desk.submit_and_lease()
    await world.expire()
    assert await leases_job(world, desk.worker)


async def test_block_does_not_cover_other_workflows_of_the_worker(world: World) -> None:
    first, second = await world.workflow(graph=graph_of("one")), await world.workflow(graph=graph_of("two"))
    worker = await world.worker(await world.fleet(first, second))
    user = await world.user()
    await world.submit(user, await world.effect(first))
    await fail_on(world, worker)
    assert not await leases_job(world, worker)
    job = await world.submit(user, await world.effect(second))
    leased = await world.lease(worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == job.id


async def test_success_ends_the_block_and_is_recorded(world: World) -> None:
    desk = await world.desk(concurrency=2)
    await desk.submit()
    await desk.submit()
    slow, quick = await world.leases(desk.worker, 2)
    await world.fail(quick, fault=Fault.WORKER)
    assert not await leases_job(world, desk.worker)
    await world.complete(slow)
    assert (await world.audit(desk.worker))[-1] == UNBLOCKED_EVENT
    assert await leases_job(world, desk.worker)


async def test_blocks_are_listed_by_workflow_hash(world: World, desk: Desk) -> None:
    job = await desk.submit()
    await fail_on(world, desk.worker)
    async with world.engine.databases.central.read() as tx:
        found = await blocks.of_hash(tx, job.workflow_hash)
    assert found == {desk.worker: START + timedelta(seconds=60)}


class TestThreeFailuresBeforeABlock:
    @pytest.fixture
    async def world(self, backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
        async with open_world(backend, tmp_path, max_failures_before_block=3, max_attempts=10) as world:
            yield world

    async def test_third_failure_blocks_the_worker(self, world: World) -> None:
        desk = await world.desk()
        await desk.submit()
        for _ in range(3):
            assert BLOCKED_EVENT not in await world.audit(desk.worker)
            await fail_on(world, desk.worker)
        assert BLOCKED_EVENT in await world.audit(desk.worker)
        assert not await leases_job(world, desk.worker)

    async def test_success_resets_the_failure_count(self, world: World) -> None:
        desk = await world.desk()
        await desk.submit()
        for _ in range(2):
            await fail_on(world, desk.worker)
        leased = await world.lease(desk.worker)
        assert leased is not None
        await world.complete(leased)
        await desk.submit()
        for _ in range(2):
            await fail_on(world, desk.worker)
        assert await leases_job(world, desk.worker)
        assert UNBLOCKED_EVENT not in await world.audit(desk.worker)

    async def test_failure_count_does_not_expire(self, world: World) -> None:
        desk = await world.desk()
        await desk.submit()
        for _ in range(3):
            await fail_on(world, desk.worker)
            await world.advance(59)
        assert not await leases_job(world, desk.worker)
