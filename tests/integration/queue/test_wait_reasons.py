"""Every waiting job has exactly one reason, which a user understands."""

import contextlib
from datetime import timedelta

import pytest

from comfyrelay.domain.queue.states import PauseMode, Stage
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import DatabaseUnavailable, Fault, NotFound
from comfyrelay.services.jobs.views.units import UnitFilter
from tests.support.world import Desk, World, submit_batch


async def wait_reason(world: World, job: JobRecord) -> Waiting:
    return await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)


async def keep_busy(desk: Desk, *, seconds: float | None = None) -> None:
    """Lease a job; with `seconds`, first complete a job of that duration."""
    if seconds is not None:
        _, leased = await desk.submit_and_lease()
        await desk.world.advance(seconds)
        await desk.world.complete(leased)
    await desk.submit_and_lease()


async def test_next_job_of_a_free_worker_is_starting(world: World) -> None:
    desk = await world.desk()
    waiting = await wait_reason(world, await desk.submit())
    assert (waiting.reason, waiting.position, waiting.workers) == (Reason.STARTING, 1, 1)
    assert waiting.text == "Next in the queue; a worker is free."


async def test_job_without_a_worker_for_its_workflow_has_no_worker(world: World) -> None:
    effect, user = await world.effect(), await world.user()
    waiting = await wait_reason(world, await world.submit(user, effect))
    assert waiting.reason is Reason.NO_WORKER
    assert waiting.text == "No online worker has this workflow."


async def test_worker_of_another_stage_does_not_count(world: World) -> None:
    workflow = await world.workflow()
    fleet = await world.fleet(workflow, stage=Stage.STAGING)
    await world.worker(fleet, stage=Stage.STAGING)
    job = await world.submit(await world.user(), await world.effect(workflow))
    assert (await wait_reason(world, job)).reason is Reason.NO_WORKER


@pytest.mark.both_databases
async def test_silent_draining_and_revoked_workers_do_not_count(world: World) -> None:
    desk = await world.desk()
    job, workers = await desk.submit(), world.engine.workers.workers
    await world.advance(world.engine.settings.worker_offline_seconds + 1)
    assert (await wait_reason(world, job)).reason is Reason.NO_WORKER
    await workers.record_seen([desk.worker])
    assert (await wait_reason(world, job)).reason is Reason.STARTING
    await workers.set_draining(desk.worker, is_draining=True)
    assert (await wait_reason(world, job)).reason is Reason.NO_WORKER
    await workers.set_draining(desk.worker, is_draining=False)
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=False)
    assert (await wait_reason(world, job)).reason is Reason.NO_WORKER
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=True)
    await workers.set_approved(desk.worker, is_approved=False)
    assert (await wait_reason(world, job)).reason is Reason.NO_WORKER


@pytest.mark.both_databases
async def test_job_is_blocked_if_every_worker_failed_on_it(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    await world.fail(leased, fault=Fault.WORKER)
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.workers) == (Reason.BLOCKED, 1)
    assert waiting.until == world.clock.now + timedelta(seconds=60)
    assert waiting.expected_start_seconds == 60
    assert waiting.text == "Every worker with this workflow failed on it recently. The next attempt is at 12:01:00 UTC."
    await world.worker(desk.fleet)
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.workers) == (Reason.STARTING, 1)
    await world.advance(60)
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.workers) == (Reason.STARTING, 2)


@pytest.mark.both_databases
async def test_busy_reason_has_position_and_expected_start(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk, seconds=30)
    jobs = []
    for _ in range(3):
        await world.advance(1)
        jobs.append(await desk.submit())
    waiting = [await wait_reason(world, job) for job in jobs]
    assert [reason.reason for reason in waiting] == [Reason.BUSY] * 3
    assert [reason.position for reason in waiting] == [1, 2, 3]
    # Of the usual 30 s, 27 s are left for the running job.
    assert [reason.expected_start_seconds for reason in waiting] == [27, 57, 87]
    assert waiting[1].text == "Position 2. The worker is busy. Expected to start in about 57 s."


async def test_position_without_known_durations_has_no_expected_start(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk)
    waiting = await wait_reason(world, await desk.submit())
    assert (waiting.reason, waiting.position, waiting.expected_start_seconds) == (Reason.BUSY, 1, None)
    assert waiting.text == "Position 1. The worker is busy."


async def test_more_workers_shorten_the_expected_wait(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk, seconds=30)
    second = await world.worker(desk.fleet)
    await desk.submit()
    assert await world.lease(second) is not None
    await desk.submit()
    await world.advance(1)
    waiting = await wait_reason(world, await desk.submit())
    assert (waiting.position, waiting.workers, waiting.expected_start_seconds) == (2, 2, 29)
    assert waiting.text == "Position 2. Both workers are busy. Expected to start in about 29 s."


@pytest.mark.both_databases
async def test_position_counts_higher_priorities_and_other_workflows(world: World) -> None:
    one, other, elsewhere = [await world.workflow() for _ in range(3)]
    worker = await world.worker(await world.fleet(one, other))
    user = await world.user()
    await world.submit(user, await world.effect(one))
    assert await world.lease(worker) is not None
    for workflow in (other, elsewhere):
        await world.submit(user, await world.effect(workflow))
    await world.advance(1)
    job = await world.submit(user, await world.effect(one))
    assert (await wait_reason(world, job)).position == 2
    await world.submit(user, await world.effect(one), priority=5)
    assert (await wait_reason(world, job)).position == 3


async def test_position_ignores_delayed_and_paused_jobs(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk)
    await desk.submit(delay_seconds=60)
    paused = await desk.submit()
    await world.engine.queue.control.pause(desk.user.tenant_id, paused.id)
    await world.advance(1)
    assert (await wait_reason(world, await desk.submit())).position == 1


async def test_position_counts_batch_items(world: World) -> None:
    desk = await world.desk(concurrency=1)
    await keep_busy(desk)
    await submit_batch(world, desk.user, desk.effect, 20)
    await world.advance(1)
    assert (await wait_reason(world, await desk.submit())).position == 21


async def test_paused_job_waits_for_a_resume(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    await world.engine.queue.control.pause(desk.user.tenant_id, job.id, mode=PauseMode.NOW)
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.text) == (Reason.PAUSED, "Paused. Resume the job to run it.")


async def test_delayed_job_waits_for_its_start_time(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit(delay_seconds=600)
    waiting = await wait_reason(world, job)
    assert waiting.reason is Reason.NOT_BEFORE
    assert waiting.until == world.clock.now + timedelta(seconds=600)
    assert waiting.text == "Starts at 12:10:00 UTC at the earliest, in 10 min."
    await world.advance(600)
    await world.engine.workers.workers.record_seen([desk.worker])
    assert (await wait_reason(world, job)).reason is Reason.STARTING


async def test_only_jobs_of_an_unreachable_shard_wait_for_it(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    shard = await world.engine.databases.shard_name_of(desk.user.tenant_id)
    with contextlib.suppress(DatabaseUnavailable), world.engine.databases.watched(shard):
        raise DatabaseUnavailable(name=shard)
    waiting = await wait_reason(world, job)
    assert waiting.reason is Reason.SHARD_DOWN
    other = await world.submit(await world.user(shard={"a": "b", "b": "a"}[shard]), desk.effect)
    assert (await wait_reason(world, other)).reason is not Reason.SHARD_DOWN
    assert waiting.text == "The database that stores this job is unreachable right now."
    with world.engine.databases.watched(shard):
        pass
    assert (await wait_reason(world, job)).reason is Reason.STARTING


async def test_running_or_ended_job_is_not_waiting(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.submit_and_lease()
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.text) == (Reason.NOT_WAITING, "Not waiting: the job is processing.")
    await world.complete(leased)
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.text) == (Reason.NOT_WAITING, "Not waiting: the job is completed.")


async def test_prefetched_job_starts_after_the_running_job(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk, seconds=60)
    job = await desk.submit()
    assert await world.lease(desk.worker, prefetch=1) is not None
    await world.advance(20)
    waiting = await wait_reason(world, job)
    assert (waiting.reason, waiting.position) == (Reason.BUSY, 1)
    assert waiting.expected_start_seconds == pytest.approx(40, abs=1)
    assert waiting.text == "Position 1. Its worker is busy. Expected to start in about 40 s."


@pytest.mark.both_databases
class TestBatchAndJobBehindIt:
    async def durations(self, world: World, *seconds: float) -> list[Desk]:
        """Return desks that share a worker and whose workflows usually take this many seconds."""
        workflows = [await world.workflow() for _ in seconds]
        fleet = await world.fleet(*workflows)
        worker, user = await world.worker(fleet), await world.user()
        desks = []
        for workflow, usual in zip(workflows, seconds, strict=True):
            effect = await world.effect(workflow)
            desks.append(Desk(world=world, user=user, workflow=workflow, effect=effect, fleet=fleet, worker=worker))
            _, leased = await desks[-1].submit_and_lease()
            await world.advance(usual)
            await world.complete(leased)
        # The worker was silent for too long to count as online.
        await world.engine.workers.workers.record_seen([worker])
        return desks

    async def test_batch_ends_when_the_job_behind_it_starts(self, world: World) -> None:
        slow, fast = await self.durations(world, 600, 10)
        batch = await submit_batch(world, slow.user, slow.effect, 3)
        assert await world.lease(slow.worker) is not None
        prefetched = await world.lease(slow.worker, prefetch=1)
        assert prefetched is not None
        await world.advance(1)
        behind, last = await fast.submit(), await fast.submit()
        await world.advance(59)
        state = await world.engine.jobs.batches.state(slow.user.tenant_id, batch.id)
        # The first item has 540 s left.
        assert state.expected_seconds == 540 + 2 * 600
        waiting = [await wait_reason(world, job) for job in (behind, last)]
        assert [found.expected_start_seconds for found in waiting] == [1740, 1750]
        # The prefetched item is at position 1, and the last item at position 2.
        assert [found.position for found in waiting] == [3, 4]
        # The estimates are the same for several jobs as for each job alone.
        together = await world.engine.queue.wait_reasons.of_jobs(behind.tenant_id, [behind.id, last.id])
        assert [together[job.id] for job in (behind, last)] == waiting
        entries = (await world.engine.jobs.units.page(slow.user.tenant_id, UnitFilter(), limit=10)).items
        [entry] = [entry for entry in entries if entry.is_batch]
        assert entry.expected_seconds == 1740
        assert [entry.starts_in_seconds for entry in entries if entry.id in {behind.id, last.id}] == [1740, 1750]

    async def test_running_last_item_ends_when_the_job_behind_it_starts(self, world: World) -> None:
        [slow] = await self.durations(world, 600)
        batch = await submit_batch(world, slow.user, slow.effect, 1)
        assert await world.lease(slow.worker) is not None
        behind = await slow.submit()
        await world.advance(60)
        state = await world.engine.jobs.batches.state(slow.user.tenant_id, batch.id)
        assert state.expected_seconds == (await wait_reason(world, behind)).expected_start_seconds == 540

    async def test_batch_of_a_paused_queue_has_no_expected_end(self, world: World) -> None:
        [slow] = await self.durations(world, 600)
        batch = await submit_batch(world, slow.user, slow.effect, 2)
        assert await world.lease(slow.worker) is not None
        await world.engine.queue.pauses.pause(slow.user.tenant_id)
        assert (await world.engine.jobs.batches.state(slow.user.tenant_id, batch.id)).expected_seconds is None

    async def test_prefetched_item_counts_as_queued(self, world: World) -> None:
        [slow] = await self.durations(world, 600)
        batch = await submit_batch(world, slow.user, slow.effect, 3)
        assert await world.lease(slow.worker) is not None
        assert await world.lease(slow.worker, prefetch=1) is not None
        await world.wait_for_deliveries()
        batches = world.engine.jobs.batches
        listed = (await batches.page(slow.user.tenant_id, limit=5)).items
        for state in (await batches.state(slow.user.tenant_id, batch.id), *listed):
            assert (state.counts["processing"], state.counts["queued"], state.fetched) == (1, 2, 1)


async def test_job_of_another_tenant_is_not_found(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    other = await world.user()
    with pytest.raises(NotFound):
        await world.engine.queue.wait_reasons.of_job(other.tenant_id, job.id)
