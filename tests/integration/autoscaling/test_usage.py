"""Machine time per tenant and its cost: each lease counts once."""

import asyncio
from datetime import date, timedelta
from pathlib import Path

import pytest

from comfyrelay.domain.queue.states import Stage
from comfyrelay.protocol.admin.fleets import Usage
from comfyrelay.services.autoscaling.usage import OVERLAP, UsageGrouping, UsageKind
from comfyrelay.services.queue.settle import Report, Verb
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import tables
from comfyrelay.store.central.autoscaling import usage
from comfyrelay.store.database import Boundary
from tests.support.world import START, Crash, Desk, PostgresBackend, World, open_world, submit_many


@pytest.fixture
async def desk(world: World) -> Desk:
    """Create a fleet with a price of 0.001 per second, and a worker of that instance type."""
    desk = await world.desk()
    await price(world, desk.fleet)
    await world.engine.workers.workers.deregister(desk.worker)
    await world.engine.workers.workers.register(
        worker_id=desk.worker, fleet_slug=desk.fleet, instance_type="g5.xlarge", max_concurrency=1
    )
    return desk


async def cost_of(world: World, dispatch: int) -> float:
    async with world.engine.databases.central.read() as tx:
        return (await usage.cost_of(tx, [dispatch]))[dispatch]


async def price(world: World, fleet: str, per_hour: float = 3.6) -> None:
    machines = {"instance_types": [{"name": "g5.xlarge", "price_per_hour": per_hour}]}
    await world.engine.workers.fleets.change(stage=Stage.PRODUCTION, slug=fleet, changes={"machines": machines})


async def add_machine(world: World, desk: Desk, **values: object) -> None:
    async with world.engine.databases.central.read() as tx:
        fleet_id = await tx.scalar(tables.workers.fleets.select().where(tables.workers.fleets.c.slug == desk.fleet))
    row = {"key": f"m{world.number()}", "fleet_id": fleet_id, "ordered_at": world.clock.now, **values}
    await world.engine.databases.central.run(
        TransactionStep.CATALOGUE, lambda tx: tx.execute(tables.autoscaling.machines.insert().values(**row))
    )


async def finish(world: World, desk: Desk, seconds: float) -> int:
    """Finish a job that ran for this long. Return its dispatch."""
    _, leased = await desk.submit_and_lease()
    await world.advance(seconds)
    await world.complete(leased)
    return leased.dispatch_id


async def usage_row(world: World, by: UsageGrouping = UsageGrouping.FLEET) -> Usage:
    [row] = await world.engine.autoscaling.usage.report(by)
    return row


async def test_completed_attempts_count_as_busy_and_others_as_lost(world: World, desk: Desk) -> None:
    await finish(world, desk, 100)
    _, leased = await desk.submit_and_lease()
    await world.advance(30)
    await world.requeue(leased)
    leased_again = await world.lease(desk.worker)
    assert leased_again is not None
    await world.advance(20)
    await world.fail(leased_again)
    assert await world.engine.autoscaling.usage.run_once() == 3
    row = await usage_row(world)
    assert (row.name, row.stage, row.jobs, row.busy_seconds, row.lost_seconds) == (desk.fleet, "production", 1, 100, 50)
    assert row.cost == pytest.approx(0.15)


async def test_job_cost_includes_all_its_leases(world: World, desk: Desk) -> None:
    job, leased = await desk.submit_and_lease()
    await world.advance(10)
    await world.requeue(leased)
    again = await world.lease(desk.worker)
    assert again is not None
    await world.advance(30)
    await world.complete(again)
    assert (await world.engine.operations.inspection.dispatch(again.dispatch_id)).machine_cost is None
    await world.engine.autoscaling.usage.run_once()
    found = await world.engine.operations.inspection.dispatch(again.dispatch_id)
    assert found.machine_cost == pytest.approx(0.04)
    assert found.dispatch.tenant_job_id == job.id


async def test_price_of_the_machine_precedes_the_price_of_its_type(world: World, desk: Desk) -> None:
    async def cost_of_ten_seconds() -> float:
        dispatch = await finish(world, desk, 10)
        await world.engine.autoscaling.usage.run_once()
        return await cost_of(world, dispatch)

    await add_machine(world, desk, worker_id=desk.worker, instance_type="g5.xlarge")
    assert await cost_of_ten_seconds() == pytest.approx(0.01)
    await add_machine(world, desk, worker_id=desk.worker, instance_type="g5.xlarge", price_per_hour=7.2)
    assert await cost_of_ten_seconds() == pytest.approx(0.02)


async def test_time_without_a_price_is_counted_separately(world: World) -> None:
    desk = await world.desk()
    await finish(world, desk, 10)
    await world.engine.autoscaling.usage.run_once()
    row = await usage_row(world)
    assert (row.busy_seconds, row.unpriced_seconds, row.cost, row.machine_cost) == (10, 10, 0, None)
    await price(world, desk.fleet)
    await finish(world, desk, 5)
    await world.engine.autoscaling.usage.run_once()
    row = await usage_row(world)
    assert (row.busy_seconds, row.unpriced_seconds) == (15, 10)
    assert row.cost == pytest.approx(0.005)


async def test_free_machine_has_a_price(world: World) -> None:
    desk = await world.desk()
    await price(world, desk.fleet, 0)
    await finish(world, desk, 10)
    await world.engine.autoscaling.usage.run_once()
    row = await usage_row(world)
    assert (row.unpriced_seconds, row.cost) == (0, 0)


async def test_worker_without_an_instance_type_has_the_only_one_of_its_fleet(world: World) -> None:
    desk = await world.desk()
    await price(world, desk.fleet)
    dispatch = await finish(world, desk, 10)
    await world.engine.autoscaling.usage.run_once()
    assert await cost_of(world, dispatch) == pytest.approx(0.01)


async def test_jobs_on_a_machine_with_two_slots_pay_half(world: World) -> None:
    desk = await world.desk(concurrency=2)
    await price(world, desk.fleet)
    await add_machine(world, desk, worker_id=desk.worker, price_per_hour=3.6)
    dispatch = await finish(world, desk, 10)
    await world.engine.autoscaling.usage.run_once()
    assert await cost_of(world, dispatch) == pytest.approx(0.005)


async def test_time_of_a_deregistered_worker_counts_for_its_fleet(world: World, desk: Desk) -> None:
    await finish(world, desk, 10)
    await world.engine.workers.workers.deregister(desk.worker, reason="shutdown")
    await world.engine.autoscaling.usage.run_once()
    row = await usage_row(world)
    assert row.name == desk.fleet
    assert row.cost == pytest.approx(0.01)


async def test_returned_prefetch_costs_nothing(world: World, desk: Desk) -> None:
    await submit_many(world, desk.user, desk.effect, 2)
    first, ahead = await world.leases(desk.worker, 2, prefetch=1)
    await world.advance(50)
    await world.requeue(ahead, "draining")
    await world.complete(first)
    await world.engine.autoscaling.usage.run_once()
    row = await usage_row(world)
    assert (row.busy_seconds, row.lost_seconds) == (50, 0)


async def test_prefetched_job_counts_from_its_start(world: World, desk: Desk) -> None:
    await submit_many(world, desk.user, desk.effect, 2)
    first, ahead = await world.leases(desk.worker, 2, prefetch=1)
    await world.advance(50)
    await world.complete(first)
    await world.advance(20)
    begun = Report(
        verb=Verb.COMPLETE, dispatch_id=ahead.dispatch_id, lease_token=ahead.lease_token, began_after_seconds=50
    )
    await world.engine.queue.settle.report(begun)
    await world.engine.autoscaling.usage.run_once()
    assert (await usage_row(world)).busy_seconds == 70


async def test_workflows_and_tenants_have_their_own_sums(world: World, desk: Desk) -> None:
    await finish(world, desk, 10)
    other = await world.user()
    await world.submit(other, desk.effect)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.advance(5)
    await world.complete(leased)
    await world.engine.autoscaling.usage.run_once()
    workflow = await usage_row(world, UsageGrouping.WORKFLOW)
    assert (workflow.name, workflow.jobs, workflow.busy_seconds) == (desk.workflow.slug, 2, 15)
    tenants = await world.engine.autoscaling.usage.report(UsageGrouping.TENANT)
    assert {tenant.name: tenant.busy_seconds for tenant in tenants} == {desk.user.tenant_id: 10, other.tenant_id: 5}


async def test_usage_is_counted_per_day(world: World, desk: Desk) -> None:
    await finish(world, desk, 10)
    await world.advance(86400)
    await finish(world, desk, 5)
    await world.engine.autoscaling.usage.run_once()
    first = START.date()
    report = world.engine.autoscaling.usage.report
    [only] = await report(UsageGrouping.FLEET, first=first, last=first)
    assert only.busy_seconds == 10
    [both] = await report(UsageGrouping.FLEET, first=first, last=first + timedelta(days=1))
    assert both.busy_seconds == 15
    assert await report(UsageGrouping.FLEET, first=date(2025, 1, 1), last=date(2025, 1, 31)) == []


async def test_machine_costs_include_boot_and_idle_time(world: World, desk: Desk) -> None:
    began = world.clock.now
    await world.advance(1000)
    await add_machine(
        world,
        desk,
        worker_id=desk.worker,
        price_per_hour=3.6,
        ordered_at=began,
        registered_at=began + timedelta(seconds=180),
        ended_at=began + timedelta(seconds=780),
    )
    await finish(world, desk, 100)
    await world.engine.autoscaling.usage.run_once()
    row = await usage_row(world)
    assert (row.boot_seconds, row.busy_seconds, row.idle_seconds) == (180, 100, 500)
    assert row.machine_cost == pytest.approx(0.78)


class TestExactlyOnce:
    async def test_usage_is_counted_once(self, world: World, desk: Desk) -> None:
        await finish(world, desk, 10)
        usage = world.engine.autoscaling.usage
        assert [await usage.run_once() for _ in range(3)] == [1, 0, 0]
        await world.advance(OVERLAP.total_seconds() + 1)
        assert [await usage.run_once() for _ in range(2)] == [0, 0]
        assert (await usage_row(world)).busy_seconds == 10

    async def test_concurrent_counting_counts_once(self, world: World, desk: Desk) -> None:
        for _ in range(3):
            await finish(world, desk, 10)
        assert sum(await asyncio.gather(*(world.engine.autoscaling.usage.run_once() for _ in range(4)))) == 3
        assert (await usage_row(world)).busy_seconds == 30

    @pytest.mark.parametrize("boundary", Boundary)
    async def test_crash_at_the_commit_neither_loses_nor_repeats(
        self, world: World, desk: Desk, boundary: Boundary
    ) -> None:
        await finish(world, desk, 10)
        crashed = world.crash_on(TransactionStep.USAGE, boundary)
        with pytest.raises(Crash):
            await world.engine.autoscaling.usage.run_once()
        assert crashed
        await world.restart()
        await world.engine.autoscaling.usage.run_once()
        assert (await usage_row(world)).busy_seconds == 10

    async def test_late_commit_is_counted_after_later_entries(
        self, postgres_backend: PostgresBackend, tmp_path: Path
    ) -> None:
        """Its entry has a lower id than entries that are counted before it commits."""
        async with open_world(postgres_backend, tmp_path) as world:
            desk = await world.desk()
            other = await world.worker(desk.fleet)
            _, late = await desk.submit_and_lease()
            await desk.submit()
            early = await world.lease(other)
            assert early is not None
            await world.advance(10)
            counted: list[int] = []

            async def between(step: str, boundary: Boundary) -> None:
                if step == TransactionStep.SETTLE and boundary is Boundary.BEFORE_COMMIT and not counted:
                    counted.append(0)
                    await world.engine.queue.settle.report_many(
                        [Report(verb=Verb.COMPLETE, dispatch_id=early.dispatch_id, lease_token=early.lease_token)]
                    )
                    counted[0] = await world.engine.autoscaling.usage.run_once()

            world.on_boundary(between)
            await world.complete(late)
            assert counted == [1]
            assert await world.engine.autoscaling.usage.run_once() == 1
            assert (await usage_row(world)).busy_seconds == 20

    async def test_cursor_advances_past_old_entries(self, world: World, desk: Desk) -> None:
        await finish(world, desk, 10)
        await world.engine.autoscaling.usage.run_once()

        async def position() -> int:
            async with world.engine.databases.central.read() as tx:
                return int(
                    await tx.scalar(
                        tables.autoscaling.cursors.select()
                        .with_only_columns(tables.autoscaling.cursors.c.position)
                        .where(tables.autoscaling.cursors.c.name == "usage")
                    )
                )

        # A single writer leaves no gaps: no entry has to age first.
        has_gaps = world.engine.databases.central.dialect == "postgresql"
        assert (await position() == 0) is has_gaps
        await world.advance(OVERLAP.total_seconds() + 1)
        await world.engine.autoscaling.usage.run_once()
        assert await position() > 0


async def test_counted_usage_is_exported_to_prometheus(world: World, desk: Desk) -> None:
    usage = world.engine.autoscaling.usage
    await usage.run_once()
    await add_machine(world, desk, key="booting", price_per_hour=3.6)
    await add_machine(world, desk, worker_id=desk.worker, price_per_hour=3.6, registered_at=world.clock.now)
    await finish(world, desk, 60)
    await usage.run_once()
    place = (desk.fleet, str(Stage.PRODUCTION))
    assert {kind: usage.gpu_seconds[*place, kind] for kind in UsageKind} == {
        UsageKind.BUSY: 60,
        UsageKind.LOST: 0,
        # The machine had no lease at the end of that minute.
        UsageKind.IDLE: 60,
        UsageKind.BOOT: 60,
    }
    assert usage.cost[place] == pytest.approx(0.18)
