"""A paused queue holds all of a tenant's queued jobs, including those added later, until it is resumed."""

import asyncio

import pytest

from comfyrelay.domain.queue.states import PauseMode, Stage
from comfyrelay.domain.queue.wait_reasons import Reason
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.central import samples
from comfyrelay.store.central.autoscaling import figures
from tests.integration.queue.test_many_waiting_polls import wait_until
from tests.support.burst import burst_scenario
from tests.support.world import PATIENCE_SECONDS, Desk, World

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def desk(world: World) -> Desk:
    return await world.desk()


async def pause(world: World, desk: Desk, mode: PauseMode = PauseMode.AFTER) -> None:
    await world.engine.queue.pauses.pause(desk.user.tenant_id, mode=mode)


async def resume(world: World, desk: Desk) -> bool:
    return await world.engine.queue.pauses.resume(desk.user.tenant_id)


async def stop_request(world: World, leased: LeasedDispatch) -> str | None:
    beat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
    return (await world.engine.queue.heartbeats.beat(beat)).stop


async def leased_job(world: World, desk: Desk) -> str | None:
    leased = await world.lease(desk.worker)
    return leased.dispatch.tenant_job_id if leased else None


async def wait_text(world: World, job: JobRecord) -> tuple[str, str]:
    waiting = await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)
    assert waiting.expected_start_seconds is None
    return waiting.reason, waiting.text


class TestHeldJobs:
    async def test_paused_queue_starts_no_job_that_is_added_later(self, world: World, desk: Desk) -> None:
        await pause(world, desk)
        job = await desk.submit()
        assert await world.lease(desk.worker) is None
        assert (await world.job(job)).status == "queued"
        assert await resume(world, desk)
        assert await leased_job(world, desk) == job.id

    async def test_pause_survives_a_restart(self, world: World, desk: Desk) -> None:
        await pause(world, desk)
        await desk.submit()
        await world.restart()
        assert await world.lease(desk.worker) is None
        assert await resume(world, desk)
        assert await world.lease(desk.worker) is not None

    async def test_resumed_jobs_keep_their_order(self, world: World, desk: Desk) -> None:
        first = await desk.submit()
        await pause(world, desk)
        second = await desk.submit()
        await resume(world, desk)
        for job in (first, second):
            leased = await world.lease(desk.worker)
            assert leased is not None
            assert leased.dispatch.tenant_job_id == job.id
            await world.complete(leased)

    async def test_pause_holds_only_the_jobs_of_one_tenant(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await pause(world, desk)
        other = await world.submit(await world.user(), desk.effect)
        assert await leased_job(world, desk) == other.id

    async def test_paused_job_stays_paused_when_the_queue_is_resumed(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        await world.engine.queue.control.pause(job.tenant_id, job.id)
        await pause(world, desk)
        await resume(world, desk)
        assert (await world.job(job)).status == "paused"
        assert await world.lease(desk.worker) is None

    async def test_resume_of_a_running_queue_changes_nothing(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        assert not await resume(world, desk)
        assert await stop_request(world, leased) is None

    async def test_second_pause_keeps_the_time_of_the_first(self, world: World, desk: Desk) -> None:
        at = world.clock.now
        await pause(world, desk)
        await world.advance(60)
        await pause(world, desk)
        assert (await world.engine.jobs.overview.summary(desk.user.tenant_id, limit=1)).paused_at == at

    async def test_held_job_can_be_canceled(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        await pause(world, desk)
        assert (await world.engine.queue.control.cancel(job.tenant_id, job.id)).status == "canceled"


class TestLeases:
    async def test_running_job_finishes_and_the_next_one_waits(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await desk.submit()
        await pause(world, desk)
        assert await stop_request(world, leased) is None
        assert await world.complete(leased) == "completed"
        assert await world.lease(desk.worker) is None

    async def test_prefetched_job_returns_to_the_queue_and_waits(self, world: World, desk: Desk) -> None:
        _, running = await desk.submit_and_lease()
        job = await desk.submit()
        prefetched = await world.lease(desk.worker, prefetch=1)
        assert prefetched is not None
        await pause(world, desk)
        assert (await stop_request(world, running), await stop_request(world, prefetched)) == (None, "release")
        assert await world.requeue(prefetched, "released") == "queued"
        await world.complete(running)
        assert await world.lease(desk.worker) is None
        await resume(world, desk)
        assert await leased_job(world, desk) == job.id

    async def test_interrupted_job_returns_to_the_queue_and_waits(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await pause(world, desk, PauseMode.NOW)
        assert await stop_request(world, leased) == "pause"
        assert await world.requeue(leased, "pause") == "queued"
        assert (await world.dispatch(job)).attempts == 0
        assert await world.lease(desk.worker) is None
        await resume(world, desk)
        assert await leased_job(world, desk) == job.id

    async def test_pause_now_interrupts_after_a_pause_that_lets_jobs_finish(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        await pause(world, desk)
        await pause(world, desk, PauseMode.NOW)
        assert await stop_request(world, leased) == "pause"

    async def test_resume_withdraws_an_interruption_that_has_not_happened(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await pause(world, desk, PauseMode.NOW)
        await resume(world, desk)
        assert await stop_request(world, leased) is None
        assert await world.complete(leased) == "completed"
        assert (await world.job(job)).status == "completed"

    async def test_paused_job_is_interrupted_even_if_the_queue_is_resumed(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await pause(world, desk, PauseMode.NOW)
        await world.engine.queue.control.pause(job.tenant_id, job.id, mode=PauseMode.NOW)
        await resume(world, desk)
        assert await stop_request(world, leased) == "pause"
        assert await world.requeue(leased, "pause") == "paused"

    async def test_resumed_job_is_still_interrupted_by_a_paused_queue(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await pause(world, desk, PauseMode.NOW)
        await world.engine.queue.control.pause(job.tenant_id, job.id, mode=PauseMode.NOW)
        await world.engine.queue.control.resume(job.tenant_id, job.id)
        assert await stop_request(world, leased) == "pause"
        assert await world.requeue(leased, "pause") == "queued"
        assert await leased_job(world, desk) is None
        await resume(world, desk)
        assert await leased_job(world, desk) == job.id

    async def test_expired_lease_of_a_paused_queue_waits_for_its_worker(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        idle = [LeaseRequest(worker_id=await world.worker(desk.fleet), providers=("self_hosted",))]
        await world.advance(world.engine.settings.lease_ttl_seconds + 1)
        assert await world.engine.queue.demand.late(idle) == [(await world.dispatch(job)).id]
        await pause(world, desk)
        assert await world.engine.queue.demand.late(idle) == []
        assert await world.complete(leased) == "completed"


async def test_resume_wakes_parked_polls(world: World, desk: Desk) -> None:
    await pause(world, desk)
    job = await desk.submit()
    polls = world.engine.queue.polls
    # Only a wakeup can serve the poll.
    polls._tick_seconds = 10 * PATIENCE_SECONDS
    request = LeaseRequest(worker_id=desk.worker, providers=("self_hosted",))
    parked = asyncio.create_task(polls.poll(request, wait_seconds=10 * PATIENCE_SECONDS))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await wait_until(lambda: polls.parked == 1 and polls._watcher is not None)
        await resume(world, desk)
        [leased] = await parked
    assert leased.dispatch.tenant_job_id == job.id


class TestExplanations:
    async def test_wait_reason_of_held_jobs_counts_the_jobs_of_the_paused_queue(self, world: World, desk: Desk) -> None:
        _, running = await desk.submit_and_lease()
        prefetched = await desk.submit()
        assert await world.lease(desk.worker, prefetch=1) is not None
        queued = await desk.submit()
        await pause(world, desk)
        text = "The queue is paused. It holds 2 jobs. Resume it to continue."
        assert await wait_text(world, queued) == (Reason.QUEUE_PAUSED, text)
        assert await wait_text(world, prefetched) == (Reason.QUEUE_PAUSED, text)
        await world.complete(running)
        await resume(world, desk)
        waiting = await world.engine.queue.wait_reasons.of_job(queued.tenant_id, queued.id)
        assert waiting.reason is not Reason.QUEUE_PAUSED

    async def test_wait_reason_of_a_paused_job_in_a_paused_queue_is_its_own_pause(
        self, world: World, desk: Desk
    ) -> None:
        job = await desk.submit()
        await world.engine.queue.control.pause(job.tenant_id, job.id)
        await pause(world, desk)
        assert (await wait_text(world, job))[0] == Reason.PAUSED

    async def test_held_jobs_of_other_tenants_are_not_counted_ahead(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await pause(world, desk)
        job = await world.submit(await world.user(), desk.effect)
        waiting = await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)
        assert waiting.position == 1


class TestCapacity:
    async def test_held_jobs_need_no_machines(self, world: World, desk: Desk) -> None:
        await desk.submit()
        await pause(world, desk)
        await desk.submit()
        central = world.engine.databases.central

        async def demand() -> tuple[int, int, int]:
            found = await world.engine.autoscaling.snapshots.take(Stage.PRODUCTION)
            async with central.read() as tx:
                depth = sum((await figures.count_active_jobs(tx)).values())
                waiting = sum(group.jobs for group in await samples.waiting_jobs(tx))
            return sum(work.jobs for work in found.snapshot.work), depth, waiting

        assert await demand() == (0, 0, 0)
        await resume(world, desk)
        assert await demand() == (2, 2, 2)

    async def test_arrivals_of_a_paused_queue_do_not_count(self, world: World, desk: Desk) -> None:
        await pause(world, desk)
        await desk.submit()
        await world.engine.autoscaling.snapshots.take(Stage.PRODUCTION)
        assert world.engine.autoscaling.snapshots._memory.arrivals[Stage.PRODUCTION].count == 0

    async def test_held_job_does_not_go_to_the_cloud(self, world: World) -> None:
        burst = await burst_scenario(world)
        jobs = await burst.submit(1, max_wait_seconds=10)
        await world.engine.queue.pauses.pause(jobs[0].tenant_id)
        assert await burst.run_once() == []
        await world.engine.queue.pauses.resume(jobs[0].tenant_id)
        assert len(await burst.run_once()) == 1

    async def test_held_jobs_are_not_offered_to_parked_polls(self, world: World, desk: Desk) -> None:
        job = await desk.submit()
        await pause(world, desk)
        assert await world.engine.queue.demand.queued() == []
        await resume(world, desk)
        [offered] = await world.engine.queue.demand.queued()
        assert offered.id == (await world.dispatch(job)).id
