"""The recorded history of a fleet, as the simulation uses it."""

from datetime import timedelta

import pytest

from comfyrelay.autoscaling.simulation.traces import from_history
from comfyrelay.domain.queue.states import Stage
from comfyrelay.errors import NotFound
from comfyrelay.services.autoscaling import history
from comfyrelay.store.central.autoscaling.history import PastJobRow
from tests.support.memory_provider import Fleets, open_fleets
from tests.support.world import World

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def fleets(world: World) -> Fleets:
    return await open_fleets(world)


async def past(fleets: Fleets, days: float = 30.0) -> list[PastJobRow]:
    done = fleets.world.engine.autoscaling.history.done(Stage.PRODUCTION, fleets.fleet, days=days)
    return [each async for each in done]


async def test_completed_jobs_of_a_fleet_come_newest_first_and_page_by_page(
    fleets: Fleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BATCH_SIZE", 2)
    worker = await fleets.world.worker(fleets.fleet)
    for seconds in (10.0, 20.0, 30.0, 40.0):
        await fleets.submit()
        leased = await fleets.world.lease(worker)
        assert leased is not None
        await fleets.world.advance(seconds)
        await fleets.world.complete(leased)
    # waiting jobs are not finished
    await fleets.submit()
    assert [each.duration_seconds for each in await past(fleets)] == [40.0, 30.0, 20.0, 10.0]
    requests = from_history(await past(fleets))
    assert [request.arrival_seconds for request in requests] == [0.0, 10.0, 30.0, 60.0]
    assert len({request.model for request in requests}) == 1
    # the last 75 s, without earlier submissions
    recent = await past(fleets, days=timedelta(seconds=75) / timedelta(days=1))
    assert [each.duration_seconds for each in recent] == [40.0, 30.0]


async def test_fleet_that_does_not_exist_has_no_past(world: World) -> None:
    with pytest.raises(NotFound):
        _ = [each async for each in world.engine.autoscaling.history.done(Stage.PRODUCTION, "none", days=1)]
