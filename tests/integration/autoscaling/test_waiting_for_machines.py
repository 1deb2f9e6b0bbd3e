"""Wait reasons about machines: one is starting, or a limit prevents a start."""

import pytest

from comfyrelay.autoscaling.providers.base import LaunchRefused, RefusalKind
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from tests.support.memory_provider import Fleets, open_fleets
from tests.support.world import World


@pytest.fixture
async def fleets(world: World) -> Fleets:
    return await open_fleets(world)


async def wait_reason(fleets: Fleets) -> Waiting:
    user = await fleets.world.user()
    job = await fleets.world.submit(user, fleets.effect)
    await fleets.decide()
    return await fleets.world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)


async def test_wait_reason_of_a_booting_machine_shows_the_remaining_time(world: World) -> None:
    fleets = await open_fleets(world, autoscaling={"max_machines": 1})
    waiting = await wait_reason(fleets)
    assert (waiting.reason, waiting.text) == (
        Reason.MACHINE_STARTING,
        "A machine is starting and should be ready in about 2 minutes.",
    )
    await fleets.pass_time(40)
    waiting = await wait_reason(fleets)
    assert waiting.text == "A machine is starting and should be ready in about 60 seconds."


async def test_machine_with_a_registered_worker_is_not_a_wait_reason(fleets: Fleets) -> None:
    await wait_reason(fleets)
    await fleets.boot()
    await fleets.look()
    assert (await wait_reason(fleets)).reason in {Reason.STARTING, Reason.BUSY}


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_machines": 0}, "the limit is 0 machines"),
        ({"cost_per_hour": 0.1}, "the cost limit is 0.1 per hour"),
        ({"is_paused": True}, "the fleet is paused"),
    ],
)
async def test_limit_that_prevents_a_launch_is_named(world: World, limit: dict[str, float], words: str) -> None:
    fleets = await open_fleets(world, instance_types=[{"name": "g5", "price_per_hour": 0.5}], autoscaling=limit)
    waiting = await wait_reason(fleets)
    assert waiting.reason is Reason.NO_WORKER
    assert waiting.text == f"No online worker has this workflow. No machine can be launched: {words}."


async def test_provider_message_is_shown_only_to_operators(fleets: Fleets) -> None:
    fleets.provider.refuses = [LaunchRefused(kind=RefusalKind.SETUP, text="There is no program x in /srv/programs.")]
    await wait_reason(fleets)
    waiting = await wait_reason(fleets)
    assert (
        waiting.text
        == "No online worker has this workflow. No machine can be launched: its provider currently refuses launches."
    )


async def test_wait_reason_of_an_unscaled_fleet_names_no_machine(fleets: Fleets) -> None:
    await fleets.change(machines=None, autoscaling=None)
    assert (await wait_reason(fleets)).text == "No online worker has this workflow."
