"""Leases of silent workers expire, so no job remains leased forever."""

import asyncio
from typing import Any

import pytest

from comfyrelay.domain.queue.states import PauseMode, Provider
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import LeaseLost
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Report, Verb
from comfyrelay.store.central.queue import reaping
from tests.support.world import PATIENCE_SECONDS, Desk, World, execute, submit_many

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


async def test_expired_lease_is_requeued_and_uses_an_attempt(world: World, desk: Desk) -> None:
    job, _ = await desk.submit_and_lease()
    assert await world.engine.queue.reaper.run_once() == 0
    assert await world.expire() == 1
    dispatch = await world.dispatch(job)
    assert (dispatch.status, dispatch.attempts, dispatch.epoch) == ("queued", 1, 1)
    assert dispatch.last_error == "The worker stopped responding."
    assert (await world.job(job)).status == "queued"
    assert [attempt.outcome for attempt in await world.attempts(job)] == ["expired"]
    assert (await world.events(job))[-1] == "job:retrying"


@pytest.mark.parametrize("attempts", [1, 3])
async def test_uncontended_lease_ends_exactly_after_the_grace_period(world: World, desk: Desk, attempts: int) -> None:
    job, _ = await desk.submit_and_lease()
    await execute(world.engine.databases.central, f"UPDATE ai_job_dispatches SET max_attempts = {attempts}")
    await world.advance(1799.999)
    assert await world.engine.queue.reaper.run_once() == 0
    await world.advance(0.001)
    assert await world.engine.queue.reaper.run_once() == 1
    assert (await world.job(job)).status == ("failed" if attempts == 1 else "queued")


class TestLateLease:
    """A late lease remains valid until a worker that could run the job waits for one."""

    async def test_late_lease_completes_its_job_once(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await world.advance(1799)
        assert await world.engine.queue.reaper.run_once() == 0
        assert await world.complete(leased) == "completed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}
        assert [attempt.outcome for attempt in await world.attempts(job)] == ["completed"]

    async def test_heartbeat_extends_a_late_lease(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await world.advance(1799)
        await world.engine.queue.heartbeats.beat(
            Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
        )
        assert await reap_for(world, await world.worker(desk.fleet)) == 0
        await world.advance(899)
        assert await world.engine.queue.reaper.run_once() == 0

    @pytest.mark.parametrize("waits", [True, False])
    async def test_waiting_worker_gets_the_job_as_soon_as_its_lease_expires(
        self, world: World, desk: Desk, waits: bool
    ) -> None:
        job, leased = await desk.submit_and_lease()
        other = await world.worker(desk.fleet)
        assert await reap_for(world, other, waits=waits) == 0
        await world.advance(900)
        assert await reap_for(world, other, waits=waits) == 1
        assert (await world.dispatch(job)).status == ("leased" if waits else "queued")
        with pytest.raises(LeaseLost):
            await world.complete(leased)

    async def test_waiting_poll_reaps_one_late_lease(self, world: World) -> None:
        desk = await world.desk(concurrency=3)
        await submit_many(world, desk.user, desk.effect, 3)
        assert len(await world.leases(desk.worker, 3)) == 3
        await world.advance(900)
        assert await reap_for(world, await world.worker(desk.fleet)) == 1

    async def test_poll_of_the_lease_holder_does_not_reap_its_lease(self, world: World) -> None:
        desk = await world.desk(concurrency=2)
        _, leased = await desk.submit_and_lease()
        await world.advance(900)
        assert await reap_for(world, desk.worker) == 0
        assert await world.complete(leased) == "completed"

    @pytest.mark.parametrize("other", ["busy", "reports load", "draining", "another fleet", "cloud only"])
    async def test_poll_that_cannot_run_the_job_does_not_reap_its_lease(
        self, world: World, desk: Desk, other: str
    ) -> None:
        _, leased = await desk.submit_and_lease()
        fleet = await world.fleet(await world.workflow()) if other == "another fleet" else desk.fleet
        worker = await world.worker(fleet)
        if other == "busy":
            await world.submit(desk.user, desk.effect)
            assert await world.lease(worker) is not None
        if other == "draining":
            await world.engine.workers.workers.set_draining(worker, is_draining=True)
        await world.advance(900)
        providers = [Provider.CLOUD] if other == "cloud only" else [Provider.SELF_HOSTED]
        load = 1 if other == "reports load" else 0
        assert await reap_for(world, worker, providers=providers, current_load=load) == 0
        assert await world.complete(leased) == "completed"

    async def test_late_lease_of_the_last_attempt_is_not_reaped_early(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET max_attempts = 1")
        await world.advance(1799)
        assert await reap_for(world, await world.worker(desk.fleet)) == 0
        assert await world.complete(leased) == "completed"

    async def test_late_lease_with_a_pause_request_is_not_reaped_early(self, world: World, desk: Desk) -> None:
        job, _ = await desk.submit_and_lease()
        await world.engine.queue.control.pause(job.tenant_id, job.id, mode=PauseMode.AFTER)
        await world.advance(1799)
        assert await reap_for(world, await world.worker(desk.fleet)) == 0

    async def test_lease_with_a_cancel_request_ends_when_it_expires(self, world: World, desk: Desk) -> None:
        job, _ = await desk.submit_and_lease()
        await world.engine.queue.control.cancel(job.tenant_id, job.id)
        await world.advance(900)
        assert await world.engine.queue.reaper.run_once() == 1
        assert (await world.job(job)).status == "canceled"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}


class TestDeadWorker:
    """A worker that misses three heartbeats loses its leases."""

    async def test_leases_of_a_silent_worker_are_returned_within_two_minutes(self, world: World, desk: Desk) -> None:
        job, leased = await lease_with_heartbeats(world, desk)
        assert await reap_for_seconds(world, 80) == 0
        assert await reap_for_seconds(world, 20) == 1
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.attempts) == ("queued", 1)
        assert [attempt.outcome for attempt in await world.attempts(job)] == ["expired"]

        assert (await world.engine.jobs.views.job(job.tenant_id, job.id)).progress == {"phase": "starting again"}

        again = await world.lease(await world.worker(desk.fleet))
        assert again is not None
        assert (await world.engine.jobs.views.job(job.tenant_id, job.id)).progress == {"phase": "starting again"}
        beat = Heartbeat(dispatch_id=again.dispatch_id, lease_token=again.lease_token, progress={"value": 0.5})
        await world.engine.queue.heartbeats.beat(beat)
        assert (await world.engine.jobs.views.job(job.tenant_id, job.id)).progress == {"value": 0.5}
        with pytest.raises(LeaseLost):
            await world.complete(leased)
        assert await world.complete(again) == "completed"
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}

    async def test_returning_worker_gets_back_a_job_that_no_worker_started(self, world: World, desk: Desk) -> None:
        job, leased = await lease_with_heartbeats(world, desk)
        assert await reap_for_seconds(world, 100) == 1
        assert (await world.job(job)).status == "queued"

        assert await revive(world, leased)
        dispatch = await world.dispatch(job)
        assert (dispatch.status, dispatch.epoch, dispatch.attempts) == ("leased", 1, 1)
        assert (await world.job(job)).status == "processing"
        assert [attempt.outcome for attempt in await world.attempts(job)] == [None]
        # The revived lease has its full time again, and no other worker gets the job.
        assert await world.lease(await world.worker(desk.fleet)) is None
        assert await world.complete(leased) == "completed"
        assert [attempt.outcome for attempt in await world.attempts(job)] == ["completed"]
        assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}

    @pytest.mark.parametrize("since", ["leased", "requeued", "canceled", "paused", "of another worker"])
    async def test_lost_lease_is_not_revived_after_the_job_changed(self, world: World, desk: Desk, since: str) -> None:
        job, leased = await lease_with_heartbeats(world, desk)
        assert await reap_for_seconds(world, 100) == 1
        if since in {"leased", "requeued"}:
            again = await world.lease(await world.worker(desk.fleet))
            assert again is not None
            if since == "requeued":
                await world.engine.queue.settle.requeue(again.dispatch_id, again.lease_token, reason="shutdown")
        elif since == "canceled":
            await world.engine.queue.control.cancel(job.tenant_id, job.id)
        elif since == "paused":
            await world.engine.queue.control.pause(job.tenant_id, job.id)
        worker = "gpu-2" if since == "of another worker" else "gpu-1"
        before = await world.dispatch(job)
        assert not await revive(world, leased, worker_id=worker)
        assert await world.dispatch(job) == before
        with pytest.raises(LeaseLost):
            await world.complete(leased)

    async def test_lease_that_expired_without_heartbeats_is_not_revived(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        assert await world.expire() == 1
        assert not await revive(world, leased, worker_id=desk.worker)

    @pytest.mark.parametrize("sign", ["seen", "heartbeat"])
    async def test_worker_with_a_sign_of_life_keeps_its_leases(self, world: World, desk: Desk, sign: str) -> None:
        _, leased = await lease_with_heartbeats(world, desk)
        for _ in range(5):
            assert await reap_for_seconds(world, 60) == 0
            if sign == "seen":
                await world.engine.workers.workers.record_seen([leased.dispatch.worker_id or ""])
            else:
                beat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
                await world.engine.queue.heartbeats.beat(beat)
        assert await world.complete(leased) == "completed"

    async def test_worker_of_protocol_1_is_not_reaped_for_missing_heartbeats(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        assert await reap_for_seconds(world, 890) == 0
        assert await world.complete(leased) == "completed"

    async def test_silence_during_a_server_outage_does_not_count(self, world: World, desk: Desk) -> None:
        _, leased = await lease_with_heartbeats(world, desk)
        await reap_for_seconds(world, 60)
        await world.advance(200)
        assert await reap_for_seconds(world, 80) == 0
        await world.restart()
        assert await reap_for_seconds(world, 80) == 0
        assert await world.complete(leased) == "completed"

    async def test_canceled_job_of_a_silent_worker_is_canceled(self, world: World, desk: Desk) -> None:
        job, _ = await lease_with_heartbeats(world, desk)
        await world.engine.queue.control.cancel(job.tenant_id, job.id)
        assert await reap_for_seconds(world, 150) == 1
        assert (await world.job(job)).status == "canceled"


async def lease_with_heartbeats(world: World, desk: Desk) -> tuple[JobRecord, LeasedDispatch]:
    """Lease a job to a worker of protocol version 2."""
    await world.engine.workers.workers.register(worker_id="gpu-1", fleet_slug=desk.fleet, protocol=2)
    job = await desk.submit()
    leased = await world.lease("gpu-1")
    assert leased is not None
    return job, leased


async def revive(world: World, leased: LeasedDispatch, *, worker_id: str = "gpu-1") -> bool:
    revived = await world.engine.queue.heartbeats.revive(leased.dispatch_id, leased.lease_token, worker_id=worker_id)
    await world.wait_for_deliveries()
    return revived


async def reap_for_seconds(world: World, seconds: int) -> int:
    """Run the reaper every ten seconds; return how many dispatches changed."""
    reaped = await world.engine.queue.reaper.run_once()
    for _ in range(seconds // 10):
        await world.advance(10)
        reaped += await world.engine.queue.reaper.run_once()
    await world.wait_for_deliveries()
    return reaped


async def reap_for(world: World, worker: str, *, waits: bool = True, **values: Any) -> int:
    """Run the reaper while this worker waits for a job, or just after its empty poll."""
    request = LeaseRequest(worker_id=worker, **{"providers": [Provider.SELF_HOSTED], **values})
    polls = world.engine.queue.polls
    polling = asyncio.create_task(polls.poll(request, wait_seconds=PATIENCE_SECONDS if waits else 0))
    if not waits:
        assert await polling == []
    else:
        while not polls.waiting():  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0)
    reaped = await world.engine.queue.reaper.run_once()
    if waits and reaped:
        assert await polling
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
    await world.wait_for_deliveries()
    return reaped


async def test_job_whose_workers_always_die_fails_after_its_attempts(world: World, desk: Desk) -> None:
    job = await desk.submit()
    for attempt in (1, 2, 3):
        leased = await world.lease(desk.worker)
        assert leased is not None
        assert leased.dispatch.attempts == attempt
        assert (await world.job(job)).status == "processing"
        await world.expire()
    assert await world.lease(desk.worker) is None
    found = await world.job(job)
    assert (found.status, found.error_detail) == ("failed", "The worker stopped responding.")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
    assert len(await world.attempts(job)) == 3


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_expired_lease_with_a_pause_request_is_paused(world: World, desk: Desk, mode: PauseMode) -> None:
    job, _ = await desk.submit_and_lease()
    await world.engine.queue.control.pause(job.tenant_id, job.id, mode=mode)
    await world.expire()
    assert (await world.job(job)).status == "paused"
    assert (await world.dispatch(job)).attempts == 1
    await world.engine.queue.control.resume(job.tenant_id, job.id)
    assert await world.lease(desk.worker) is not None


async def test_heartbeat_between_query_and_reaping_extends_the_lease(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, leased = await desk.submit_and_lease()
    await world.advance(1800)
    find_expired = reaping.expired

    async def find_and_beat(tx: object, **values: Any) -> list[int]:
        found = await find_expired(tx, **values)  # type: ignore[arg-type]
        beat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
        await world.engine.queue.heartbeats.beat(beat)
        seen.extend(found)
        return found

    seen: list[int] = []
    monkeypatch.setattr(reaping, "expired", find_and_beat)
    assert await world.engine.queue.reaper.run_once() == 0
    assert seen == [leased.dispatch_id]
    assert (await world.dispatch(job)).lease_token == leased.lease_token
    assert await world.complete(leased) == "completed"


@pytest.mark.parametrize("paused", [False, True])
async def test_waiting_dispatch_without_attempts_fails_and_is_refunded(world: World, desk: Desk, paused: bool) -> None:
    job, _ = await desk.submit_and_lease()
    await world.expire()
    if paused:
        await world.engine.queue.control.pause(job.tenant_id, job.id)
    await execute(world.engine.databases.central, "UPDATE ai_job_dispatches SET max_attempts = 1")
    assert await world.lease(desk.worker) is None
    assert await world.engine.queue.reaper.run_once() == 1
    found = await world.job(job)
    assert (found.status, found.error_detail) == ("failed", "The worker stopped responding.")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}


async def test_repeated_reaping_ends_a_lease_once(world: World, desk: Desk) -> None:
    job, leased = await desk.submit_and_lease()
    await world.advance(1800)
    assert await world.engine.queue.reaper._reap([leased.dispatch_id]) == 1
    assert await world.engine.queue.reaper._reap([leased.dispatch_id]) == 0
    assert (await world.events(job)).count("job:retrying") == 1


async def test_all_expired_leases_are_reaped_in_one_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comfyrelay.services.queue.reaper.MAX_AT_ONCE", 5)
    desk = await world.desk(concurrency=12)
    await submit_many(world, desk.user, desk.effect, 12)
    assert len(await world.leases(desk.worker, 12)) == 12
    assert await world.expire() == 12


async def test_revived_lease_is_not_completed_without_its_outputs(world: World, desk: Desk) -> None:
    """The lease is lost when its completion begins, and revived before it is settled."""
    job, leased = await lease_with_heartbeats(world, desk)
    report = Report(
        verb=Verb.COMPLETE, dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, is_repeat_only=True
    )
    with pytest.raises(LeaseLost):
        await world.engine.queue.settle.report(report)
    assert (await world.dispatch(job)).status == "leased"
    # Reviving an already revived lease succeeds.
    assert await revive(world, leased)
    assert await world.complete(leased) == "completed"
