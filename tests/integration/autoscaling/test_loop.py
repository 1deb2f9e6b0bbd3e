"""The autoscaling loop: what it launches, stops and records, and how it handles failures."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from comfyrelay.autoscaling.loop import ScalingLoop, scaling
from comfyrelay.autoscaling.providers.base import (
    LaunchRefused,
    LaunchResult,
    MachineOrder,
    ProviderFleet,
    ProviderMachine,
    ProviderMachineState,
    RefusalKind,
)
from comfyrelay.domain.autoscaling.decision_records import reason_class
from comfyrelay.domain.autoscaling.machines import MachineEndReason
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.domain.autoscaling.spec import InstanceType
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import Conflict, ProviderError
from comfyrelay.services.autoscaling.leadership import Leadership
from comfyrelay.store.central.autoscaling import decisions, leaders
from tests.support.full import full_only
from tests.support.memory_provider import Fleets, MemoryProvider, lead, open_fleets
from tests.support.world import PATIENCE_SECONDS, Crash, World


@pytest.fixture
async def fleets(world: World) -> Fleets:
    return await open_fleets(world)


class TestLaunching:
    async def test_job_without_a_machine_launches_one(self, fleets: Fleets) -> None:
        await fleets.submit()
        await fleets.decide()
        [order] = fleets.provider.launches
        [machine] = await fleets.present()
        assert order == [machine.key]
        assert machine.provider_id == f"{fleets.fleet}.{machine.key}"
        assert fleets.provider.totals == [1]
        # A booting machine is not ordered again.
        for _ in range(3):
            await fleets.pass_time(20)
            await fleets.round()
        assert len(fleets.provider.launches) == 1

    async def test_launch_is_recorded_before_it_is_ordered(self, fleets: Fleets) -> None:
        recorded: list[set[str]] = []

        async def before(_orders: Sequence[MachineOrder]) -> None:
            recorded.append({machine.key for machine in await fleets.present()})

        fleets.provider.before = before
        await fleets.submit()
        await fleets.decide()
        assert recorded == [set(fleets.provider.launches[0])]

    async def test_machine_is_registered_with_its_worker_and_boot_time_is_learned(self, fleets: Fleets) -> None:
        await fleets.submit()
        await fleets.decide()
        assert (await fleets.seen()).boot_seconds == 100.0
        await fleets.pass_time(42)
        await fleets.boot()
        await fleets.look()
        [machine] = await fleets.present()
        assert machine.registered_at is not None
        assert (machine.registered_at - machine.ordered_at).total_seconds() == 42
        seen = await fleets.seen()
        assert seen.boot_seconds == 42
        assert [machine.state for machine in seen.machines] == [MachineState.READY]

    async def test_next_type_is_launched_after_a_refusal(self, world: World) -> None:
        types = [{"name": "cheap", "price_per_hour": 0.5}, {"name": "dear", "price_per_hour": 1.5}]
        fleets = await open_fleets(world, instance_types=types)
        fleets.provider.refuses = [
            LaunchRefused(kind=RefusalKind.CAPACITY, text="No cheap ones.", instance_type="cheap")
        ]
        await fleets.submit()
        await fleets.decide()
        assert await fleets.present() == []
        [refused] = await fleets.decisions()
        assert refused.outcome == {"launched": 0, "refused": 1, "refusals": ["No cheap ones."]}
        await fleets.decide()
        [machine] = await fleets.present()
        assert (machine.instance_type, machine.price_per_hour) == ("dear", 1.5)
        # A refusal is not a failed boot, and it expires.
        seen = await fleets.seen()
        assert seen.failed_boots == 0
        assert [instance_type_.name for instance_type_ in seen.instance_types] == ["dear"]
        await fleets.pass_time(61)
        assert [instance_type_.name for instance_type_ in (await fleets.seen()).instance_types] == ["cheap", "dear"]

    async def test_type_chosen_by_the_provider_has_its_own_price(self, world: World) -> None:
        types = [{"name": "cheap", "price_per_hour": 0.5}, {"name": "dear", "price_per_hour": 1.5}]
        fleets = await open_fleets(world, instance_types=types)

        async def choose(orders: Sequence[MachineOrder]) -> None:
            for order in orders:
                id_ = f"{fleets.fleet}.{order.key}"
                chosen = ProviderMachine(
                    id=id_, state=ProviderMachineState.RUNNING, key=order.key, instance_type="dear"
                )
                fleets.provider.there[id_] = chosen

        fleets.provider.before = choose
        await fleets.submit()
        await fleets.decide()
        await choose([MachineOrder(key="adopted")])
        await fleets.look()
        found = [(machine.instance_type, machine.price_per_hour) for machine in await fleets.present()]
        assert found == [("dear", 1.5)] * 2

    async def test_refused_launch_is_retried_after_a_minute(self, fleets: Fleets) -> None:
        fleets.provider.refuses = [LaunchRefused(kind=RefusalKind.SETUP, text="There is no group.")]
        await fleets.submit()
        await fleets.decide()
        await fleets.decide()
        assert len(fleets.provider.launches) == 1
        [last, *_] = await fleets.decisions()
        assert last.reason.endswith("; launching 0 of 1: There is no group (next attempt in 60 s)")
        await fleets.pass_time(61)
        await fleets.decide()
        assert len(fleets.provider.launches) == 2

    async def test_external_workers_count_as_capacity_and_are_never_stopped(self, fleets: Fleets) -> None:
        await fleets.world.worker(fleets.fleet, name="by-hand")
        await fleets.submit()
        await fleets.decide()
        assert fleets.provider.launches == []
        await fleets.change(autoscaling={"max_machines": 0})
        await fleets.decide()
        assert fleets.provider.ends == []
        assert [machine.id for machine in (await fleets.seen()).machines] == ["worker:by-hand"]

    async def test_cloud_only_worker_is_not_capacity_for_local_jobs(self, fleets: Fleets) -> None:
        for providers in (["cloud"], ["cloud", "self_hosted"]):
            await fleets.world.engine.workers.workers.register(
                worker_id="-".join(providers), fleet_slug=fleets.fleet, capabilities={"providers": providers}
            )
        assert [machine.id for machine in (await fleets.seen()).machines] == ["worker:cloud-self_hosted"]
        await fleets.world.engine.workers.workers.deregister("cloud-self_hosted")
        await fleets.submit()
        await fleets.decide()
        assert len(fleets.provider.launches) == 1


class TestEnding:
    async def finish_job(self, fleets: Fleets) -> str:
        """Launch a machine whose worker has just finished; return the worker."""
        await fleets.submit()
        await fleets.decide()
        [worker] = await fleets.boot()
        await fleets.look()
        leased = await fleets.world.lease(worker)
        assert leased is not None
        await fleets.world.complete(leased)
        return worker

    async def test_last_machine_stays_as_long_as_a_restart_costs_and_is_drained_first(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        await fleets.pass_time(200)
        await fleets.round()
        assert fleets.provider.ends == []
        await fleets.pass_time(300)
        await fleets.round()
        assert fleets.provider.ends == [[worker]]
        assert (await fleets.world.audit(worker))[-1] == "drain"
        await fleets.look()
        assert await fleets.present() == []
        [machine] = await fleets.orders()
        assert machine.end_reason == MachineEndReason.UNNEEDED

    async def test_reference_policy_acts_one_minute_after_publication(self, world: World) -> None:
        fleets = await open_fleets(world, autoscaling={"policy": "reference"})
        await fleets.decide()
        await fleets.submit(5)
        await fleets.decide()
        await fleets.pass_time(60)
        await fleets.decide()
        assert fleets.provider.launches == []
        await fleets.pass_time(60)
        await fleets.decide()
        assert len(await fleets.present()) == 1
        # It acts once per published metric.
        await fleets.world.advance(1)
        await fleets.decide()
        assert len(await fleets.present()) == 1
        await fleets.pass_time(60)
        await fleets.decide()
        assert len(await fleets.present()) == 3

    async def test_reference_policy_stops_machines_after_fifteen_minutes_of_low_backlog(self, world: World) -> None:
        fleets = await open_fleets(world, autoscaling={"policy": "reference"})
        await fleets.submit(5)
        for _ in range(4):
            await fleets.decide()
            await fleets.pass_time(60)
        workers = await fleets.boot()
        await fleets.look()
        assert len(workers) > 1
        while any([await self.run_one(fleets, worker) for worker in workers]):
            pass
        await fleets.submit()
        assert await fleets.world.lease(workers[0]) is not None
        # The backlog is low from the next minute on, and observed a minute later.
        for _ in range(16):
            await fleets.pass_time(60)
            await fleets.round()
        assert fleets.provider.ends == []
        await fleets.pass_time(60)
        await fleets.round()
        assert [sorted(end) for end in fleets.provider.ends] == [sorted(workers[1:])]

    async def run_one(self, fleets: Fleets, worker: str) -> bool:
        leased = await fleets.world.lease(worker)
        if leased is not None:
            await fleets.world.complete(leased)
        return leased is not None

    async def test_machine_with_a_new_lease_is_not_stopped(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        await fleets.pass_time(1000)
        seen = await fleets.world.engine.autoscaling.snapshots.take(Stage.PRODUCTION)
        await fleets.submit()
        assert await fleets.world.lease(worker) is not None
        [machine] = await fleets.present()

        async def take_old_snapshot(*_: object, **_more: object) -> object:
            return seen

        fleets.loop._scaling.snapshots.take = take_old_snapshot  # type: ignore[method-assign,assignment]
        await fleets.decide()
        assert fleets.provider.ends == []
        [last, *_] = await fleets.decisions()
        assert last.end == [machine.key]
        assert last.outcome == {"busy": [machine.key]}
        assert (await fleets.present())[0].ending_at is None

    async def test_failed_stop_is_retried(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        await fleets.pass_time(1000)
        fleets.provider.fails = ProviderError("throttled")
        await fleets.decide()
        assert fleets.provider.ends == [[worker]]
        await fleets.look()
        assert fleets.provider.ends == [[worker]]
        fleets.provider.fails = None
        await fleets.pass_time(15)
        await fleets.look()
        assert fleets.provider.ends == [[worker]] * 2
        await fleets.look()
        assert await fleets.present() == []

    @pytest.mark.parametrize("how", ["late", "again"])
    async def test_worker_of_a_stopping_machine_gets_no_job(self, fleets: Fleets, how: str) -> None:
        if how == "again":
            worker = await self.finish_job(fleets)
        else:
            await fleets.submit()
            await fleets.decide()
            [worker] = fleets.provider.there
        fleets.provider.fails = ProviderError("throttled")
        await fleets.change(autoscaling={"max_machines": 0})
        await fleets.decide()
        if how == "again":
            await fleets.world.engine.workers.workers.deregister(worker)
        await fleets.submit()
        assert await fleets.boot() == [worker]
        assert (await fleets.world.audit(worker))[-1] == "drain"
        assert await fleets.world.lease(worker) is None

    async def test_stop_is_not_repeated_while_the_worker_has_a_job(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        await fleets.pass_time(1000)
        fleets.provider.fails = ProviderError("throttled")
        await fleets.decide()
        fleets.provider.fails = None
        # The machine is needed again.
        await fleets.world.engine.workers.workers.set_draining(worker, is_draining=False)
        await fleets.submit()
        leased = await fleets.world.lease(worker)
        assert leased is not None
        await fleets.pass_time(15)
        await fleets.look()
        assert len(fleets.provider.ends) == 1
        assert (await fleets.world.audit(worker))[-1] == "drain"
        await fleets.world.complete(leased)
        await fleets.look()
        assert fleets.provider.ends == [[worker]] * 2

    async def test_lost_machine_is_replaced_for_its_job(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        del fleets.provider.there[worker]
        await fleets.world.engine.workers.workers.deregister(worker)
        await fleets.look()
        assert await fleets.present() == []
        assert (await fleets.orders())[0].end_reason == MachineEndReason.GONE
        await fleets.submit()
        await fleets.decide()
        assert len(fleets.provider.launches) == 2

    async def test_machine_of_a_deregistered_worker_is_stopped(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        await fleets.world.engine.workers.workers.deregister(worker)
        await fleets.look()
        assert [machine.state for machine in (await fleets.seen()).machines] == [MachineState.DRAINING]
        assert fleets.provider.ends == []
        await fleets.pass_time(121)
        await fleets.look()
        assert fleets.provider.ends == [[worker]]

    @pytest.mark.parametrize("how", ["drained", *full_only("revoked")])
    async def test_machine_of_a_drained_or_revoked_worker_is_stopped(self, fleets: Fleets, how: str) -> None:
        worker = await self.finish_job(fleets)
        workers = fleets.world.engine.workers.workers
        if how == "drained":
            await workers.set_draining(worker, is_draining=True)
        else:
            await workers.set_approved(worker, is_approved=False)
        await fleets.round()
        assert fleets.provider.ends == []
        await fleets.pass_time(61)
        await fleets.round()
        assert fleets.provider.ends == [[worker]]
        assert (await fleets.orders())[0].end_reason == MachineEndReason.CLOSED

    async def test_machine_of_a_silent_worker_is_stopped(self, fleets: Fleets) -> None:
        worker = await self.finish_job(fleets)
        await fleets.world.advance(301)
        await fleets.look()
        assert fleets.provider.ends == [[worker]]

    async def test_unknown_machines_are_adopted(self, fleets: Fleets) -> None:
        id_ = f"{fleets.fleet}.another"
        fleets.provider.there[id_] = ProviderMachine(id=id_, state=ProviderMachineState.RUNNING, instance_type="g5")
        await fleets.look()
        [machine] = await fleets.present()
        assert (machine.provider_id, machine.instance_type) == (id_, "g5")
        await fleets.submit()
        await fleets.decide()
        assert fleets.provider.launches == []


class TestFailures:
    async def test_failed_boots_are_stopped_and_finally_not_retried(self, fleets: Fleets) -> None:
        await fleets.submit()
        for _ in range(3):
            await fleets.round()
            await fleets.pass_time(3 * 100 + 121)
        await fleets.round()
        assert len(fleets.provider.launches) == 3
        assert len(fleets.provider.ends) == 3
        assert {order.end_reason for order in await fleets.orders()} == {MachineEndReason.BOOT_FAILED}
        assert (await fleets.seen()).failed_boots == 3
        [last, *_] = await fleets.decisions()
        assert "none of the machines from the last 3 launch rounds became a worker" in last.reason
        # A registered worker resets the count.
        await fleets.pass_time(301)
        await fleets.decide()
        assert len(fleets.provider.launches) == 4
        await fleets.boot()
        await fleets.look()
        assert (await fleets.seen()).failed_boots == 0

    async def test_machines_that_fail_together_are_one_failed_round(self, world: World) -> None:
        fleets = await open_fleets(world, autoscaling={"min_machines": 5})
        await fleets.round()
        assert [len(keys) for keys in fleets.provider.launches] == [5]
        await fleets.pass_time(3 * 100 + 121)
        await fleets.round()
        assert (await fleets.seen()).failed_boots == 1
        await fleets.round()
        assert [len(keys) for keys in fleets.provider.launches] == [5, 5]

    async def test_reset_lets_a_fleet_launch_again_at_once(self, world: World) -> None:
        fleets = await open_fleets(world, autoscaling={"failed_boots": 1, "min_machines": 2})
        await fleets.round()
        await fleets.pass_time(3 * 100 + 121)
        for _ in range(2):
            await fleets.round()
        assert len(fleets.provider.launches) == 1
        view = await world.engine.autoscaling.views.get(Stage.PRODUCTION, fleets.fleet)
        assert view.launch_pause_seconds == 300

        await world.engine.autoscaling.views.reset_launches(Stage.PRODUCTION, fleets.fleet)
        view = await world.engine.autoscaling.views.get(Stage.PRODUCTION, fleets.fleet)
        assert (view.seen.failed_boots, view.launch_pause_seconds) == (0, None)
        await fleets.decide()
        assert [len(keys) for keys in fleets.provider.launches] == [2, 2]

    async def test_failing_provider_is_recorded_and_does_not_affect_other_fleets(self, world: World) -> None:
        fleets = await open_fleets(world)
        other = await open_fleets(world)
        broken, sound = MemoryProvider(fails=ProviderError("The region is away.")), other.provider
        providers = {fleets.fleet: broken, other.fleet: sound}

        class Both(ScalingLoop):
            def _provider(self, fleet: object) -> MemoryProvider:
                return providers[fleet.slug]  # type: ignore[attr-defined]

        loop = Both(world.engine, sound)
        await fleets.submit()
        await other.submit()
        await loop.observe_once()
        await loop.decide_once()
        await loop.idle()
        # The decision uses the last observation.
        assert len(sound.launches) == len(broken.launches) == 1
        [last, *_] = await fleets.decisions()
        assert last.reason.endswith("; the provider failed: The region is away.")
        assert "failed" not in (await other.decisions())[0].reason

    async def test_provider_without_prices_is_still_observed(
        self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        async def prices(fleet: ProviderFleet) -> Sequence[InstanceType]:
            calls.append(fleet.slug)
            raise ProviderError("Prices are away.")

        monkeypatch.setattr(fleets.provider, "prices", prices)
        await fleets.submit()
        await fleets.decide()
        await fleets.boot()
        await fleets.look()
        await fleets.look()
        assert [machine.registered_at is not None for machine in await fleets.present()] == [True]
        # Prices are not requested in every round.
        assert calls == [fleets.fleet]

    async def test_answer_with_too_many_machines_is_rejected(self, fleets: Fleets) -> None:
        ids = [f"{fleets.fleet}.{number}" for number in range(1001)]
        fleets.provider.there = {id_: ProviderMachine(id=id_, state=ProviderMachineState.RUNNING) for id_ in ids}
        await fleets.round()
        assert await fleets.present() == []
        assert "reports 1001 machines" in (await fleets.decisions())[0].reason
        del fleets.provider.there[ids[0]]
        await fleets.look()
        assert len(await fleets.present()) == 1000

    async def test_machine_with_a_future_launch_time_is_stopped_after_the_boot_timeout(self, world: World) -> None:
        fleets = await open_fleets(world, autoscaling={"launches_per_minute": 1})
        id_ = f"{fleets.fleet}.x"
        ahead = datetime(2126, 1, 1, tzinfo=UTC)
        fleets.provider.there[id_] = ProviderMachine(id=id_, state=ProviderMachineState.RUNNING, launched_at=ahead)
        await fleets.look()
        await fleets.pass_time(3 * 100 + 121)
        await fleets.look()
        assert fleets.provider.ends == [[id_]]
        await fleets.submit()
        await fleets.decide()
        assert len(fleets.provider.launches) == 1

    async def test_last_observation_is_used_while_the_provider_is_unreachable(self, fleets: Fleets) -> None:
        await fleets.submit()
        await fleets.decide()
        fleets.provider.fails = ProviderError("away")
        fleets.provider.there.clear()
        await fleets.pass_time(120)
        await fleets.round()
        assert len(await fleets.present()) == 1
        assert len(fleets.provider.launches) == 1

    async def test_machines_that_are_launched_later_count_as_ordered(
        self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def accept(*_arguments: Any, **_options: Any) -> LaunchResult:
            return LaunchResult()

        monkeypatch.setattr(fleets.provider, "launch", accept)
        await fleets.submit()
        await fleets.decide()
        [decision] = await fleets.decisions()
        assert decision.outcome == {"launched": 0, "refused": 0, "ordered": len(decision.launch)}

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_new_leader_orders_the_same_machine_after_a_crash(self, fleets: Fleets, when: str) -> None:
        async def die(_orders: Sequence[MachineOrder]) -> None:
            raise Crash(when)

        setattr(fleets.provider, when, die)
        await fleets.submit()
        await fleets.loop.decide_once()
        with pytest.raises(Crash):
            await asyncio.gather(*fleets.loop._tasks)
        [ordered] = await fleets.present()
        assert ordered.provider_id is None
        await fleets.world.engine.autoscaling.leadership.resign()
        await fleets.world.restart()
        await lead(fleets.world)
        fleets.provider.before = fleets.provider.after = MemoryProvider().before
        fleets.loop = ScalingLoop(fleets.world.engine, fleets.provider)
        for _ in range(3):
            await fleets.pass_time(10)
            await fleets.round()
        assert {key for launch in fleets.provider.launches for key in launch} == {ordered.key}
        assert len(fleets.provider.there) == 1
        assert [machine.provider_id for machine in await fleets.present()] == list(fleets.provider.there)

    async def test_former_leader_writes_and_launches_nothing(self, fleets: Fleets) -> None:
        await fleets.submit()
        old = fleets.world.engine.autoscaling.leadership
        assert old.leader is not None
        before = old.leader.term
        await old.resign()
        assert (await old.claim()).term == before + 1  # type: ignore[union-attr]
        # This process still believes in its old term.
        assert old.leader is not None
        old._leader = replace(old.leader, term=before)
        await fleets.loop._run_logged("decide", fleets.loop.decide_once)
        assert fleets.provider.launches == []
        assert await fleets.present() == []
        assert await fleets.decisions() == []


class TestMoney:
    async def test_price_reported_after_the_launch_counts(self, world: World) -> None:
        limits = {"cost_per_hour": 10.0, "max_machines": 20, "launches_per_minute": 100}
        fleets = await open_fleets(world, autoscaling=limits)
        await fleets.submit()
        await fleets.decide()
        await fleets.boot()
        fleets.provider.there = {
            id_: replace(machine, price_per_hour=5.0) for id_, machine in fleets.provider.there.items()
        }
        await fleets.look()
        for _ in range(8):
            await fleets.submit(5)
        await fleets.decide()
        assert len(fleets.provider.there) == 2
        assert "launching 1 of " in (await fleets.decisions())[0].reason

    async def test_changed_instance_types_apply_at_once(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        old, new = ({"name": name, "price_per_hour": 1.0} for name in ("old", "new"))
        fleets = await open_fleets(world, instance_types=[old])
        await fleets.round()
        await fleets.change(machines={"instance_types": [new]})
        await fleets.submit()
        await fleets.decide()
        assert [machine.instance_type for machine in await fleets.present()] == ["new"]

        async def prices(_fleet: ProviderFleet) -> Sequence[InstanceType]:
            raise ProviderError("Prices are away.")

        monkeypatch.setattr(fleets.provider, "prices", prices)
        await fleets.look()
        assert fleets.loop._types(await fleets.record()) == (InstanceType(name="new", price_per_hour=1.0),)


class TestDecisions:
    async def test_decision_is_recorded_on_an_action_or_a_new_reason(self, fleets: Fleets) -> None:
        await fleets.decide()
        await fleets.decide()
        [first] = await fleets.decisions()
        assert (first.launch, first.end, first.desired) == ([], [], 0)
        await fleets.submit(2)
        await fleets.decide()
        [second, _] = await fleets.decisions()
        assert sum(launch["count"] for launch in second.launch) == second.desired > 0
        assert second.outcome["refused"] == 0
        assert second.seen["work"][0]["jobs"] == 2
        assert second.reason.startswith("2 jobs, 120 s of work, no machine: ")
        recorded = len(await fleets.decisions())
        for _ in range(3):
            await fleets.pass_time(1)
            await fleets.decide()
        assert len(await fleets.decisions()) <= recorded + 1

    async def test_decision_keeps_its_observation(self, world: World) -> None:
        types = [{"name": "cheap", "price_per_hour": 0.5}, {"name": "dear", "price_per_hour": 1.5}]
        all_day = {"days": list(range(7)), "begins": "00:00", "ends": "00:00", "at_least": 1}
        limits = {"max_machines": 5, "cost_per_hour": 4.0, "schedules": [all_day]}
        fleets = await open_fleets(world, instance_types=types, autoscaling=limits)
        fleets.provider.refuses = [
            LaunchRefused(kind=RefusalKind.CAPACITY, text="No cheap ones.", instance_type="cheap")
        ]
        await fleets.submit()
        await fleets.decide()
        await fleets.decide()
        await fleets.pass_time(30)
        await fleets.submit(4)
        await fleets.decide()
        seen = (await fleets.decisions())[0].seen
        assert seen["prices"] == {"cheap": 0.5, "dear": 1.5}
        assert seen["refused_types"] == ["cheap"]
        assert seen["launches_last_minute"] == 1
        assert seen["limits"]["max_machines"] == 5
        assert seen["limits"]["cost_per_hour"] == 4.0
        assert seen["scheduled_machines"] == 1
        [machine] = seen["machines"]
        times = {name: machine[name] for name in ("boot_seconds_left", "busy_seconds_left", "idle_seconds")}
        assert times == {"boot_seconds_left": 70.0, "busy_seconds_left": 0.0, "idle_seconds": 0.0}
        assert (machine["instance_type"], machine["price_per_hour"]) == ("dear", 1.5)

    async def test_decision_keeps_fifty_machines_and_the_total(self, world: World) -> None:
        fleets = await open_fleets(world, autoscaling={"max_machines": 100})
        ids = [f"{fleets.fleet}.{number}" for number in range(60)]
        fleets.provider.there = {id_: ProviderMachine(id=id_, state=ProviderMachineState.RUNNING) for id_ in ids}
        await fleets.round()
        seen = (await fleets.decisions())[0].seen
        assert (len(seen["machines"]), seen["machines_left_out"]) == (50, 10)
        assert seen["machines_by_state"] == {"booting": 60}

    async def test_only_the_newest_decisions_are_kept(self, fleets: Fleets) -> None:
        fleet = await fleets.record()
        for number in range(5):
            row: dict[str, Any] = {"policy": "fast", "reason": "x", "launch": [], "end": [], "outcome": {}, "seen": {}}
            record = partial(decisions.record, fleet_id=fleet.id, desired=number, **row)
            await fleets.world.engine.databases.central.run("test", record)
        removed = await fleets.world.engine.databases.central.run(
            "test", lambda tx: decisions.forget_old(tx, fleet.id, keep=2)
        )
        assert removed == 3
        assert [decision.desired for decision in await fleets.decisions()] == [4, 3]

    @pytest.mark.parametrize("setting", ["is_paused", "is_dry_run"])
    async def test_paused_or_dry_run_fleet_is_not_scaled(self, fleets: Fleets, setting: str) -> None:
        await fleets.change(autoscaling={setting: True})
        id_ = f"{fleets.fleet}.another"
        fleets.provider.there[id_] = ProviderMachine(id=id_, state=ProviderMachineState.RUNNING)
        await fleets.submit()
        for _ in range(3):
            await fleets.round()
            await fleets.pass_time(3 * 100 + 121)
        assert fleets.provider.launches == fleets.provider.ends == []
        assert await fleets.present() == []
        [recorded] = await fleets.decisions()
        assert ("paused" if setting == "is_paused" else "dry run") in recorded.reason
        await fleets.change(autoscaling={setting: False})
        await fleets.decide()
        assert len(fleets.provider.launches) == 1

    @pytest.mark.parametrize("setting", ["is_paused", *full_only("is_dry_run")])
    async def test_unanswered_order_is_not_repeated_during_a_pause_or_dry_run(
        self, fleets: Fleets, setting: str
    ) -> None:
        async def fail(_orders: Sequence[MachineOrder]) -> None:
            raise ProviderError("away")

        fleets.provider.before = fail
        await fleets.submit()
        await fleets.decide()
        assert len(fleets.provider.launches) == 1
        await fleets.change(autoscaling={setting: True})
        await fleets.pass_time(15)
        await fleets.round()
        assert len(fleets.provider.launches) == 1
        await fleets.change(autoscaling={setting: False})
        await fleets.look()
        assert fleets.provider.launches[0] == fleets.provider.launches[1]

    @pytest.mark.parametrize("setting", ["is_paused", *full_only("is_dry_run")])
    async def test_unanswered_order_before_a_pause_is_not_a_failed_boot(self, fleets: Fleets, setting: str) -> None:
        async def fail(_orders: Sequence[MachineOrder]) -> None:
            raise ProviderError("away")

        fleets.provider.before = fail
        await fleets.change(autoscaling={"min_machines": 4})
        await fleets.decide()
        assert len(await fleets.present()) == 4
        await fleets.change(autoscaling={setting: True})
        await fleets.pass_time(600)
        fleets.provider.before = MemoryProvider().before
        await fleets.change(autoscaling={setting: False})
        await fleets.round()
        assert (await fleets.seen()).failed_boots == 0
        assert {order.end_reason for order in await fleets.orders() if order.ended_at} == {MachineEndReason.UNANSWERED}
        assert len(fleets.provider.there) == 4

    @pytest.mark.parametrize("setting", ["is_paused", *full_only("is_dry_run")])
    async def test_unneeded_machines_stay_during_a_pause_and_their_end_is_recorded(
        self, fleets: Fleets, setting: str
    ) -> None:
        await fleets.submit(2)
        await fleets.decide()
        [worker] = await fleets.boot()
        await fleets.change(autoscaling={setting: True})
        await fleets.look()
        assert (await fleets.present())[0].registered_at is not None
        await fleets.world.advance(301)
        await fleets.look()
        assert fleets.provider.ends == []
        assert (await fleets.present())[0].ending_at is None
        del fleets.provider.there[worker]
        await fleets.look()
        await fleets.world.advance(61)
        await fleets.look()
        assert await fleets.present() == []

    async def test_pause_during_a_provider_call_applies(self, fleets: Fleets) -> None:
        id_ = f"{fleets.fleet}.another"
        before = await fleets.record()
        await fleets.change(autoscaling={"is_paused": True})
        await fleets.world.engine.autoscaling.machines.reconcile(before, [ProviderMachine(id=id_)])
        assert await fleets.present() == []

    @pytest.mark.parametrize(("setting", "ends"), [("is_paused", 2), ("is_dry_run", 1)])
    async def test_started_stop_finishes_in_a_pause_but_not_in_a_dry_run(
        self, fleets: Fleets, setting: str, ends: int
    ) -> None:
        await fleets.submit()
        await fleets.decide()
        await fleets.pass_time(3 * 100 + 121)
        there = dict(fleets.provider.there)
        await fleets.look()
        assert len(fleets.provider.ends) == 1
        # The machine still exists.
        fleets.provider.there.update(there)
        await fleets.change(autoscaling={setting: True})
        await fleets.pass_time(15)
        await fleets.look()
        assert len(fleets.provider.ends) == ends

    def test_reason_class_ignores_numbers_and_the_observation(self) -> None:
        one = "1 job, 60 s of work, no machine: 1 machine would keep the wait near 180 s; launching 1"
        other = "9 jobs, 540.5 s of work, 1 busy: 4 machine would keep the wait near 99.5 s; launching 3"
        assert reason_class(one) == reason_class(other)
        assert reason_class(one) != reason_class("no jobs wait, no machine: nothing to do")


async def test_loop_launches_a_machine_for_a_new_job(fleets: Fleets) -> None:
    launched = asyncio.Event()

    async def after(_orders: Sequence[MachineOrder]) -> None:
        launched.set()

    fleets.provider.after = after
    async with scaling(fleets.world.engine, fleets.provider), asyncio.timeout(PATIENCE_SECONDS):
        await fleets.submit()
        await launched.wait()
    # The leadership is released at once.
    assert await fleets.world.engine.autoscaling.leadership.current() is None


async def test_fleet_with_machines_keeps_its_provider_and_is_not_deleted(fleets: Fleets) -> None:
    await fleets.submit()
    await fleets.decide()
    changes: list[dict[str, Any]] = [
        {"machines": None, "autoscaling": None},
        {"machines": None},
        {"machines": {"provider": "local"}},
    ]
    for change in changes:
        with pytest.raises(Conflict, match="still has 1 machine"):
            await fleets.change(**change)
    with pytest.raises(Conflict, match="still has 1 machine"):
        await fleets.world.engine.workers.fleets.delete(stage=Stage.PRODUCTION, slug=fleets.fleet)
    await fleets.change(machines={"options": {"boot_seconds": 50}})
    assert (await fleets.record()).is_scaled
    assert len(await fleets.present()) == 1


class TestDelayedLaunch:
    """A process that was suspended between recording an order and calling the provider checks again."""

    async def delay_launches(self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
        resumed, launch = asyncio.Event(), fleets.loop._launch

        async def later(*args: Any, **more: Any) -> Any:
            await resumed.wait()
            return await launch(*args, **more)

        monkeypatch.setattr(fleets.loop, "_launch", later)
        await fleets.submit(5)
        await fleets.loop.decide_once()
        assert await fleets.present()
        return resumed

    async def test_former_leader_launches_nothing(self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch) -> None:
        resumed = await self.delay_launches(fleets, monkeypatch)
        engine = fleets.world.engine
        await engine.databases.central.run(
            "test", lambda tx: leaders.resign(tx, "autoscaling", engine.autoscaling.leadership.holder)
        )
        assert await Leadership(engine.databases, "autoscaling", ttl_seconds=1e6).claim()
        resumed.set()
        await fleets.loop.idle()
        assert fleets.provider.launches == []

    @pytest.mark.parametrize("change", [{"is_paused": True}, {"max_machines": 0}, *full_only({"is_dry_run": True})])
    async def test_order_of_a_stopped_fleet_is_not_launched(
        self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
    ) -> None:
        resumed = await self.delay_launches(fleets, monkeypatch)
        await fleets.change(autoscaling=change)
        resumed.set()
        await fleets.loop.idle()
        assert fleets.provider.launches == []

    async def test_orders_of_a_reduced_fleet_are_launched_up_to_its_limit(
        self, fleets: Fleets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fleets.change(autoscaling={"min_machines": 3})
        resumed = await self.delay_launches(fleets, monkeypatch)
        assert len(await fleets.present()) == 3
        await fleets.change(autoscaling={"min_machines": 0, "max_machines": 1})
        resumed.set()
        await fleets.loop.idle()
        assert ([len(launch) for launch in fleets.provider.launches], fleets.provider.totals) == ([1], [1])
