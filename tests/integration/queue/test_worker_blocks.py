"""A worker that failed on a workflow is blocked for that workflow for a while, and for nothing else."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from comfyrelay.domain.queue.blocks import BLOCKED_EVENT, UNBLOCKED_EVENT
from comfyrelay.errors import Fault
from comfyrelay.store.central import audit
from comfyrelay.store.central.queue import blocks
from tests.support.world import START, Desk, PostgresBackend, SqliteBackend, World, graph_of, open_world


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


async def gets_a_job(world: World, worker: str) -> bool:
    return await world.lease(worker) is not None


class TestTimeline:
    """The timeline of a failure with a cooldown of 60 s."""

    @pytest.fixture(autouse=True)
    async def a_failure(self, world: World, desk: Desk, other: str) -> None:
        await desk.submit()
        await fail_on(world, desk.worker)

    async def test_block_is_recorded_with_its_end(self, world: World, desk: Desk) -> None:
        async with world.engine.databases.central.read() as tx:
            entries = {entry.event: entry for entry in (await audit.page(tx, worker_id=desk.worker))[0]}
        data = entries[BLOCKED_EVENT].data
        assert data is not None
        assert data["blocked_until"] == (START + timedelta(seconds=60)).isoformat()
        assert data["workflow_hash"]

    @pytest.mark.parametrize("seconds", [0, 5, 30, 59.999])
    async def test_blocked_worker_is_skipped_and_another_gets_the_job(
        self, world: World, desk: Desk, other: str, seconds: float
    ) -> None:
        await world.advance(seconds)
        assert not await gets_a_job(world, desk.worker)
        assert await gets_a_job(world, other)

    async def test_new_job_of_the_same_workflow_is_skipped_too(self, world: World, desk: Desk, other: str) -> None:
        await world.advance(5)
        assert await gets_a_job(world, other)
        await desk.submit()
        assert not await gets_a_job(world, desk.worker)
        assert await gets_a_job(world, other)

    async def test_block_ends_after_exactly_60_seconds_and_that_is_recorded(self, world: World, desk: Desk) -> None:
        await world.advance(60)
        assert await gets_a_job(world, desk.worker)
        assert (await world.audit(desk.worker))[-3:] == [BLOCKED_EVENT, UNBLOCKED_EVENT, "lease"]

    async def test_end_of_a_block_is_recorded_once(self, world: World, desk: Desk) -> None:
        await world.advance(60)
        await world.lease(desk.worker)
        await world.lease(desk.worker)
        assert (await world.audit(desk.worker)).count(UNBLOCKED_EVENT) == 1

    async def test_failure_after_a_block_blocks_again(self, world: World, desk: Desk, other: str) -> None:
        await world.advance(60)
        await fail_on(world, desk.worker)
        await world.advance(59.999)
        assert not await gets_a_job(world, desk.worker)
        await world.advance(0.001)
        assert await gets_a_job(world, desk.worker)


async def test_job_fault_blocks_no_worker(world: World, desk: Desk) -> None:
    await desk.submit()
    await fail_on(world, desk.worker, Fault.JOB)
    await desk.submit()
    assert await gets_a_job(world, desk.worker)
    assert BLOCKED_EVENT not in await world.audit(desk.worker)


async def test_interruption_blocks_no_worker(world: World, desk: Desk) -> None:
    await desk.submit()
    await fail_on(world, desk.worker, Fault.INTERRUPTED)
    assert await gets_a_job(world, desk.worker)


async def test_silent_worker_is_not_blocked_for_its_expired_lease(world: World, desk: Desk) -> None:
    await desk.leased()
    await world.expire()
    assert await gets_a_job(world, desk.worker)


async def test_block_does_not_cover_other_workflows_of_the_worker(world: World) -> None:
    first, second = await world.workflow(graph=graph_of("one")), await world.workflow(graph=graph_of("two"))
    worker = await world.worker(await world.fleet(first, second))
    user = await world.user()
    await world.submit(user, await world.effect(first))
    await fail_on(world, worker)
    assert not await gets_a_job(world, worker)
    job = await world.submit(user, await world.effect(second))
    leased = await world.lease(worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == job.id


async def test_success_lifts_the_block_and_that_is_recorded(world: World) -> None:
    desk = await world.desk(concurrency=2)
    await desk.submit()
    await desk.submit()
    slow, quick = await world.leases(desk.worker, 2)
    await world.fail(quick, fault=Fault.WORKER)
    assert not await gets_a_job(world, desk.worker)
    await world.complete(slow)
    assert (await world.audit(desk.worker))[-1] == UNBLOCKED_EVENT
    assert await gets_a_job(world, desk.worker)


async def test_why_a_job_waits_can_be_asked(world: World, desk: Desk) -> None:
    job = await desk.submit()
    await fail_on(world, desk.worker)
    async with world.engine.databases.central.read() as tx:
        found = await blocks.of_hash(tx, job.workflow_hash)
    assert found == {desk.worker: START + timedelta(seconds=60)}


class TestThreeFailuresBeforeABlock:
    @pytest.fixture
    async def patient(self, backend: SqliteBackend | PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
        async with open_world(backend, tmp_path, max_failures_before_block=3, max_attempts=10) as world:
            yield world

    async def test_third_failure_blocks(self, patient: World) -> None:
        desk = await patient.desk()
        await desk.submit()
        for _ in range(3):
            assert BLOCKED_EVENT not in await patient.audit(desk.worker)
            await fail_on(patient, desk.worker)
        assert BLOCKED_EVENT in await patient.audit(desk.worker)
        assert not await gets_a_job(patient, desk.worker)

    async def test_success_starts_the_count_afresh(self, patient: World) -> None:
        desk = await patient.desk()
        await desk.submit()
        for _ in range(2):
            await fail_on(patient, desk.worker)
        leased = await patient.lease(desk.worker)
        assert leased is not None
        await patient.complete(leased)
        await desk.submit()
        for _ in range(2):
            await fail_on(patient, desk.worker)
        assert await gets_a_job(patient, desk.worker)
        assert UNBLOCKED_EVENT not in await patient.audit(desk.worker)

    async def test_failure_does_not_expire_before_it_blocks(self, patient: World) -> None:
        desk = await patient.desk()
        await desk.submit()
        for _ in range(3):
            await fail_on(patient, desk.worker)
            await patient.advance(59)
        assert not await gets_a_job(patient, desk.worker)
