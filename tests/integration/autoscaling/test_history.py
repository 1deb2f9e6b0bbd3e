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


async def completed_jobs(fleets: Fleets, days: float = 30.0) -> list[PastJobRow]:
    done = fleets.world.engine.autoscaling.history.done(Stage.PRODUCTION, fleets.fleet, days=days)
    return [job async for job in done]


async def test_completed_jobs_are_read_newest_first_in_batches(fleets: Fleets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BATCH_SIZE", 2)
    worker = await fleets.world.worker(fleets.fleet)
    for seconds in (10.0, 20.0, 30.0, 40.0):
        await fleets.submit()
        leased = await fleets.world.lease(worker)
        assert leased is not None
        await fleets.world.advance(seconds)
        await fleets.world.complete(leased)
    # Waiting jobs are not finished.
    await fleets.submit()
    assert [job.duration_seconds for job in await completed_jobs(fleets)] == [40.0, 30.0, 20.0, 10.0]
    requests = from_history(await completed_jobs(fleets))
    assert [request.arrival_seconds for request in requests] == [0.0, 10.0, 30.0, 60.0]
    assert len({request.model for request in requests}) == 1
    # The last 75 s, without earlier submissions.
    recent = await completed_jobs(fleets, days=timedelta(seconds=75) / timedelta(days=1))
    assert [job.duration_seconds for job in recent] == [40.0, 30.0]


async def test_history_of_a_missing_fleet_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        _ = [job async for job in world.engine.autoscaling.history.done(Stage.PRODUCTION, "none", days=1)]
