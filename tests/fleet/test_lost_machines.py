"""Machines that are gone without a word: their workers cannot say that they are, too."""

from tests.fleet.yard import open_fleets
from tests.harness import World


async def test_the_worker_of_a_machine_that_is_gone_is_not_taken_for_one_that_is_free(world: World) -> None:
    fleets = await open_fleets(world, scaling={"max_machines": 1})
    await fleets.submit()
    await fleets.decide()
    [worker] = await fleets.boot()
    await fleets.look()
    assert await world.lease(worker) is not None

    fleets.yard.there.clear()
    await fleets.round()
    assert (await world.audit(worker))[-1] == "drain"
    # long before anybody misses the worker, its job waits again
    await world.expire()
    await fleets.decide()

    assert len(fleets.yard.launches) == 2
    assert len(await fleets.present()) == 1
