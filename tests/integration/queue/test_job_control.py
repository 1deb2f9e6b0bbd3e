"""Users can cancel, pause, resume, prioritize, move and retry jobs."""

import asyncio
from collections.abc import Awaitable

import pytest

from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import JobEventType, JobStatus, PauseMode
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Conflict, Fault, InsufficientTokens, LeaseLost, NotFound, TooManyActiveJobs
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Boundary
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import jobs
from tests.support.world import PATIENCE_SECONDS, Crash, Desk, World, submit_batch

pytestmark = pytest.mark.both_databases

REFUNDED = {"JOB_RESERVE": -10, "JOB_REFUND": 10}
CONSUMED = {"JOB_RESERVE": -10, "JOB_CONSUME": 0}


async def cancel(world: World, job: JobRecord) -> JobRecord:
    return await world.engine.queue.control.cancel(job.tenant_id, job.id)


async def pause(world: World, job: JobRecord, mode: PauseMode = PauseMode.AFTER) -> JobRecord:
    return await world.engine.queue.control.pause(job.tenant_id, job.id, mode=mode)


async def resume(world: World, job: JobRecord) -> JobRecord:
    return await world.engine.queue.control.resume(job.tenant_id, job.id)


async def move(world: World, job: JobRecord, to: MoveTo) -> None:
    await world.engine.queue.control.move(job.tenant_id, job.id, to)


async def stop_request(world: World, leased: LeasedDispatch) -> str | None:
    beat = Heartbeat(dispatch_id=leased.dispatch_id, lease_token=leased.lease_token)
    return (await world.engine.queue.heartbeats.beat(beat)).stop


class TestWaitingHeartbeat:
    @pytest.fixture
    async def desk(self, world: World) -> Desk:
        # only a request in this process can wake a heartbeat
        world.engine.queue.stop_requests._tick_seconds = 10 * PATIENCE_SECONDS
        return await world.desk()

    async def check_wakeup(self, world: World, leased: LeasedDispatch, act: Awaitable[object]) -> None:
        with world.engine.queue.stop_requests.watching(leased.dispatch_id) as wakeup:
            await act
            assert await wakeup.wait(PATIENCE_SECONDS)

    async def test_pause_and_cancel_wake_a_waiting_heartbeat(self, world: World, desk: Desk) -> None:
        job, leased = await desk.submit_and_lease()
        await self.check_wakeup(world, leased, pause(world, job, PauseMode.NOW))
        assert await stop_request(world, leased) == "pause"
        await self.check_wakeup(world, leased, cancel(world, job))
        assert await stop_request(world, leased) == "cancel"

    async def test_canceling_the_batch_wakes_a_waiting_heartbeat(self, world: World, desk: Desk) -> None:
        batch = await submit_batch(world, desk.user, desk.effect, 1)
        leased = await world.lease(desk.worker)
        assert leased is not None
        canceling = world.engine.queue.control.cancel_batch(desk.user.tenant_id, batch.id)
        await self.check_wakeup(world, leased, canceling)
        assert await stop_request(world, leased) == "cancel"

    async def test_draining_the_worker_wakes_the_heartbeat_of_a_prefetched_job(self, world: World, desk: Desk) -> None:
        await desk.submit_and_lease()
        await desk.submit()
        prefetched = await world.lease(desk.worker, prefetch=1)
        assert prefetched is not None
        draining = world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
        await self.check_wakeup(world, prefetched, draining)
        assert await stop_request(world, prefetched) == "release"

    async def test_revoking_the_worker_wakes_a_waiting_heartbeat(self, world: World, desk: Desk) -> None:
        _, leased = await desk.submit_and_lease()
        revoking = world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
        await self.check_wakeup(world, leased, revoking)
        with pytest.raises(LeaseLost):
            await stop_request(world, leased)


async def status(world: World, job: JobRecord) -> tuple[str, str]:
    """Return the state of the job in the tenant database and in the queue."""
    return (await world.job(job)).status, (await world.dispatch(job)).status


async def submit_in_order(desk: Desk, count: int, *, user: User | None = None, priority: int = 0) -> list[JobRecord]:
    """Submit jobs one second apart."""
    submitted = []
    for _ in range(count):
        submitted.append(await desk.world.submit(user or desk.user, desk.effect, priority=priority))
        await desk.world.advance(1)
    return submitted


async def queue_order(desk: Desk) -> list[str]:
    """Lease all jobs, requeue them, and return their ids in the order of leasing."""
    worker = await desk.world.worker(desk.fleet, concurrency=100)
    leased = await desk.world.leases(worker, 100)
    for lease in leased:
        await desk.world.requeue(lease)
    return [lease.dispatch.tenant_job_id for lease in leased]


async def submit_and_crash(desk: Desk, **values: object) -> JobRecord:
    """Submit a job and crash before it reaches the queue."""
    desk.world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await desk.submit(key="lost", **values)
    desk.world.on_boundary(None)
    async with (await desk.world.engine.databases.shard_of(desk.user.tenant_id)).read() as tx:
        found = await jobs.by_key(tx, desk.user.tenant_id, "lost")
    assert found is not None
    assert await desk.world.count() == 0
    return found


# cancel


async def test_waiting_job_is_canceled_and_refunded_once(world: World) -> None:
    desk = await world.desk()
    queued, paused = await desk.submit(), await desk.submit()
    await pause(world, paused)
    for job in (queued, paused):
        for _ in range(2):
            assert (await cancel(world, job)).status == "canceled"
        assert await status(world, job) == ("canceled", "canceled")
        assert await world.transactions(job) == REFUNDED
    assert await world.events(queued) == ["job:queued", "job:canceled"]
    assert await world.lease(desk.worker) is None


async def test_leased_job_has_one_cancel_request(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    assert await stop_request(world, leased) is None
    for _ in range(2):
        assert (await cancel(world, job)).status == "processing"
        assert await stop_request(world, leased) == "cancel"
    assert await world.transactions(job) == {"JOB_RESERVE": -10}
    await world.requeue(leased)
    assert await world.events(job) == ["job:queued", "job:started", "job:cancel_requested", "job:canceled"]


async def test_completion_wins_over_a_requested_cancel(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await cancel(world, job)
    assert await world.complete(leased) == "completed"
    assert await status(world, job) == ("completed", "completed")
    assert await world.transactions(job) == CONSUMED


async def test_failure_after_a_cancel_request_means_canceled(world: World) -> None:
    desk = await world.desk()
    for fault in Fault:
        job, leased = await desk.submit_and_lease()
        await cancel(world, job)
        assert await world.fail(leased, fault=fault) == "canceled"
        assert await status(world, job) == ("canceled", "canceled")
        assert await world.transactions(job) == REFUNDED


async def test_requeue_after_a_cancel_request_means_canceled(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await cancel(world, job)
    assert await world.requeue(leased) == "canceled"
    assert await status(world, job) == ("canceled", "canceled")
    assert await world.transactions(job) == REFUNDED


async def test_lost_lease_after_a_cancel_request_means_canceled(world: World) -> None:
    desk = await world.desk()
    for lose in (world.expire, lambda: world.engine.workers.workers.deregister(desk.worker)):
        job, leased = await desk.submit_and_lease()
        await cancel(world, job)
        await lose()
        assert await status(world, job) == ("canceled", "canceled")
        with pytest.raises(LeaseLost):
            await world.complete(leased)
        assert await world.transactions(job) == REFUNDED


async def test_canceled_job_is_not_leased_again(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await cancel(world, job)
    await world.fail(leased, fault=Fault.WORKER)
    await world.advance(3600)
    await world.engine.queue.reaper.run_once()
    await world.relay()
    assert await world.lease(desk.worker) is None
    assert len(await world.attempts(job)) == 1


async def test_completion_wins_over_a_concurrent_cancel(world: World) -> None:
    desk = await world.desk()
    for _ in range(10):
        job, leased = await desk.submit_and_lease()
        await asyncio.gather(cancel(world, job), world.complete(leased), return_exceptions=True)
        await world.relay()
        assert await status(world, job) == ("completed", "completed")
        assert await world.transactions(job) == CONSUMED


async def test_canceled_job_has_no_lease_after_a_concurrent_lease(world: World) -> None:
    desk = await world.desk()
    for _ in range(10):
        job = await desk.submit()
        leased, _ = await asyncio.gather(world.lease(desk.worker), cancel(world, job))
        if leased is not None:
            assert await stop_request(world, leased) == "cancel"
            await world.requeue(leased)
        assert await status(world, job) == ("canceled", "canceled")
        assert await world.transactions(job) == REFUNDED


async def test_ended_job_cannot_be_canceled(world: World) -> None:
    desk = await world.desk()
    completed, leased = await desk.submit_and_lease()
    await world.complete(leased)
    with pytest.raises(Conflict, match="already completed"):
        await cancel(world, completed)
    assert await world.transactions(completed) == CONSUMED
    with pytest.raises(Conflict, match="already failed"):
        await cancel(world, await failed_job(desk))


# pause and resume


async def test_queued_job_is_paused_at_once_and_not_leased(world: World) -> None:
    desk = await world.desk()
    for mode in PauseMode:
        job = await desk.submit()
        for _ in range(2):
            assert (await pause(world, job, mode)).status == "paused"
        assert await status(world, job) == ("paused", "paused")
        assert await world.transactions(job) == {"JOB_RESERVE": -10}
        assert await world.events(job) == ["job:queued", "job:paused"]
    assert await world.lease(desk.worker) is None


async def test_paused_prefetched_job_is_released(world: World) -> None:
    desk = await world.desk()
    running, leased = await desk.submit_and_lease()
    job = await desk.submit()
    prefetched = await world.lease(desk.worker, prefetch=1)
    assert prefetched is not None
    await pause(world, running)
    await pause(world, job)
    assert (await stop_request(world, leased), await stop_request(world, prefetched)) == (None, "release")
    assert await world.requeue(prefetched, "released") == "paused"
    assert await world.complete(leased) == "completed"
    assert await world.lease(desk.worker) is None


async def test_completion_wins_over_a_requested_pause(world: World) -> None:
    desk = await world.desk()
    for mode in PauseMode:
        job, leased = await desk.submit_and_lease()
        await pause(world, job, mode)
        assert await world.complete(leased) == "completed"
        assert await world.transactions(job) == CONSUMED


async def test_requeue_after_a_pause_request_means_paused(world: World) -> None:
    desk = await world.desk()
    for mode in PauseMode:
        job, leased = await desk.submit_and_lease()
        await pause(world, job, mode)
        assert await world.requeue(leased) == "paused"
        assert await status(world, job) == ("paused", "paused")
        assert (await world.dispatch(job)).attempts == 0
    assert await world.lease(desk.worker) is None


async def test_lost_lease_after_a_pause_request_means_paused(world: World) -> None:
    desk = await world.desk()
    expired, _ = await desk.submit_and_lease()
    await pause(world, expired)
    await world.expire()
    job, leased = await desk.submit_and_lease()
    await pause(world, job)
    assert await world.fail(leased, fault=Fault.WORKER) == "paused"
    for paused in (expired, job):
        assert await status(world, paused) == ("paused", "paused")


async def test_job_fault_is_final_despite_a_pause_request(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await pause(world, job)
    assert await world.fail(leased, fault=Fault.JOB) == "failed"
    assert await world.transactions(job) == REFUNDED


async def test_cancel_overrides_a_pause_and_is_not_withdrawn_by_a_resume(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await pause(world, job, PauseMode.NOW)
    await cancel(world, job)
    await resume(world, job)
    assert await stop_request(world, leased) == "cancel"
    assert await world.requeue(leased) == "canceled"


async def test_pause_request_can_only_become_stricter(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await pause(world, job, PauseMode.AFTER)
    await pause(world, job, PauseMode.NOW)
    await pause(world, job, PauseMode.AFTER)
    assert await stop_request(world, leased) == "pause"


async def test_finished_job_cannot_be_paused_or_resumed(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    for verb in (pause, resume):
        with pytest.raises(Conflict):
            await verb(world, job)


async def test_resumed_job_keeps_its_position(world: World) -> None:
    desk = await world.desk()
    jobs = await submit_in_order(desk, 3)
    await pause(world, jobs[0])
    assert await queue_order(desk) == [jobs[1].id, jobs[2].id]
    assert (await resume(world, jobs[0])).status == "queued"
    assert await queue_order(desk) == [job.id for job in jobs]


async def test_interrupted_job_keeps_its_position_after_a_resume(world: World) -> None:
    desk = await world.desk()
    jobs = await submit_in_order(desk, 3)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await pause(world, jobs[0], PauseMode.NOW)
    await world.requeue(leased)
    await resume(world, jobs[0])
    assert await queue_order(desk) == [job.id for job in jobs]


async def test_resume_withdraws_the_pause_of_a_leased_job(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await pause(world, job, PauseMode.NOW)
    assert (await resume(world, job)).status == "processing"
    assert await stop_request(world, leased) is None
    assert await world.requeue(leased) == "queued"


async def test_resume_does_not_shorten_a_delay(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit(delay_seconds=60)
    await pause(world, job)
    await resume(world, job)
    assert await world.lease(desk.worker) is None
    await world.advance(60)
    assert await world.lease(desk.worker) is not None


# priority and order


async def test_job_with_a_higher_priority_is_leased_first(world: World) -> None:
    desk = await world.desk()
    jobs = await submit_in_order(desk, 3)
    changed = await world.engine.queue.control.set_priority(desk.user.tenant_id, jobs[2].id, 5)
    assert changed.priority == 5
    assert await queue_order(desk) == [jobs[2].id, jobs[0].id, jobs[1].id]


async def test_priority_of_an_ended_job_cannot_be_changed(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await world.complete(leased)
    with pytest.raises(Conflict):
        await world.engine.queue.control.set_priority(desk.user.tenant_id, job.id, 5)


@pytest.mark.parametrize(
    ("moves", "order"),
    [
        ([(2, MoveTo.TOP)], [2, 0, 1, 3]),
        ([(2, MoveTo.UP)], [0, 2, 1, 3]),
        ([(1, MoveTo.DOWN)], [0, 2, 1, 3]),
        ([(0, MoveTo.UP), (0, MoveTo.TOP), (3, MoveTo.DOWN)], [0, 1, 2, 3]),
    ],
    ids=["top", "up", "down", "beyond_either_end"],
)
async def test_job_moves_among_the_jobs_of_its_tenant(
    world: World, moves: list[tuple[int, MoveTo]], order: list[int]
) -> None:
    desk = await world.desk()
    jobs = await submit_in_order(desk, 4)
    for number, to in moves:
        await move(world, jobs[number], to)
    assert await queue_order(desk) == [jobs[n].id for n in order]


async def test_jobs_submitted_at_the_same_instant_can_be_moved(world: World) -> None:
    desk = await world.desk()
    jobs = [await desk.submit() for _ in range(3)]
    await move(world, jobs[2], MoveTo.TOP)
    await move(world, jobs[0], MoveTo.DOWN)
    assert await queue_order(desk) == [jobs[2].id, jobs[1].id, jobs[0].id]


async def test_move_stays_within_the_priority(world: World) -> None:
    desk = await world.desk()
    (urgent,) = await submit_in_order(desk, 1, priority=5)
    jobs = await submit_in_order(desk, 2)
    await move(world, jobs[1], MoveTo.TOP)
    assert await queue_order(desk) == [urgent.id, jobs[1].id, jobs[0].id]


async def test_move_keeps_the_order_of_other_users(world: World) -> None:
    desk = await world.desk()
    other = await world.user()
    queue = []
    for _ in range(3):
        queue += await submit_in_order(desk, 1)
        queue += await submit_in_order(desk, 1, user=other)
    mine, theirs = queue[::2], queue[1::2]
    await move(world, mine[2], MoveTo.TOP)
    order = await queue_order(desk)
    assert [order.index(job.id) for job in theirs] == [1, 3, 5]
    assert [order.index(job.id) for job in mine] == [2, 4, 0]


async def test_paused_job_can_be_moved(world: World) -> None:
    desk = await world.desk()
    jobs = await submit_in_order(desk, 2)
    await pause(world, jobs[1])
    await move(world, jobs[1], MoveTo.TOP)
    await resume(world, jobs[1])
    assert await queue_order(desk) == [jobs[1].id, jobs[0].id]


async def test_leased_job_cannot_be_moved(world: World) -> None:
    desk = await world.desk()
    job, _ = await desk.submit_and_lease()
    with pytest.raises(Conflict, match="waiting"):
        await move(world, job, MoveTo.TOP)


# jobs that are not queued yet


async def test_job_can_be_paused_before_it_is_queued(world: World) -> None:
    desk = await world.desk()
    job = await submit_and_crash(desk)
    await pause(world, job)
    await world.relay()
    assert await status(world, job) == ("paused", "paused")
    assert await world.lease(desk.worker) is None


async def test_job_can_be_moved_before_it_is_queued(world: World) -> None:
    desk = await world.desk()
    lost = await submit_and_crash(desk)
    await world.advance(1)
    job = await desk.submit()
    await world.advance(1)
    await move(world, lost, MoveTo.TOP)
    assert await queue_order(desk) == [lost.id, job.id]


# ownership


async def test_job_of_another_tenant_is_not_found(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    control, other = world.engine.queue.control, await world.user()
    verbs = [
        control.cancel(other.tenant_id, job.id),
        control.pause(other.tenant_id, job.id),
        control.resume(other.tenant_id, job.id),
        control.set_priority(other.tenant_id, job.id, 5),
        control.move(other.tenant_id, job.id, MoveTo.TOP),
        world.engine.jobs.submit.retry(other.tenant_id, job.id),
    ]
    for verb in verbs:
        with pytest.raises(NotFound):
            await verb
    assert await status(world, job) == ("queued", "queued")


async def test_batch_of_another_tenant_is_not_found(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect)
    control, other = world.engine.queue.control, await world.user()
    verbs = [
        control.cancel_batch(other.tenant_id, batch.id),
        control.pause_batch(other.tenant_id, batch.id),
        control.resume_batch(other.tenant_id, batch.id),
        control.set_batch_priority(other.tenant_id, batch.id, 5),
        control.move_batch(other.tenant_id, batch.id, MoveTo.TOP),
        world.engine.jobs.batches.retry_failed(other.tenant_id, batch.id),
        world.engine.jobs.batches.state(other.tenant_id, batch.id),
    ]
    for verb in verbs:
        with pytest.raises(NotFound):
            await verb
    assert len(await queue_order(desk)) == 3


# retry


async def failed_job(desk: Desk, **values: object) -> JobRecord:
    job, leased = await desk.submit_and_lease(**values)
    await desk.world.fail(leased)
    return await desk.world.job(job)


async def retry(world: World, job: JobRecord) -> JobRecord:
    return await world.engine.jobs.submit.retry(job.tenant_id, job.id)


async def test_retry_is_a_new_job_with_its_own_reservation(world: World) -> None:
    desk = await world.desk()
    old = await failed_job(desk, input_payload={"prompt": "a dog"})
    new = await retry(world, old)
    assert new.id != old.id
    assert (new.retry_of, new.status, new.attempts) == (old.id, "queued", 0)
    assert await desk.balance() == 990
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == new.id
    assert leased.graph["2"]["inputs"]["text"] == "a dog"
    await world.complete(leased)
    assert await world.transactions(new) == CONSUMED
    assert await world.transactions(old) == REFUNDED
    assert (await world.job(old)).status == "failed"


async def test_canceled_job_can_be_retried(world: World) -> None:
    desk = await world.desk()
    old = await desk.submit()
    await cancel(world, old)
    assert (await retry(world, old)).status == "queued"


async def test_repeated_and_concurrent_retries_create_one_job(world: World) -> None:
    desk = await world.desk()
    old = await failed_job(desk)
    retries = await asyncio.gather(*(retry(world, old) for _ in range(5)))
    assert {job.id for job in retries} == {(await retry(world, old)).id}
    assert await desk.balance() == 990


async def test_failed_retry_can_be_retried(world: World) -> None:
    desk = await world.desk()
    old = await failed_job(desk)
    second = await retry(world, old)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.fail(leased)
    third = await retry(world, second)
    assert third.retry_of == second.id
    assert (await world.dispatch(third)).status == "queued"


async def test_job_that_has_not_failed_cannot_be_retried(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    with pytest.raises(Conflict, match="queued"):
        await retry(world, job)
    leased = await world.lease(desk.worker)
    assert leased is not None
    with pytest.raises(Conflict, match="processing"):
        await retry(world, job)
    await world.complete(leased)
    with pytest.raises(Conflict, match="completed"):
        await retry(world, job)
    assert await world.count() == 1


async def test_retry_costs_the_full_price(world: World) -> None:
    desk = await world.desk(tokens=10)
    old = await failed_job(desk)
    await desk.submit()
    with pytest.raises(InsufficientTokens):
        await retry(world, old)


async def test_retry_counts_as_an_active_job(world: World) -> None:
    desk = await world.desk()
    old = await failed_job(desk)
    for _ in range(5):
        await desk.submit()
    with pytest.raises(TooManyActiveJobs):
        await retry(world, old)


async def test_retry_stays_in_its_batch(world: World) -> None:
    desk = await world.desk()
    batch = await submit_batch(world, desk.user, desk.effect, 2)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.fail(leased)
    new = await world.engine.jobs.submit.retry(desk.user.tenant_id, leased.dispatch.tenant_job_id)
    assert (new.batch_id, new.item_no) == (batch.id, 0)
    assert (await world.dispatch(new)).batch_id == batch.id
    assert (await world.engine.jobs.batches.state(desk.user.tenant_id, batch.id)).counts == {"queued": 2}


async def test_relay_queues_a_retry_interrupted_by_a_crash(world: World) -> None:
    desk = await world.desk()
    old = await failed_job(desk)
    world.crash_on(TransactionStep.SUBMIT_JOB, Boundary.AFTER_COMMIT)
    with pytest.raises(Crash):
        await retry(world, old)
    await world.relay()
    leased = await world.lease(desk.worker)
    assert leased is not None
    assert leased.dispatch.tenant_job_id == (await retry(world, old)).id


# videos


async def video_of(desk: Desk) -> str:
    return await desk.world.engine.accounts.tenancy.add_video(desk.user, original_file_id=await desk.file())


async def test_video_of_a_canceled_job_fails_with_a_reason(world: World) -> None:
    desk = await world.desk()
    video_id = await video_of(desk)
    await cancel(world, await desk.submit(video_id=video_id))
    video = await world.video(desk.user, video_id)
    assert (video.status, video.processing_details) == ("failed", {"error": "Canceled."})


async def test_video_of_a_paused_job_is_queued(world: World) -> None:
    desk = await world.desk()
    video_id = await video_of(desk)
    job, leased = await desk.submit_and_lease(video_id=video_id)
    assert (await world.video(desk.user, video_id)).status == "processing"
    await pause(world, job, PauseMode.NOW)
    await world.requeue(leased)
    assert (await world.job(job)).status == "paused"
    assert (await world.video(desk.user, video_id)).status == "queued"


async def test_video_has_the_state_of_the_retry(world: World) -> None:
    desk = await world.desk()
    video_id = await video_of(desk)
    new = await retry(world, await failed_job(desk, video_id=video_id))
    video = await world.video(desk.user, video_id)
    assert (video.job_id, video.status, video.processing_details) == (new.id, "queued", None)
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.complete(leased)
    assert (await world.video(desk.user, video_id)).status == "completed"


async def test_late_update_of_a_retried_job_does_not_change_the_video(world: World) -> None:
    desk = await world.desk()
    video_id = await video_of(desk)
    old = await failed_job(desk, video_id=video_id)
    new = await retry(world, old)
    late = JobUpdate(
        tenant_id=old.tenant_id,
        job_id=old.id,
        version=old.dispatch_version + 1,
        event_type=JobEventType.COMPLETED,
        status=JobStatus.COMPLETED,
        at=world.clock.now,
        epoch=2,
        attempts=1,
        priority=0,
    )
    shard = await world.engine.databases.shard_name_of(old.tenant_id)
    await world.engine.outbox.applier.apply(shard, [OutboxEntry(id=0, shard=shard, updates=[late])])
    video = await world.video(desk.user, video_id)
    assert (video.job_id, video.status) == (new.id, "queued")
    assert (await world.job(old)).status == "failed"


async def test_video_has_the_state_of_its_newest_job(world: World) -> None:
    desk = await world.desk()
    video_id = await video_of(desk)
    _, leased = await desk.submit_and_lease(video_id=video_id)
    newer = await desk.submit(video_id=video_id)
    await world.complete(leased)
    video = await world.video(desk.user, video_id)
    assert (video.job_id, video.status) == (newer.id, "queued")
