"""The eight metrics of a fleet, computed from real jobs and workers."""

from comfyrelay.domain.queue.states import Provider, Stage, WorkflowProvider
from comfyrelay.errors import Fault
from comfyrelay.services.autoscaling.fleet_metrics import FleetMetrics
from tests.support.world import World, submit_many


async def figures_of(world: World, fleet: str, stage: Stage = Stage.PRODUCTION) -> FleetMetrics:
    [found] = [
        figures
        for figures in await world.engine.autoscaling.metrics.read()
        if (figures.fleet, figures.stage) == (fleet, stage)
    ]
    return found


async def test_depth_counts_queued_and_leased_jobs_of_the_fleet(world: World) -> None:
    workflow, other = await world.workflow(), await world.workflow()
    fleet, idle = await world.fleet(workflow), await world.fleet(other)
    staging = await world.fleet(workflow, stage=Stage.STAGING)
    worker = await world.worker(fleet)
    user, effect = await world.user(), await world.effect(workflow)
    for _ in range(3):
        await world.submit(user, effect)
    await world.submit(user, effect, delay_seconds=600)
    assert await world.lease(worker) is not None
    assert (await figures_of(world, fleet)).queue_depth == 3
    assert (await figures_of(world, idle)).queue_depth == 0
    assert (await figures_of(world, staging, Stage.STAGING)).queue_depth == 0


async def test_depth_excludes_cloud_jobs(world: World) -> None:
    workflow = await world.workflow(provider=WorkflowProvider.CLOUD)
    fleet = await world.fleet(workflow)
    worker = await world.worker(fleet)
    user, effect = await world.user(), await world.effect(workflow)
    for _ in range(2):
        await world.submit(user, effect)
    assert await world.lease(worker, providers=[Provider.CLOUD]) is not None
    assert (await figures_of(world, fleet)).queue_depth == 0


async def test_backlog_without_workers_equals_the_depth(world: World) -> None:
    workflow = await world.workflow()
    fleet = await world.fleet(workflow)
    user, effect = await world.user(), await world.effect(workflow)
    for _ in range(4):
        await world.submit(user, effect)
    assert (await figures_of(world, fleet)).backlog_per_instance == 4
    for _ in range(2):
        await world.worker(fleet)
    assert (await figures_of(world, fleet)).backlog_per_instance == 2


async def test_workers_count_for_five_minutes_with_their_free_slots(world: World) -> None:
    desk = await world.desk(concurrency=3)
    draining = await world.worker(desk.fleet, concurrency=5)
    revoked = await world.worker(desk.fleet)
    await world.engine.workers.workers.set_draining(draining, is_draining=True)
    await world.engine.workers.workers.set_approved(revoked, is_approved=False)
    await desk.submit_and_lease()
    found = await figures_of(world, desk.fleet)
    assert (found.active_workers, found.available_capacity) == (2, 2)
    await world.advance(290)
    await world.engine.workers.workers.record_seen([desk.worker])
    await world.advance(20)
    found = await figures_of(world, desk.fleet)
    assert (found.active_workers, found.available_capacity) == (1, 2)


async def test_median_covers_the_last_ten_minutes(world: World) -> None:
    desk = await world.desk()
    assert (await figures_of(world, desk.fleet)).job_processing_p50 is None
    for seconds in (100, 10, 30, 20):
        _, leased = await desk.submit_and_lease()
        await world.advance(seconds)
        await world.complete(leased)
    assert (await figures_of(world, desk.fleet)).job_processing_p50 == 25
    await world.advance(600 - 55)
    assert (await figures_of(world, desk.fleet)).job_processing_p50 == 20
    await world.advance(60)
    assert (await figures_of(world, desk.fleet)).job_processing_p50 is None


async def test_error_rate_covers_the_last_five_minutes(world: World) -> None:
    desk = await world.desk()
    for succeeds in (True, False, True, True):
        _, leased = await desk.submit_and_lease()
        await (world.complete(leased) if succeeds else world.fail(leased))
    assert (await figures_of(world, desk.fleet)).error_rate == 0.25
    await world.advance(301)
    assert (await figures_of(world, desk.fleet)).error_rate == 0
    # A failure that is retried on another worker has not failed the job.
    _, leased = await desk.submit_and_lease()
    await world.fail(leased, fault=Fault.WORKER)
    assert (await figures_of(world, desk.fleet)).error_rate == 0


async def test_expired_leases_are_counted(world: World) -> None:
    desk = await world.desk()
    await desk.submit_and_lease()
    assert await world.expire() == 1
    assert (await figures_of(world, desk.fleet)).lease_expired_count == 1
    await world.advance(301)
    assert (await figures_of(world, desk.fleet)).lease_expired_count == 0


async def test_spot_interruptions_count_after_the_worker_deregistered(world: World) -> None:
    desk, elsewhere = await world.desk(), await world.desk()
    await desk.submit()
    for reason in ("spot_interruption", "shutdown", "spot_rebalance"):
        leased = await world.lease(desk.worker)
        assert leased is not None
        await world.requeue(leased, reason)
    assert await world.lease(desk.worker) is not None
    await world.engine.workers.workers.deregister(desk.worker, reason="spot_interruption")
    # Its remaining lease was requeued, too.
    assert (await figures_of(world, desk.fleet)).spot_interruption_count == 3
    assert (await figures_of(world, elsewhere.fleet)).spot_interruption_count == 0


async def test_failure_counts_for_the_fleet_that_ran_the_job(world: World) -> None:
    workflow = await world.workflow()
    first, second = await world.fleet(workflow), await world.fleet(workflow)
    worker = await world.worker(first)
    await submit_many(world, await world.user(), await world.effect(workflow), 1)
    leased = await world.lease(worker)
    assert leased is not None
    await world.fail(leased)
    assert ((await figures_of(world, first)).error_rate, (await figures_of(world, second)).error_rate) == (1, 0)
