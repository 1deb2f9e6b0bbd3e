"""If a worker reports no progress, it is estimated from the last processing time of the effect."""

from typing import Any

import pytest

from comfyrelay.domain.records.jobs import DispatchFilter, JobRecord
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.store.central.queue import dispatches
from tests.support.world import Desk, World

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    """Return a desk with an effect whose last job took 100 seconds."""
    desk = await world.desk(concurrency=10)
    await complete_after(world, desk, 100)
    return desk


async def complete_after(world: World, desk: Desk, seconds: float) -> None:
    _, leased = await desk.submit_and_lease()
    await world.advance(seconds)
    await world.complete(leased)


async def progress_everywhere(world: World, desk: Desk, job: JobRecord) -> list[Any]:
    """Return the progress of the only running job as each page reads it."""
    engine = world.engine
    await world.wait_for_deliveries()
    leased = (await engine.jobs.overview.rows_of([job.tenant_id], limit=1))[job.tenant_id].leased
    async with engine.databases.central.read() as tx:
        followed = await dispatches.progress_of(tx, [(job.tenant_id, job.id)])
    [dispatch] = [
        listed.progress
        for listed in (await engine.operations.inspection.dispatches(DispatchFilter(), limit=10)).items
        if listed.dispatch.tenant_job_id == job.id
    ]
    return [
        (await engine.jobs.views.job(job.tenant_id, job.id)).progress,
        leased[0].progress,
        followed.get(job.id),
        (await engine.workers.views.worker(desk.worker)).line.jobs[0].progress,
        dispatch,
    ]


async def beat(world: World, leased: LeasedDispatch, progress: dict[str, Any] | None = None) -> None:
    heartbeat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, progress=progress)
    await world.engine.queue.heartbeats.beat(heartbeat)


async def test_progress_is_estimated_on_every_page(world: World, desk: Desk) -> None:
    job, leased = await desk.submit_and_lease()
    await world.advance(50)
    await beat(world, leased)
    estimated = {"value": 0.45, "is_estimated": True}
    assert await progress_everywhere(world, desk, job) == [estimated] * 5
    [slot] = [view.job for view in (await world.engine.workers.slots.page(limit=10)).items if view.job is not None]
    assert (slot.progress, slot.is_estimated, slot.expected_seconds) == (0.45, True, 50)
    # The estimate never reaches 100% before the job ends.
    await world.advance(10_000)
    await beat(world, leased)
    assert {progress["value"] for progress in await progress_everywhere(world, desk, job)} == {0.98}


async def test_reported_progress_replaces_the_estimate(world: World, desk: Desk) -> None:
    job, leased = await desk.submit_and_lease()
    await world.advance(50)
    await beat(world, leased, {"value": 0.1, "phase": "running"})
    assert await progress_everywhere(world, desk, job) == [{"value": 0.1, "phase": "running"}] * 5


async def test_estimate_does_not_decrease_when_another_job_took_longer(world: World, desk: Desk) -> None:
    _, slow = await desk.submit_and_lease()
    await world.advance(1000)
    job, _ = await desk.submit_and_lease()
    await world.advance(50)
    views = world.engine.jobs.views
    estimated = {"value": 0.45, "is_estimated": True}
    assert (await views.job(job.tenant_id, job.id)).progress == estimated
    await world.complete(slow)
    assert (await views.job(job.tenant_id, job.id)).progress == estimated
    # The next lease uses the newest duration.
    later, _ = await desk.submit_and_lease()
    await world.advance(105)
    assert (await views.job(later.tenant_id, later.id)).progress == {"value": 0.09, "is_estimated": True}


async def test_first_job_of_an_effect_has_no_estimate(world: World) -> None:
    desk = await world.desk()
    job, _ = await desk.submit_and_lease()
    await world.advance(50)
    assert await progress_everywhere(world, desk, job) == [None] * 5
