"""Jobs that wait too long go to Comfy Cloud within the budget, and their cost is recorded."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from comfyrelay.domain.autoscaling.burst import NO_CLOUD_WORKER
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineProviderName, MachineSpec
from comfyrelay.domain.autoscaling.spec_json import machines_to_json
from comfyrelay.domain.queue.lifecycle import MOVED_AFTER_CLOUD_FAILURE
from comfyrelay.domain.queue.states import Provider, Stage, WorkflowProvider
from comfyrelay.errors import Fault, InvalidInput, NotFound
from comfyrelay.services.engine import Engine
from comfyrelay.store.central.autoscaling import bursts
from comfyrelay.store.central.tables.workers import fleets, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.notify import NotifyChannel
from tests.support.burst import EXPECTED, PRICE, burst_scenario, cloud_worker
from tests.support.world import PATIENCE_SECONDS, PostgresBackend, SqliteBackend, World, execute, open_world

WAITING_FOR_LOCK = """
SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
 WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted
"""


async def test_only_jobs_beyond_their_accepted_wait_go_to_the_cloud(world: World) -> None:
    burst = await burst_scenario(world)
    jobs = await burst.submit(4, max_wait_seconds=150)
    # The expected waits are 60, 120 and 180 s, and 180 s again for the fourth job because the third has moved.
    decisions = await burst.run_once()
    assert await burst.providers(jobs) == ["self_hosted", "self_hosted", "cloud", "cloud"]
    assert [decision.reason for decision in decisions] == [
        "Sent to Comfy Cloud: the wait would be about 3 min, and it accepts 2 min."
    ] * 2
    assert await burst.run_once() == []


@pytest.mark.both_databases
async def test_estimated_and_actual_cost_are_written_to_the_job_once(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    assert (await world.job(job)).expected_cost_micros == EXPECTED
    leased = await burst.lease_in_cloud()
    await world.advance(30)
    await world.complete(leased)
    await world.complete(leased)
    done, dispatch = await world.job(job), await world.dispatch(job)
    assert (done.status, done.cost_micros, done.expected_cost_micros) == ("completed", 30 * PRICE, EXPECTED)
    assert (dispatch.provider, dispatch.cost_micros) == ("cloud", 30 * PRICE)
    assert await world.events(job) == ["job:queued", "job:provider", "job:started", "job:completed"]
    async with world.engine.databases.central.read() as tx:
        record = await bursts.of_dispatch(tx, dispatch.id)
    assert record is not None
    assert (record.cost_micros, record.ended_at) == (30 * PRICE, world.clock.now)
    assert record.seen == {"wait_seconds": 60.0, "cloud_wait_seconds": 0.0, "accepts_seconds": 10.0}


async def test_local_run_costs_the_local_price_per_second(world: World) -> None:
    burst = await burst_scenario(world)
    await world.advance(20)
    await world.complete(burst.running)
    assert await execute(world.engine.databases.central, "SELECT cost_micros FROM ai_job_dispatches") == [(200,)]


@pytest.mark.both_databases
async def test_hourly_limit_applies_for_one_hour(world: World) -> None:
    burst = await burst_scenario(world, limit=2 * EXPECTED)
    jobs = await burst.submit(3, max_wait_seconds=10)
    await burst.run_once()
    assert await burst.providers(jobs) == ["cloud", "cloud", "self_hosted"]
    assert "Not sent to Comfy Cloud: the hourly cost limit is reached." in await burst.wait_reason(jobs[2])
    leased = await burst.lease_in_cloud()
    await world.advance(60)
    await world.complete(leased)
    await world.engine.workers.workers.record_seen([burst.own, burst.cloud])
    # One estimate is spent, and one is reserved.
    assert await burst.run_once() == []
    await world.advance(3601)
    await world.engine.workers.workers.record_seen([burst.own, burst.cloud])
    # The reservation still counts; the cost from an hour ago does not.
    assert len(await burst.run_once()) == 1
    assert await burst.providers(jobs) == ["cloud", "cloud", "cloud"]


async def test_server_limit_applies_to_all_workflows_together(
    backend: SqliteBackend | PostgresBackend, tmp_path: Path
) -> None:
    async with open_world(backend, tmp_path, burst_micros_per_hour=EXPECTED) as world:
        burst = await burst_scenario(world, limit=None)
        jobs = await burst.submit(2, max_wait_seconds=10)
        await burst.run_once()
        assert await burst.providers(jobs) == ["cloud", "self_hosted"]


async def test_no_job_bursts_without_a_cost_limit(world: World) -> None:
    burst = await burst_scenario(world, limit=None)
    [job] = await burst.submit(max_wait_seconds=0)
    assert await burst.run_once() == []
    assert "no cost limit" in await burst.wait_reason(job)


async def test_job_without_a_wait_limit_does_not_burst(world: World) -> None:
    burst = await burst_scenario(world)
    await burst.submit(4)
    assert await burst.run_once() == []


@pytest.mark.both_databases
async def test_strictest_limit_of_effect_tenant_and_job_applies(world: World) -> None:
    burst = await burst_scenario(world, max_wait_seconds=200)
    [first] = await burst.submit(max_wait_seconds=100)
    [second] = await burst.submit(max_wait_seconds=5000)
    assert await burst.run_once() == []
    await world.engine.accounts.tenancy.set_limits(burst.user.tenant_id, {"max_wait_seconds": 110})
    await burst.run_once()
    # The expected waits are 60 s and 120 s.
    assert await burst.providers([first, second]) == ["self_hosted", "cloud"]
    await world.engine.accounts.tenancy.set_limits(burst.user.tenant_id, {"max_wait_seconds": None})
    with pytest.raises(NotFound):
        await world.engine.accounts.tenancy.set_limits("nobody", {"max_wait_seconds": 1})


async def test_job_without_a_cloud_worker_stays_local_with_a_reason(world: World) -> None:
    burst = await burst_scenario(world)
    await world.engine.workers.workers.set_draining(burst.cloud, is_draining=True)
    [job] = await burst.submit(max_wait_seconds=10)
    assert await burst.run_once() == []
    assert "no cloud worker has this workflow" in await burst.wait_reason(job)


@pytest.mark.both_databases
async def test_cloud_job_without_a_cloud_worker_returns_permanently(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    await world.engine.workers.workers.set_draining(burst.cloud, is_draining=True)
    assert [decision.reason for decision in await burst.run_once()] == [NO_CLOUD_WORKER]
    assert await burst.providers([job]) == ["self_hosted"]
    assert (await burst.wait_reason(job)).startswith(NO_CLOUD_WORKER)
    await cloud_worker(world, "fleet-3", name="another")
    assert await burst.run_once() == []
    async with world.engine.databases.central.read() as tx:
        assert await bursts.spent(tx) == {burst.workflow.id: 0}
    assert (await world.events(job))[-2:] == ["job:provider", "job:provider"]


async def test_worker_fault_in_the_cloud_returns_the_job_and_its_cost_counts(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    leased = await burst.lease_in_cloud()
    await world.advance(5)
    assert await world.fail(leased, fault=Fault.WORKER) == "queued"
    await world.wait_for_deliveries()
    assert await burst.providers([job]) == ["self_hosted"]
    assert (await burst.wait_reason(job)).startswith(MOVED_AFTER_CLOUD_FAILURE)
    assert await burst.run_once() == []
    async with world.engine.databases.central.read() as tx:
        assert await bursts.spent(tx) == {burst.workflow.id: 5 * PRICE}
    await world.complete(burst.running)
    own_lease = await world.lease(burst.own)
    assert own_lease is not None
    await world.advance(7)
    await world.complete(own_lease)
    assert (await world.job(job)).cost_micros == 5 * PRICE + 7 * 10


async def test_expired_cloud_lease_costs_its_estimate(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    await burst.lease_in_cloud()
    await world.expire()
    await world.wait_for_deliveries()
    assert await burst.providers([job]) == ["self_hosted"]
    assert (await world.job(job)).cost_micros == EXPECTED


@pytest.mark.parametrize("removal", ["deregistered", "revoked"])
async def test_cloud_run_of_a_removed_worker_costs_its_estimate(world: World, removal: str) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    await burst.lease_in_cloud()
    workers = world.engine.workers.workers
    if removal == "deregistered":
        await workers.deregister(burst.cloud)
    else:
        await workers.set_approved(burst.cloud, is_approved=False)
    await world.wait_for_deliveries()
    assert (await world.job(job)).cost_micros == EXPECTED
    async with world.engine.databases.central.read() as tx:
        assert (await bursts.spent(tx))[burst.workflow.id] >= EXPECTED


async def test_canceling_a_waiting_cloud_job_releases_its_budget(world: World) -> None:
    burst = await burst_scenario(world, limit=EXPECTED)
    first, second = await burst.submit(2, max_wait_seconds=10)
    await burst.run_once()
    assert await burst.providers([first, second]) == ["cloud", "self_hosted"]
    await world.engine.queue.control.cancel(first.tenant_id, first.id)
    await burst.run_once()
    assert await burst.providers([second]) == ["cloud"]
    assert (await world.job(first)).cost_micros == 0


async def test_requeued_cloud_job_costs_nothing_and_stays_in_the_cloud(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    leased = await burst.lease_in_cloud()
    await world.advance(20)
    await world.requeue(leased)
    await world.wait_for_deliveries()
    assert (await burst.providers([job]), (await world.job(job)).cost_micros) == (["cloud"], 0)


async def test_retry_starts_on_self_hosted_workers(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=10)
    await burst.run_once()
    leased = await burst.lease_in_cloud()
    await world.fail(leased)
    await world.wait_for_deliveries()
    retry = await world.engine.jobs.submit.retry(job.tenant_id, job.id)
    assert (retry.max_wait_seconds, retry.expected_cost_micros, retry.cost_micros) == (10, None, 0)
    assert await burst.providers([retry]) == ["self_hosted"]


async def test_cloud_job_has_a_wait_reason(world: World) -> None:
    burst = await burst_scenario(world)
    [job] = await burst.submit(max_wait_seconds=5)
    await burst.run_once()
    assert await burst.wait_reason(job) == (
        "Sent to Comfy Cloud: the wait would be about 60 s, and it accepts 5 s. Next in the queue; a worker is free."
    )


async def test_job_waits_for_a_machine_that_can_be_launched(world: World) -> None:
    burst = await burst_scenario(world)
    await world.engine.workers.workers.set_draining(burst.own, is_draining=True)
    jobs = await burst.submit(1, max_wait_seconds=120)
    await configure_machines(world)
    assert await burst.run_once() == []
    [impatient] = await burst.submit(1, max_wait_seconds=90)
    await burst.run_once()
    assert await burst.providers([*jobs, impatient]) == ["self_hosted", "cloud"]


@pytest.mark.parametrize("scaling", [{"max_machines": 1}, {"cost_per_hour": 0.5}, {"is_paused": True}])
async def test_job_does_not_wait_for_a_machine_that_cannot_be_launched(world: World, scaling: dict[str, float]) -> None:
    """The only machine drains, and a cloud worker is not a machine."""
    burst = await burst_scenario(world)
    await world.engine.workers.workers.set_draining(burst.own, is_draining=True)
    jobs = await burst.submit(1, max_wait_seconds=120)
    await configure_machines(world, scaling=scaling)
    await burst.run_once()
    assert await burst.providers(jobs) == ["cloud"]


async def test_expected_wait_for_a_slow_machine_includes_its_speed(world: World) -> None:
    burst = await burst_scenario(world)
    await world.engine.workers.workers.set_draining(burst.own, is_draining=True)
    # 100 s to boot, and 60 s of work at half speed
    jobs = [*await burst.submit(1, max_wait_seconds=240), *await burst.submit(1, max_wait_seconds=200)]
    await configure_machines(world, speed=0.5)
    await burst.run_once()
    assert await burst.providers(jobs) == ["self_hosted", "cloud"]


@pytest.mark.parametrize(("speed", "provider"), [(1.0, "self_hosted"), (0.5, "cloud")])
async def test_jobs_on_a_slow_worker_lengthen_the_expected_wait(world: World, speed: float, provider: str) -> None:
    burst = await burst_scenario(world)
    await configure_machines(world, speed=speed, scaling={"max_machines": 1})
    await world.engine.databases.central.run(
        "test", lambda tx: tx.execute(workers.update().values(instance_type="gpu"))
    )
    jobs = await burst.submit(1, max_wait_seconds=100)
    await burst.run_once()
    assert await burst.providers(jobs) == [provider]


async def configure_machines(world: World, *, speed: float = 1.0, scaling: Mapping[str, float] | None = None) -> None:
    """Configure machines that boot in 100 s and cost 1 per hour."""
    kind = InstanceType(name="gpu", price_per_hour=1.0, speed=speed)
    spec = MachineSpec(provider=MachineProviderName.LOCAL, instance_types=(kind,), options={"boot_seconds": 100})
    values = {"machines": machines_to_json(spec), **({"autoscaling": scaling} if scaling else {})}
    await world.engine.databases.central.run("test", lambda tx: tx.execute(fleets.update().values(**values)))


@pytest.mark.both_databases
async def test_servers_never_exceed_the_budget_together(world: World) -> None:
    burst = await burst_scenario(world, limit=EXPECTED)
    jobs = await burst.submit(4, max_wait_seconds=10)
    clock = world.clock
    others = [Engine(world.engine.settings, clock=lambda: clock.now, notify_channel=NotifyChannel()) for _ in range(2)]
    engines = [world.engine, *others]
    try:
        decisions = await asyncio.gather(
            *(engine.autoscaling.bursting.run_once(Stage.PRODUCTION) for engine in engines)
        )
    finally:
        for other in others:
            await other.stop()
    assert sum(map(len, decisions)) == 1
    assert (await burst.providers(jobs)).count("cloud") == 1


async def test_concurrent_bursts_are_serialized(postgres_backend: PostgresBackend, tmp_path: Path) -> None:
    async with open_world(postgres_backend, tmp_path) as world:
        burst = await burst_scenario(world)
        await burst.submit(max_wait_seconds=10)
        holding, release = asyncio.Event(), asyncio.Event()

        async def hold(tx: Tx) -> None:
            await bursts.lock(tx)
            holding.set()
            await release.wait()

        central = world.engine.databases.central
        holder = asyncio.create_task(central.run("test", hold))
        await holding.wait()
        burst_run = asyncio.create_task(burst.run_once())
        async with asyncio.timeout(PATIENCE_SECONDS):
            # the database knows which session waits but sends no signal
            while not burst_run.done() and not await execute(central, WAITING_FOR_LOCK):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not burst_run.done()
        release.set()
        await holder
        assert len(await burst_run) == 1


@pytest.mark.both_databases
async def test_concurrent_lease_and_burst_never_both_get_a_job(world: World) -> None:
    burst = await burst_scenario(world)
    await world.complete(burst.running)
    jobs = await burst.submit(5, max_wait_seconds=0)
    await world.advance(1)
    await world.engine.workers.workers.register(
        worker_id="many", fleet_slug="fleet-3", stage=Stage.PRODUCTION, max_concurrency=3
    )
    leases, decisions = await asyncio.gather(
        world.leases("many", 3), world.engine.autoscaling.bursting.run_once(Stage.PRODUCTION)
    )
    leased = {lease.dispatch_id for lease in leases}
    moved = {decision.dispatch_id for decision in decisions}
    assert not leased & moved
    for job in jobs:
        dispatch = await world.dispatch(job)
        assert (dispatch.provider == "cloud") == (dispatch.id in moved)
        assert (dispatch.status == "leased") == (dispatch.id in leased)


async def test_only_jobs_that_may_burst_wake_the_loop(world: World) -> None:
    burst = await burst_scenario(world)
    wakeup = world.engine.outbox.recovery.burst_wakeup
    assert await wakeup.wait(0)
    desk = await world.desk()
    await desk.submit()
    assert not await wakeup.wait(0)
    await burst.submit()
    assert await wakeup.wait(0)


async def test_workflow_for_any_provider_needs_a_cloud_price(world: World) -> None:
    with pytest.raises(InvalidInput) as refused:
        await world.workflow(provider=WorkflowProvider.ANY)
    assert "cloud_micros_per_second" in refused.value.errors
    workflow = await world.workflow(provider=WorkflowProvider.ANY, cloud_micros_per_second=1)
    assert (workflow.provider, workflow.may_run_at) == ("self_hosted", "any")
    with pytest.raises(InvalidInput):
        await world.engine.catalogue.workflows.change(workflow.slug, {"cloud_micros_per_second": None})
    changed = await world.engine.catalogue.workflows.change(workflow.slug, {"provider": WorkflowProvider.CLOUD})
    assert changed.workflow.may_run_at == "cloud"


async def test_job_of_a_cloud_only_workflow_stays_in_the_cloud(world: World) -> None:
    workflow = await world.workflow(provider=Provider.CLOUD, cloud_micros_per_second=PRICE)
    effect, user = await world.effect(workflow), await world.user()
    await world.fleet(workflow)
    job = await world.submit(user, effect)
    assert await world.engine.autoscaling.bursting.run_once(Stage.PRODUCTION) == []
    assert (await world.dispatch(job)).provider == "cloud"
    assert await execute(world.engine.databases.central, "SELECT * FROM bursts") == []


async def test_burst_check_runs_only_if_bursting_is_possible(world: World) -> None:
    burst = await burst_scenario(world)
    bursting, wakeup = world.engine.autoscaling.bursting, world.engine.outbox.recovery.burst_wakeup
    await world.advance(1)
    [job] = await burst.submit(max_wait_seconds=1)
    await bursting.run_stages()
    assert await burst.providers([job]) == ["cloud"]
    # jobs already in the cloud are still handled, although no other job may burst
    await world.engine.catalogue.workflows.change(burst.workflow.slug, {"is_active": False})
    await world.engine.workers.workers.deregister(burst.cloud, reason="gone")
    wakeup.notify()
    await bursting.run_stages()
    assert await burst.providers([job]) == ["self_hosted"]
