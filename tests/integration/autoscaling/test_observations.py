"""A decision observes the state of the database, in seconds of work."""

import asyncio
from typing import Any

import pytest

from comfyrelay.domain.autoscaling.learning import MIN_BURSTS, MIN_RATE_SECONDS, SILENT_ARRIVALS
from comfyrelay.domain.autoscaling.observation import MachineState, QueuedWork
from comfyrelay.domain.queue.states import Stage
from comfyrelay.services.autoscaling.fleet_observation import WorkerLimits
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.autoscaling import durations
from comfyrelay.store.central.autoscaling import observations as seen
from tests.support.memory_provider import Fleets, open_fleets
from tests.support.world import PATIENCE_SECONDS, World

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def fleets(world: World) -> Fleets:
    return await open_fleets(world)


async def work(fleets: Fleets) -> QueuedWork:
    found = await fleets.world.engine.autoscaling.snapshots.take(Stage.PRODUCTION)
    return next(queued for queued in found.snapshot.work if queued.workflow == fleets.effect.workflow_id)


async def run_one(fleets: Fleets, worker: str, seconds: float, **more: Any) -> None:
    await fleets.world.submit(fleets.user, more.get("effect") or fleets.effect)
    leased = await fleets.world.lease(worker)
    assert leased is not None
    await fleets.world.advance(seconds)
    await fleets.world.complete(leased)


async def learn(fleets: Fleets) -> int:
    return await fleets.world.engine.autoscaling.durations.learn()


class TestRegistration:
    async def test_worker_limits_are_observed(self, fleets: Fleets) -> None:
        await fleets.change(max_workers=None)
        most = fleets.world.engine.settings.max_fleet_workers
        found = await fleets.seen()
        assert (found.max_workers, found.max_workers_of_all_fleets) == (most, None)
        await fleets.change(max_workers=2)
        fleets.world.engine.autoscaling.snapshots._worker_limits = WorkerLimits(of_all=7)
        other = await fleets.world.fleet(await fleets.world.workflow())
        await fleets.world.worker(other)
        await fleets.world.worker(fleets.fleet)
        found = await fleets.seen()
        assert (found.max_workers, found.max_workers_of_all_fleets, found.workers_elsewhere) == (2, 7, 1)
        assert found.workers_without_machine == 0
        # The machine was not ordered by the loop.
        assert [machine.is_foreign for machine in found.machines] == [True]
        # The place of an offline worker is free.
        await fleets.world.advance(121)
        found = await fleets.seen()
        assert (found.machines, found.workers_without_machine, found.workers_elsewhere) == ([], 0, 0)

    async def test_fleet_without_workflows_accepts_no_worker_unless_it_is_the_default(self, fleets: Fleets) -> None:
        await fleets.world.engine.workers.fleets.create(slug="empty", stage=Stage.PRODUCTION)
        assert (await fleets.seen()).can_register
        assert not (await fleets.seen("empty")).can_register
        limits = WorkerLimits(default_fleet=(Stage.PRODUCTION, "empty"))
        fleets.world.engine.autoscaling.snapshots._worker_limits = limits
        assert (await fleets.seen("empty")).can_register


class TestDurations:
    async def test_expected_duration_of_a_new_workflow_is_one_minute(self, fleets: Fleets) -> None:
        await fleets.submit(2)
        found = await work(fleets)
        assert (found.jobs, found.seconds, found.seconds_per_job) == (2, 120.0, 60.0)

    async def test_durations_are_learned_per_workflow_and_effect(self, fleets: Fleets) -> None:
        workflow = fleets.effect.workflow_id
        async with fleets.world.engine.databases.central.read() as tx:
            slug = (await catalogue.workflow_slugs(tx, [workflow]))[workflow]
        long = await fleets.world.engine.catalogue.effects.create(slug="long", workflow_slug=slug, credits_cost=0)
        worker = await fleets.world.worker(fleets.fleet)
        await run_one(fleets, worker, 10)
        await run_one(fleets, worker, 20)
        await run_one(fleets, worker, 90, effect=long)
        assert await learn(fleets) == 3
        assert await learn(fleets) == 0
        async with fleets.world.engine.databases.central.read() as tx:
            known = await durations.known(tx, [workflow])
        means = {effect: round(duration.mean_seconds, 3) for (_, effect), duration in known.items()}
        assert means == {durations.WHOLE_WORKFLOW: 40.0, fleets.effect.id: 15.0, long.id: 90.0}
        await fleets.submit()
        await fleets.world.submit(fleets.user, long)
        assert (await work(fleets)).seconds == pytest.approx(105.0)

    async def test_last_duration_of_the_effect_is_used_until_one_is_learned(self, fleets: Fleets) -> None:
        await run_one(fleets, await fleets.world.worker(fleets.fleet), 33)
        await fleets.submit()
        assert (await work(fleets)).seconds == 33.0

    async def test_durations_of_fast_machines_are_normalized(self, world: World) -> None:
        fleets = await open_fleets(world, instance_types=[{"name": "fast", "speed": 2.0}])
        await fleets.submit()
        await fleets.decide()
        [worker] = await fleets.boot()
        await fleets.look()
        leased = await world.lease(worker)
        assert leased is not None
        await world.advance(30)
        await world.complete(leased)
        await learn(fleets)
        await fleets.submit()
        assert (await work(fleets)).seconds == 60.0

    async def test_overrunning_jobs_count_as_durations(self, fleets: Fleets) -> None:
        worker = await fleets.world.worker(fleets.fleet)
        await run_one(fleets, worker, 10)
        await learn(fleets)
        await fleets.submit(2)
        assert await fleets.world.lease(worker) is not None
        assert (await work(fleets)).seconds == 10.0
        await fleets.world.advance(50)
        assert (await work(fleets)).seconds == pytest.approx(30.0)

    async def test_running_times_of_fast_machines_are_normalized(self, world: World) -> None:
        fleets = await open_fleets(world, instance_types=[{"name": "fast", "speed": 2.0}])
        await fleets.submit()
        await fleets.decide()
        [worker] = await fleets.boot()
        await fleets.look()
        assert await world.lease(worker) is not None
        await world.advance(100)
        await fleets.submit()
        assert (await work(fleets)).seconds == pytest.approx(200.0)


class TestQueue:
    async def test_jobs_that_cannot_be_leased_now_do_not_count(self, fleets: Fleets) -> None:
        await fleets.submit()
        later = await fleets.world.submit(fleets.user, fleets.effect)
        await fleets.world.engine.queue.control.pause(later.tenant_id, later.id)
        other = await open_fleets(fleets.world)
        await other.submit()
        assert (await work(fleets)).jobs == 1

    async def test_arrivals_are_counted_once_and_decay_in_a_silence(self, fleets: Fleets) -> None:
        await fleets.submit(4)
        first = (await work(fleets)).jobs_per_second
        assert first == pytest.approx((await work(fleets)).jobs_per_second)
        await fleets.pass_time(MIN_RATE_SECONDS)
        assert (await work(fleets)).jobs_per_second == pytest.approx(SILENT_ARRIVALS / MIN_RATE_SECONDS)
        await fleets.submit(4)
        assert first < (await work(fleets)).jobs_per_second < 2 * first

    async def test_concurrent_observations_count_an_arrival_once(
        self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await work(fleets)
        await fleets.submit(4)
        snapshots, arrivals = fleets.world.engine.autoscaling.snapshots, seen.arrivals
        entered, gate, both_have_read = [], asyncio.Event(), asyncio.Semaphore(0)
        read = snapshots._read

        async def signalled_read(*args: Any) -> Any:
            found = await read(*args)
            both_have_read.release()
            return found

        async def gated(*args: Any, **more: Any) -> Any:
            entered.append(1)
            found = await arrivals(*args, **more)
            await gate.wait()
            return found

        monkeypatch.setattr(snapshots, "_read", signalled_read)
        monkeypatch.setattr(seen, "arrivals", gated)
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(snapshots.take(Stage.PRODUCTION))
            for _ in range(2):
                await both_have_read.acquire()
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(entered) == 1
            gate.set()
        together = (await work(fleets)).jobs_per_second
        await fleets.world.restart()
        assert together == pytest.approx((await work(fleets)).jobs_per_second)

    async def test_arrivals_missed_by_one_observation_are_not_counted_twice(
        self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await work(fleets)
        await fleets.submit(4)
        arrivals = seen.arrivals
        first = (await work(fleets)).jobs_per_second

        async def earlier(*args: Any, **more: Any) -> Any:
            return (await arrivals(*args, **more))[:-2]

        with monkeypatch.context() as patched:
            patched.setattr(seen, "arrivals", earlier)
            await work(fleets)
        assert (await work(fleets)).jobs_per_second == pytest.approx(first)

    async def test_learned_following_jobs_survive_a_restart(self, fleets: Fleets) -> None:
        await fleets.submit()
        for _ in range(MIN_BURSTS):
            assert (await fleets.seen()).following_jobs == 0.0
            await fleets.pass_time(3600)
            await fleets.submit(3)
        await fleets.pass_time(200)
        await fleets.submit()
        assert (await fleets.seen()).following_jobs == 2.0
        assert (await fleets.seen()).following_jobs == 2.0
        await fleets.world.restart()
        assert (await fleets.seen()).following_jobs == 2.0

    async def test_arrival_rate_survives_a_restart(self, fleets: Fleets) -> None:
        await fleets.submit(4)
        before = (await work(fleets)).jobs_per_second
        await fleets.world.restart()
        assert (await work(fleets)).jobs_per_second == pytest.approx(before)


class TestMachines:
    async def test_running_machine_is_busy_for_the_expected_duration(self, fleets: Fleets) -> None:
        await fleets.submit()
        await fleets.decide()
        [booting] = (await fleets.seen()).machines
        assert (booting.state, booting.boot_seconds_left) == (MachineState.BOOTING, 100.0)
        await fleets.pass_time(30)
        assert (await fleets.seen()).machines[0].boot_seconds_left == 70.0
        [worker] = await fleets.boot()
        await fleets.look()
        await fleets.world.lease(worker)
        await fleets.pass_time(20)
        [busy] = (await fleets.seen()).machines
        assert (busy.state, busy.leases, busy.busy_seconds_left) == (MachineState.BUSY, 1, 40.0)

    async def test_idle_time_since_the_last_job_survives_a_leader_change(self, fleets: Fleets) -> None:
        await fleets.submit()
        await fleets.decide()
        [worker] = await fleets.boot()
        await fleets.look()
        leased = await fleets.world.lease(worker)
        assert leased is not None
        await fleets.world.advance(10)
        await fleets.world.complete(leased)
        await fleets.pass_time(120)
        await fleets.world.restart()
        seen = await fleets.seen()
        assert (seen.machines[0].state, seen.machines[0].idle_seconds) == (MachineState.READY, 120.0)
        assert seen.idle_seconds == 120.0

    async def test_draining_machine_is_not_capacity(self, fleets: Fleets) -> None:
        await fleets.submit()
        await fleets.decide()
        [worker] = await fleets.boot()
        await fleets.world.engine.workers.workers.set_draining(worker, is_draining=True)
        assert [machine.state for machine in (await fleets.seen()).machines] == [MachineState.DRAINING]
        assert (await fleets.seen()).idle_seconds is None
