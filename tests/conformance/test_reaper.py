"""Leases whose workers fell silent end, and nothing stays leased or waits for ever."""

import pytest

from comfyrelay.domain.states import PauseMode
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.store.central import dispatches
from tests.harness import Desk, World, execute, submit_many


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


async def expire(world: World) -> int:
    await world.advance(900)
    return await world.engine.queue.reaper.run_once()


async def test_an_expired_lease_goes_back_to_the_queue_with_its_attempt_used(world: World, desk: Desk) -> None:
    job, _ = await desk.leased()
    assert await expire(world) == 1
    dispatch = await world.dispatch(job)
    assert (dispatch.status, dispatch.attempts, dispatch.epoch) == ("queued", 1, 1)
    assert dispatch.last_error == "The worker stopped responding."
    assert (await world.job(job)).status == "queued"
    assert [each.outcome for each in await world.attempts(job)] == ["expired"]
    assert (await world.events(job))[-1] == "job:retrying"


async def test_a_lease_lives_until_its_exact_end(world: World, desk: Desk) -> None:
    await desk.leased()
    await world.advance(899.999)
    assert await world.engine.queue.reaper.run_once() == 0
    await world.advance(0.001)
    assert await world.engine.queue.reaper.run_once() == 1


async def test_a_job_whose_workers_always_die_fails_after_exactly_its_attempts(world: World, desk: Desk) -> None:
    job = await desk.submit()
    for attempt in (1, 2, 3):
        leased = await world.lease(desk.worker)
        assert leased is not None
        assert leased.dispatch.attempts == attempt
        assert (await world.job(job)).status == "processing"
        await expire(world)
    assert await world.lease(desk.worker) is None
    found = await world.job(job)
    assert (found.status, found.error_message) == ("failed", "The worker stopped responding.")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
    assert len(await world.attempts(job)) == 3


async def test_a_requested_cancel_turns_expiry_into_canceled(world: World, desk: Desk) -> None:
    job, _ = await desk.leased()
    await world.engine.queue.control.cancel(job.tenant_id, job.id)
    await expire(world)
    assert (await world.job(job)).status == "canceled"
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_a_requested_pause_turns_expiry_into_paused(world: World, desk: Desk, mode: PauseMode) -> None:
    job, _ = await desk.leased()
    await world.engine.queue.control.pause(job.tenant_id, job.id, mode=mode)
    await expire(world)
    assert (await world.job(job)).status == "paused"
    assert (await world.dispatch(job)).attempts == 1
    await world.engine.queue.control.resume(job.tenant_id, job.id)
    assert await world.lease(desk.worker) is not None


async def test_a_heartbeat_between_the_look_and_the_reaping_saves_the_lease(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, leased = await desk.leased()
    await world.advance(900)
    look = dispatches.expired

    async def look_and_be_overtaken(tx: object, *, limit: int) -> list[int]:
        found = await look(tx, limit=limit)  # type: ignore[arg-type]
        beat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
        await world.engine.queue.heartbeats.beat(beat)
        seen.extend(found)
        return found

    seen: list[int] = []
    monkeypatch.setattr(dispatches, "expired", look_and_be_overtaken)
    assert await world.engine.queue.reaper.run_once() == 0
    assert seen == [leased.dispatch_id]
    assert (await world.dispatch(job)).lease_token == leased.lease_token
    assert await world.complete(leased) == "completed"


@pytest.mark.parametrize("paused", [False, True])
async def test_a_waiting_dispatch_without_attempts_left_fails_and_is_refunded(
    world: World, desk: Desk, paused: bool
) -> None:
    job, _ = await desk.leased()
    await expire(world)
    if paused:
        await world.engine.queue.control.pause(job.tenant_id, job.id)
    await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET max_attempts = 1")
    assert await world.lease(desk.worker) is None
    assert await world.engine.queue.reaper.run_once() == 1
    found = await world.job(job)
    assert (found.status, found.error_message) == ("failed", "The worker stopped responding.")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}


async def test_two_reapers_end_a_lease_once(world: World, desk: Desk) -> None:
    job, leased = await desk.leased()
    await world.advance(900)
    assert await world.engine.queue.reaper._reap([leased.dispatch_id]) == 1
    assert await world.engine.queue.reaper._reap([leased.dispatch_id]) == 0
    assert (await world.events(job)).count("job:retrying") == 1


async def test_everything_due_is_reaped_in_one_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comfyrelay.services.queue.reaper.AT_ONCE", 5)
    desk = await world.desk(concurrency=12)
    await submit_many(world, desk.user, desk.effect, 12)
    assert len(await world.leases(desk.worker, 12)) == 12
    assert await expire(world) == 12


async def test_nothing_is_reaped_when_nothing_is_due(world: World, desk: Desk) -> None:
    await desk.leased()
    assert await world.engine.queue.reaper.run_once() == 0
