"""Machines that disappear without notice, so that their workers cannot report it either."""

from dataclasses import replace

import pytest

from comfyrelay.autoscaling.providers.base import ProviderMachine, ProviderMachineState
from comfyrelay.domain.autoscaling.observation import MachineState
from comfyrelay.errors import LeaseLost
from tests.support.memory_provider import open_fleets
from tests.support.world import World


@pytest.mark.both_databases
async def test_lost_machine_returns_its_leases_and_is_replaced_at_once(world: World) -> None:
    fleets = await open_fleets(world, autoscaling={"max_machines": 1})
    await fleets.submit()
    await fleets.decide()
    [worker] = await fleets.boot()
    await fleets.look()
    leased = await world.lease(worker)
    assert leased is not None

    fleets.provider.there.clear()
    await fleets.look()
    await world.advance(61)
    await fleets.look()
    assert (await world.audit(worker))[-2:] == ["reap", "deregister"]
    with pytest.raises(LeaseLost):
        await world.complete(leased)
    assert (await fleets.seen()).machines == []
    await fleets.decide()

    assert len(fleets.provider.launches) == 2
    assert len(await fleets.present()) == 1


async def test_machine_of_a_dead_worker_is_terminated_and_replaced(world: World) -> None:
    fleets = await open_fleets(world, autoscaling={"max_machines": 1})
    await fleets.submit()
    await fleets.decide()
    [name] = [machine.id for machine in fleets.provider.there.values()]
    await world.engine.workers.workers.register(worker_id=name, fleet_slug=fleets.fleet, protocol=2)
    await fleets.look()
    assert await world.lease(name) is not None

    for _ in range(13):
        await world.engine.queue.reaper.run_once()
        await world.advance(10)
    # The provider still lists the machine, but its worker is dead.
    await fleets.look()
    assert fleets.provider.ends == [[name]]
    await fleets.look()
    await fleets.decide()
    assert len(fleets.provider.launches) == 2


async def test_temporarily_unlisted_machines_are_not_replaced(world: World) -> None:
    fleets = await open_fleets(world, autoscaling={"min_machines": 2, "max_machines": 4})
    await fleets.decide()
    workers = await fleets.boot()
    await fleets.look()

    there = dict(fleets.provider.there)
    fleets.provider.there.clear()
    for _ in range(3):
        await fleets.round()
    fleets.provider.there.update(there)
    await fleets.pass_time(100)
    await fleets.round()

    assert len(fleets.provider.launches) == 1
    assert [machine.state for machine in (await fleets.seen()).machines] == [MachineState.READY] * len(workers)


async def test_reappearing_machine_is_not_a_failed_boot(world: World) -> None:
    fleets = await open_fleets(world)
    await fleets.submit()
    await fleets.decide()
    there = dict(fleets.provider.there)
    fleets.provider.there.clear()
    await fleets.pass_time(61)
    await fleets.look()
    await fleets.pass_time(30)
    await fleets.look()
    assert (await fleets.seen()).failed_boots == 1

    fleets.provider.there.update(there)
    await fleets.look()
    assert [machine.reason for machine in await fleets.present()] == [None]
    assert (await fleets.seen()).failed_boots == 0


async def test_second_machine_of_an_order_is_stopped(world: World) -> None:
    fleets = await open_fleets(world)
    await fleets.submit()
    await fleets.decide()
    [first] = fleets.provider.there.values()
    second = replace(first, id=f"{first.id}-again")
    fleets.provider.there = {second.id: second, first.id: first}
    await fleets.look()
    await fleets.pass_time(61)
    await fleets.look()
    assert fleets.provider.ends == [[second.id]]
    await fleets.look()
    assert [machine.provider_id for machine in await fleets.present()] == [first.id]


async def test_key_of_another_fleet_does_not_restore_its_machine(world: World) -> None:
    fleets, other = await open_fleets(world), await open_fleets(world)
    await fleets.submit()
    await fleets.decide()
    [worker] = await fleets.boot()
    await fleets.look()
    [machine] = await fleets.present()
    fleets.provider.there.clear()
    await world.engine.workers.workers.deregister(worker)
    await fleets.look()

    id_ = f"{other.fleet}.x"
    other.provider.there[id_] = ProviderMachine(id=id_, key=machine.key, state=ProviderMachineState.RUNNING)
    await other.look()
    assert await fleets.present() == []
    assert [(machine.key, machine.provider_id) for machine in await other.present()] == [(id_, id_)]


async def test_lost_machine_does_not_drain_a_worker_of_another_fleet(world: World) -> None:
    fleets, other = await open_fleets(world), await open_fleets(world)
    await world.worker(other.fleet, name="gpu-1")
    id_ = f"{fleets.fleet}.g"
    fleets.provider.there[id_] = ProviderMachine(id=id_, worker_id="gpu-1", state=ProviderMachineState.RUNNING)
    await fleets.look()
    fleets.provider.there.clear()
    await fleets.pass_time(61)
    await fleets.look()
    await fleets.pass_time(30)
    await fleets.look()
    assert await fleets.present() == []
    assert await world.audit("gpu-1") == ["register"]
