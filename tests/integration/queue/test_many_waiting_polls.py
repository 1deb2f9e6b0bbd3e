"""A job is leased to one of many parked polls without waking all of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from comfyrelay.domain.queue.blocks import Block
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.errors import Unauthorized
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.polls import MAX_UNCHECKED, Polls
from comfyrelay.store.central.queue import blocks
from comfyrelay.store.database import Boundary, Tx
from comfyrelay.store.notify import NotifyChannel
from tests.support.world import PATIENCE_SECONDS, Desk, World, graph_of

LONG = PATIENCE_SECONDS
MANY = 2 * MAX_UNCHECKED + 4
Waiting = asyncio.Task[list[LeasedDispatch]]


class LossyChannel(NotifyChannel):
    """A channel that loses every notification."""

    async def notify(self) -> None:
        return None


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


def make_polls(world: World, channel: NotifyChannel | None = None, *, tick_seconds: float) -> Polls:
    engine = world.engine
    channel = channel or engine.notify_channel
    return Polls(engine.queue.leasing, engine.queue.demand, engine.queue.settle, channel, tick_seconds=tick_seconds)


@pytest.fixture
async def polls(world: World) -> AsyncIterator[Polls]:
    """Yield polls that never tick, so only a wakeup can serve them."""
    polls = make_polls(world, tick_seconds=10 * LONG)
    yield polls
    await polls.stop()


@pytest.fixture
async def ticking(world: World) -> AsyncIterator[Polls]:
    """Yield polls that get no notifications and check only at each tick."""
    polls = make_polls(world, LossyChannel(), tick_seconds=0.1)
    yield polls
    await polls.stop()


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(LONG):
        # There is no signal for this, so check at every turn of the event loop.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def park(polls: Polls, workers: list[str], **values: Any) -> list[Waiting]:
    """Park one poll for each worker, in this order, after it has found nothing."""
    before = polls.parked
    requests = [LeaseRequest(worker_id=worker, providers=["self_hosted"], **values) for worker in workers]
    waiting = [asyncio.create_task(polls.poll(request, wait_seconds=LONG)) for request in requests]
    await wait_until(
        lambda: polls.parked == before + len(workers) and not polls._new and not polls._due._event.is_set()
    )
    await wait_until(lambda: polls._watcher is not None)
    return waiting


async def register_workers(world: World, fleet: str, count: int = MANY) -> list[str]:
    return [await world.worker(fleet) for _ in range(count)]


async def first_served(waiting: list[Waiting]) -> Waiting:
    async with asyncio.timeout(LONG):
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (served,) = done
    return served


class TestAmongMany:
    @pytest.mark.both_databases
    async def test_job_is_leased_to_the_longest_waiting_poll(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = await park(polls, await register_workers(world, desk.fleet))
        await desk.submit()
        assert await first_served(waiting) is waiting[0]
        await desk.submit()
        assert await first_served(waiting[1:]) is waiting[1]

    @pytest.mark.parametrize("count", [4, MANY])
    async def test_job_goes_to_the_machine_of_a_scaled_fleet_that_was_busy_last(
        self, world: World, desk: Desk, polls: Polls, count: int
    ) -> None:
        """The other machines remain idle, so they can be stopped."""
        fleet = await world.engine.workers.fleets.change(
            stage=Stage.PRODUCTION, slug=desk.fleet, changes={"machines": {"provider": "command"}}
        )
        workers = await register_workers(world, desk.fleet, count)
        waiting = dict(zip(workers, await park(polls, workers, fleet_id=fleet.id), strict=True))
        served = []
        for _ in range(3):
            await desk.submit()
            task = await first_served(list(waiting.values()))
            [worker] = [name for name, other in waiting.items() if other is task]
            served.append(worker)
            await world.complete((await task)[0])
            [waiting[worker]] = await park(polls, [worker], fleet_id=fleet.id)
        assert len(set(served)) == 1

    async def test_single_job_wakes_only_a_few_polls(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = await park(polls, await register_workers(world, desk.fleet))
        world.engine.queue.leasing.take_pollers()
        await desk.submit()
        await first_served(waiting)
        assert 0 < len(world.engine.queue.leasing.take_pollers()) <= MAX_UNCHECKED + 1

    async def test_five_jobs_serve_five_polls(self, world: World, desk: Desk, polls: Polls) -> None:
        waiting = await park(polls, await register_workers(world, desk.fleet))
        jobs = [await desk.submit() for _ in range(5)]
        async with asyncio.timeout(LONG):
            found = await asyncio.gather(*waiting[:5])
        assert [lease.dispatch.tenant_job_id for (lease,) in found] == [job.id for job in jobs]

    async def test_only_polls_that_can_run_the_job_are_woken(self, world: World, desk: Desk, polls: Polls) -> None:
        other = await world.fleet(await world.workflow())
        waiting = await park(polls, await register_workers(world, other))
        mine = await park(polls, [desk.worker])
        world.engine.queue.leasing.take_pollers()
        await desk.submit()
        assert await first_served([*waiting, *mine]) is mine[0]
        assert world.engine.queue.leasing.take_pollers() == [desk.worker]

    async def test_warm_worker_is_served_first(self, world: World, desk: Desk, polls: Polls) -> None:
        _, leased = await desk.submit_and_lease()
        waiting = await park(polls, await register_workers(world, desk.fleet))
        warm = await park(
            polls,
            [await world.worker(desk.fleet)],
            warm_workflow_hashes=frozenset({leased.dispatch.workflow_hash}),
        )
        await desk.submit()
        assert await first_served([*waiting, *warm]) is warm[0]

    async def test_draining_or_full_worker_is_skipped(self, world: World, desk: Desk, polls: Polls) -> None:
        await desk.submit_and_lease()
        full, workers = desk.worker, await register_workers(world, desk.fleet)
        waiting = await park(polls, [full, *workers])
        await world.engine.workers.workers.set_draining(workers[0], is_draining=True)
        await desk.submit()
        assert await first_served(waiting) is waiting[2]

    @pytest.mark.both_databases
    async def test_blocked_workers_are_skipped_for_later_polls(self, world: World, desk: Desk, polls: Polls) -> None:
        job, leased = await desk.submit_and_lease()
        await world.complete(leased)
        workers = await register_workers(world, desk.fleet)
        await block_workers(world, workers[:-1], (await world.dispatch(job)).workflow_hash)
        waiting = await park(polls, workers)
        await desk.submit()
        assert await first_served(waiting) is waiting[-1]

    async def test_unplaceable_job_is_not_retried_at_every_wakeup(self, world: World, desk: Desk, polls: Polls) -> None:
        job, leased = await desk.submit_and_lease()
        await world.complete(leased)
        workers = await register_workers(world, desk.fleet)
        await block_workers(world, workers, (await world.dispatch(job)).workflow_hash)
        await park(polls, workers)
        await desk.submit()
        await wait_until(lambda: polls._unplaced)
        world.engine.queue.leasing.take_pollers()
        other = await world.workflow(graph=graph_of("other"))
        waiting = await park(polls, [await world.worker(await world.fleet(other))])
        await world.submit(desk.user, await world.effect(other))
        await first_served(waiting)
        assert not set(world.engine.queue.leasing.take_pollers()) & set(workers)


class TestPrefetch:
    async def test_idle_worker_is_served_before_a_prefetch(self, world: World, desk: Desk, polls: Polls) -> None:
        await desk.submit_and_lease()
        busy = await park(polls, [desk.worker], prefetch=1)
        waiting = await park(polls, await register_workers(world, desk.fleet))
        await desk.submit()
        assert await first_served([*busy, *waiting]) is waiting[0]

    async def test_job_is_prefetched_if_no_idle_worker_can_run_it(self, world: World, desk: Desk, polls: Polls) -> None:
        await desk.submit_and_lease()
        busy = await park(polls, [desk.worker], prefetch=1)
        waiting = await park(polls, await register_workers(world, await world.fleet(await world.workflow())))
        await desk.submit()
        assert await first_served([*busy, *waiting]) is busy[0]
        assert busy[0].result()[0].dispatch.is_prefetch

    async def test_later_poll_prefetches_an_unplaced_job(self, world: World, desk: Desk, polls: Polls) -> None:
        await desk.submit_and_lease()
        await park(polls, await register_workers(world, await world.fleet(await world.workflow())))
        await desk.submit()
        await wait_until(lambda: polls._unplaced)
        request = LeaseRequest(worker_id=desk.worker, providers=["self_hosted"], prefetch=1)
        (leased,) = await polls.poll(request)
        assert leased.dispatch.is_prefetch


class TestTick:
    async def test_tick_serves_polls_if_every_notification_is_lost(
        self, world: World, desk: Desk, ticking: Polls
    ) -> None:
        waiting = await park(ticking, await register_workers(world, desk.fleet))
        await desk.submit()
        assert await first_served(waiting) is waiting[0]

    async def test_workflow_assigned_to_a_parked_worker_applies(self, world: World, desk: Desk, ticking: Polls) -> None:
        assigned = await world.workflow()
        waiting = await park(ticking, await register_workers(world, desk.fleet))
        await world.submit(desk.user, await world.effect(assigned))
        slugs = [desk.workflow.slug, assigned.slug]
        await world.engine.workers.fleets.map_workflows(stage=Stage.PRODUCTION, slug=desk.fleet, workflow_slugs=slugs)
        assert await first_served(waiting) is waiting[0]

    async def test_idle_tick_begins_no_transaction(self, world: World, desk: Desk, ticking: Polls) -> None:
        await park(ticking, [desk.worker])
        steps: list[str] = []

        async def record(step: str, _: Boundary) -> None:
            steps.append(step)

        world.on_boundary(record)
        third = ticking._tick_at + 3 * ticking._tick_seconds
        await wait_until(lambda: ticking._tick_at >= third)
        assert steps == []


async def test_parked_worker_gets_the_prefetched_job_of_a_busy_worker(world: World, desk: Desk, ticking: Polls) -> None:
    await desk.submit_and_lease()
    job = await desk.submit()
    prefetched = await world.lease(desk.worker, prefetch=1)
    assert prefetched is not None
    await world.advance(6)
    with world.engine.queue.stop_requests.watching(prefetched.dispatch_id) as recalled:
        waiting = await park(ticking, await register_workers(world, desk.fleet, 3))
        assert await recalled.wait(LONG)
    assert (await world.dispatch(job)).release_requested_at is not None
    await world.requeue(prefetched, "released")
    (leased,) = await (await first_served(waiting))
    assert (leased.dispatch.tenant_job_id, leased.dispatch.is_prefetch) == (job.id, False)


async def test_poll_canceled_before_it_is_served_is_not_parked(
    world: World, desk: Desk, polls: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = LeaseRequest(worker_id=desk.worker, providers=["self_hosted"])
    leasing, may_lease = world.engine.queue.leasing, asyncio.Event()
    lease_many = leasing.lease_many

    async def lease_later(requests: Sequence[LeaseRequest]) -> Any:
        await may_lease.wait()
        return await lease_many(requests)

    monkeypatch.setattr(leasing, "lease_many", lease_later)
    first = asyncio.create_task(polls.poll(request))
    await wait_until(lambda: polls.parked == 1)
    canceled = asyncio.create_task(polls.poll(request, wait_seconds=LONG))
    await wait_until(lambda: polls._new)
    canceled.cancel()
    await asyncio.wait([canceled])
    last = asyncio.create_task(polls.poll(request))
    may_lease.set()
    assert (await first, await last) == ([], [])
    assert polls.parked == 0


class TestRepeatedPolls:
    """A worker repeats an empty poll at once, and the repeated poll is checked together with other polls."""

    async def test_repeated_poll_runs_no_query_of_its_own(self, world: World, desk: Desk) -> None:
        request = LeaseRequest(worker_id=desk.worker, providers=["self_hosted"])
        polls = make_polls(world, tick_seconds=LONG / 20)
        assert await polls.poll(request, wait_seconds=0.01) == []
        world.engine.queue.leasing.take_pollers()
        waiting = asyncio.create_task(polls.poll(request, wait_seconds=LONG))
        await wait_until(lambda: polls.parked == 1 and polls._watcher is not None)
        assert world.engine.queue.leasing.take_pollers() == []
        job = await desk.submit()
        (leased,) = await waiting
        assert leased.dispatch.tenant_job_id == job.id
        await polls.stop()

    async def test_request_id_of_a_repeated_poll_is_looked_up_after_a_few_ticks(
        self, world: World, desk: Desk, ticking: Polls
    ) -> None:
        request = LeaseRequest(worker_id=desk.worker, providers=["self_hosted"], request_id="r")
        assert await ticking.poll(request, wait_seconds=0.01) == []
        job = await desk.submit()
        other = await world.engine.queue.leasing.lease(request)
        (leased,) = await ticking.poll(request, wait_seconds=LONG)
        assert (leased.lease_token, leased.dispatch.tenant_job_id) == (other[0].lease_token, job.id)


@pytest.mark.both_databases
async def test_demand_lists_the_first_job_of_every_stage_and_workflow(world: World) -> None:
    user = await world.user(tokens=1000)
    effects = [await world.effect(await world.workflow()) for _ in range(2)]
    cloud = await world.effect(await world.workflow(provider=Provider.CLOUD))
    jobs = [
        await world.submit(user, effects[0]),
        await world.submit(user, effects[1]),
        await world.submit(user, cloud),
        await world.submit(user, effects[1], stage=Stage.STAGING),
    ]
    await world.submit(user, effects[0], delay_seconds=60)
    demand = await world.engine.queue.demand.queued()
    assert {job.id for job in demand} == {(await world.dispatch(job)).id for job in jobs}
    assert {(job.stage, job.provider) for job in demand} == {
        ("production", "self_hosted"),
        ("production", "cloud"),
        ("staging", "self_hosted"),
    }


async def test_parked_poll_with_a_rotated_token_gets_no_job(world: World, desk: Desk, polls: Polls) -> None:
    token = await world.engine.workers.workers.rotate_token(desk.worker)
    (waiting,) = await park(polls, [desk.worker], token_hash=hash_secret(token))
    await world.engine.workers.workers.rotate_token(desk.worker)
    job = await desk.submit()
    with pytest.raises(Unauthorized):
        await waiting
    assert (await world.dispatch(job)).status == "queued"


async def block_workers(world: World, workers: list[str], workflow_hash: str) -> None:
    async def work(tx: Tx) -> None:
        for worker in workers:
            until = world.clock.now + timedelta(hours=1)
            await blocks.write(tx, (worker, workflow_hash), Block(failure_count=1, blocked_until=until))

    await world.engine.databases.central.run("test", work)


async def test_pinned_job_reaches_the_parked_poll_of_its_worker(world: World, desk: Desk, polls: Polls) -> None:
    workers = await register_workers(world, desk.fleet)
    waiting = await park(polls, workers)
    job = await desk.submit(only_worker=workers[-3])
    served = await first_served(waiting)
    assert served is waiting[-3]
    assert [lease.dispatch.tenant_job_id for lease in served.result()] == [job.id]


@pytest.mark.both_databases
async def test_jobs_pinned_to_an_absent_worker_do_not_block_other_jobs(world: World, desk: Desk, polls: Polls) -> None:
    waiting = await park(polls, await register_workers(world, desk.fleet))
    await world.engine.accounts.tenancy.set_limits(desk.user.tenant_id, {"max_active_jobs": 100})
    for _ in range(40):
        await desk.submit(only_worker=desk.worker, priority=9)
    job = await desk.submit()
    served = await first_served(waiting)
    assert [lease.dispatch.tenant_job_id for lease in served.result()] == [job.id]
