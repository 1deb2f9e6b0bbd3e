"""With many servers on one PostgreSQL, no job is leased twice or lost, and the order holds."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from comfyrelay.services.engine import Engine
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.notify import NotifyChannel
from tests.support.full import full_only
from tests.support.world import OUTPUT, PostgresBackend, World, execute, open_world, submit_many

pytestmark = pytest.mark.both_databases

SERVERS = 16


@pytest.fixture
async def world(postgres_backend: PostgresBackend, tmp_path: Path) -> AsyncIterator[World]:
    limits = {"max_active_jobs_per_user": 1000, "database_pool_size": 2}
    async with open_world(postgres_backend, tmp_path, shards=["a"], **limits) as world:
        yield world


@asynccontextmanager
async def start_servers(world: World) -> AsyncIterator[list[Engine]]:
    """Start engines that share only the databases."""
    clock = world.clock
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Engine(world.engine.settings, clock=lambda: clock.now, notify_channel=NotifyChannel())
            )
            for _ in range(SERVERS)
        ]


async def count_queued(world: World) -> int:
    query = "SELECT count(*) AS n FROM ai_job_dispatches WHERE status = 'queued'"
    return int((await execute(world.engine.databases.central, query))[0].n)


async def claim_until_empty(world: World, server: Engine, worker: str) -> list[LeasedDispatch]:
    """Lease until no job is queued: a lease may be empty because other servers lock the next rows."""
    claimed: list[LeasedDispatch] = []
    while True:
        found = await server.queue.leasing.lease(LeaseRequest(worker_id=worker, providers=["self_hosted"], limit=5))
        claimed.extend(found)
        if not found and not await count_queued(world):
            return claimed


@pytest.mark.parametrize("jobs", [500, *full_only(2000)])
async def test_every_job_is_leased_once_and_in_order(world: World, jobs: int) -> None:
    workflows = [await world.workflow() for _ in range(jobs // 100)]
    fleet = await world.fleet(*workflows)
    user = await world.user(tokens=100_000)
    for workflow in workflows:
        effect = await world.effect(workflow)
        for priority in (0, 5, -5, 10):
            await submit_many(world, user, effect, 25, priority=priority)
            await world.advance(1)
    workers = [await world.worker(fleet, concurrency=jobs) for _ in range(SERVERS)]
    async with start_servers(world) as engines:
        claims = await asyncio.gather(
            *(claim_until_empty(world, engine, worker) for engine, worker in zip(engines, workers, strict=True))
        )
    leases = Counter(lease.dispatch_id for claimed in claims for lease in claimed)
    assert len(leases) == jobs
    assert set(leases.values()) == {1}
    assert sum(len(claimed) > 0 for claimed in claims) > 1
    # A poll skips a row only because another server is leasing it, and nothing is enqueued or requeued here. So the
    # rows that one server gets are in order.
    for claimed in claims:
        order = [(-lease.dispatch.priority, lease.dispatch.rank, lease.dispatch_id) for lease in claimed]
        assert order == sorted(order)


async def test_worker_polling_many_servers_never_exceeds_its_capacity(world: World) -> None:
    desk = await world.desk(concurrency=2, tokens=100_000)
    await submit_many(world, desk.user, desk.effect, 200)
    request = LeaseRequest(worker_id=desk.worker, providers=["self_hosted"])
    async with start_servers(world) as engines:
        for _ in range(15):
            found = await asyncio.gather(*(engine.queue.leasing.lease(request) for engine in engines))
            leases = [lease for answer in found for lease in answer]
            assert 1 <= len(leases) <= 2
            for lease in leases:
                await world.complete(lease)


async def test_complete_sent_to_many_servers_at_once_counts_once(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    async with start_servers(world) as engines:
        answers = await asyncio.gather(
            *(engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, output=OUTPUT) for engine in engines)
        )
    assert {answer.status for answer in answers} == {"completed"}
    await world.relay()
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
    assert await world.audit(desk.worker) == ["register", "lease", "complete"]


async def test_concurrent_complete_and_reap_leave_one_outcome(world: World) -> None:
    desk = await world.desk(concurrency=SERVERS, tokens=100_000)
    jobs = await submit_many(world, desk.user, desk.effect, SERVERS)
    leased = await world.leases(desk.worker, SERVERS)
    await world.advance(1800)
    async with start_servers(world) as engines:
        completing = (
            engine.queue.settle.complete(lease.dispatch_id, lease.lease_token, output=OUTPUT)
            for engine, lease in zip(engines, leased, strict=True)
        )
        reaping = (engine.queue.reaper.run_once() for engine in engines[:4])
        answers = await asyncio.gather(*completing, *reaping, return_exceptions=True)
    accepted = [isinstance(answer, Exception) for answer in answers[:SERVERS]].count(False)
    reaped = sum(answer for answer in answers[SERVERS:] if isinstance(answer, int))
    assert accepted + reaped == SERVERS
    await world.relay()
    statuses = Counter([(await world.job(job)).status for job in jobs])
    assert statuses == Counter({"completed": accepted, "queued": reaped}) - Counter()
