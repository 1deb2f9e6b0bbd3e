"""Wait reasons: one reason, in terms that a user understands."""

import contextlib
from datetime import timedelta

import pytest

from comfyrelay.domain.queue.states import PauseMode, Stage
from comfyrelay.domain.queue.wait_reasons import Reason, Waiting
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import DatabaseUnavailable, Fault, NotFound
from tests.support.world import Desk, World, submit_batch


async def why(world: World, job: JobRecord) -> Waiting:
    return await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)


async def keep_busy(desk: Desk, *, seconds: float | None = None) -> None:
    """Give the worker a job; with `seconds`, it has also completed one that took that long."""
    if seconds is not None:
        _, leased = await desk.leased()
        await desk.world.advance(seconds)
        await desk.world.complete(leased)
    await desk.leased()


async def test_job_that_a_free_worker_will_take_next_is_starting(world: World) -> None:
    desk = await world.desk()
    waiting = await why(world, await desk.submit())
    assert (waiting.reason, waiting.position, waiting.workers) == (Reason.STARTING, 1, 1)
    assert waiting.text == "Next in the queue; a worker is free."


async def test_job_without_a_worker_for_its_workflow_waits_for_one(world: World) -> None:
    effect, user = await world.effect(), await world.user()
    waiting = await why(world, await world.submit(user, effect))
    assert waiting.reason is Reason.NO_WORKER
    assert waiting.text == "No online worker has this workflow."


async def test_worker_of_another_stage_does_not_count(world: World) -> None:
    workflow = await world.workflow()
    fleet = await world.fleet(workflow, stage=Stage.STAGING)
    await world.worker(fleet, stage=Stage.STAGING)
    job = await world.submit(await world.user(), await world.effect(workflow))
    assert (await why(world, job)).reason is Reason.NO_WORKER


async def test_worker_that_fell_silent_does_not_count(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    await world.advance(world.engine.settings.worker_stale_seconds + 1)
    assert (await why(world, job)).reason is Reason.NO_WORKER
    await world.engine.workers.workers.record_seen([desk.worker])
    assert (await why(world, job)).reason is Reason.STARTING


async def test_worker_that_drains_or_was_revoked_does_not_count(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    await world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
    assert (await why(world, job)).reason is Reason.NO_WORKER
    await world.engine.workers.workers.set_draining(desk.worker, is_draining=False)
    await world.engine.workers.workers.set_approved(desk.worker, is_approved=False)
    assert (await why(world, job)).reason is Reason.NO_WORKER


async def test_job_whose_workflow_is_switched_off_has_no_worker(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    await world.engine.catalogue.workflows.set_active(desk.workflow.slug, is_active=False)
    assert (await why(world, job)).reason is Reason.NO_WORKER


async def test_job_on_which_every_worker_failed_waits_until_the_first_may_try_again(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.leased()
    await world.fail(leased, fault=Fault.WORKER)
    waiting = await why(world, job)
    assert (waiting.reason, waiting.workers) == (Reason.BLOCKED, 1)
    assert waiting.until == world.clock.now + timedelta(seconds=60)
    assert waiting.expected_start_seconds == 60
    assert waiting.text == "Every worker with this workflow failed on it recently. The next attempt is at 12:01:00 UTC."
    await world.advance(60)
    assert (await why(world, job)).reason is Reason.STARTING


async def test_job_is_not_blocked_while_another_worker_may_take_it(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.leased()
    await world.fail(leased, fault=Fault.WORKER)
    await world.worker(desk.fleet)
    waiting = await why(world, job)
    assert (waiting.reason, waiting.workers) == (Reason.STARTING, 1)


async def test_job_behind_others_knows_its_place_and_when_it_may_start(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk, seconds=30)
    jobs = []
    for _ in range(3):
        await world.advance(1)
        jobs.append(await desk.submit())
    waiting = [await why(world, job) for job in jobs]
    assert [each.reason for each in waiting] == [Reason.BUSY] * 3
    assert [each.position for each in waiting] == [1, 2, 3]
    assert [each.expected_start_seconds for each in waiting] == [30, 60, 90]
    assert waiting[1].text == "Position 2. The worker is busy. Expected to start in about 60 s."


async def test_without_experience_there_is_a_place_but_no_guess(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk)
    waiting = await why(world, await desk.submit())
    assert (waiting.reason, waiting.position, waiting.expected_start_seconds) == (Reason.BUSY, 1, None)
    assert waiting.text == "Position 1. The worker is busy."


async def test_more_workers_shorten_the_wait(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk, seconds=30)
    second = await world.worker(desk.fleet)
    await desk.submit()
    assert await world.lease(second) is not None
    await desk.submit()
    await world.advance(1)
    waiting = await why(world, await desk.submit())
    assert (waiting.position, waiting.workers, waiting.expected_start_seconds) == (2, 2, 30)
    assert waiting.text == "Position 2. Both workers are busy. Expected to start in about 30 s."


async def test_higher_priority_and_other_workflows_of_the_same_workers_are_ahead(world: World) -> None:
    one, other, elsewhere = [await world.workflow() for _ in range(3)]
    worker = await world.worker(await world.fleet(one, other))
    user = await world.user()
    await world.submit(user, await world.effect(one))
    assert await world.lease(worker) is not None
    for workflow in (other, elsewhere):
        await world.submit(user, await world.effect(workflow))
    await world.advance(1)
    job = await world.submit(user, await world.effect(one))
    assert (await why(world, job)).position == 2
    await world.submit(user, await world.effect(one), priority=5)
    assert (await why(world, job)).position == 3


async def test_delayed_and_paused_jobs_are_not_ahead(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk)
    await desk.submit(delay_seconds=60)
    paused = await desk.submit()
    await world.engine.queue.control.pause(desk.user.tenant_id, paused.id)
    await world.advance(1)
    assert (await why(world, await desk.submit())).position == 1


async def test_batch_item_counts_the_items_before_it(world: World) -> None:
    desk = await world.desk(concurrency=1)
    await keep_busy(desk)
    await submit_batch(world, desk.user, desk.effect, 20)
    await world.advance(1)
    assert (await why(world, await desk.submit())).position == 21


async def test_paused_job_waits_to_be_resumed(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    await world.engine.queue.control.pause(desk.user.tenant_id, job.id, mode=PauseMode.NOW)
    waiting = await why(world, job)
    assert (waiting.reason, waiting.text) == (Reason.PAUSED, "Paused. Resume the job to run it.")


async def test_delayed_job_waits_for_its_time(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit(delay_seconds=600)
    waiting = await why(world, job)
    assert waiting.reason is Reason.NOT_BEFORE
    assert waiting.until == world.clock.now + timedelta(seconds=600)
    assert waiting.text == "Starts at 12:10:00 UTC at the earliest, in 10 min."
    await world.advance(600)
    await world.engine.workers.workers.record_seen([desk.worker])
    assert (await why(world, job)).reason is Reason.STARTING


async def test_job_of_an_unreachable_shard_waits_for_it(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    shard = await world.engine.databases.shard_name_of(desk.user.tenant_id)
    with contextlib.suppress(DatabaseUnavailable), world.engine.databases.watched(shard):
        raise DatabaseUnavailable(name=shard)
    waiting = await why(world, job)
    assert waiting.reason is Reason.SHARD_DOWN
    assert waiting.text == "The database that stores this job is unreachable right now."
    with world.engine.databases.watched(shard):
        pass
    assert (await why(world, job)).reason is Reason.STARTING


async def test_database_that_is_down_does_not_hold_up_the_jobs_of_another(world: World) -> None:
    desk = await world.desk()
    down = "a" if await world.engine.databases.shard_name_of(desk.user.tenant_id) == "b" else "b"
    with contextlib.suppress(DatabaseUnavailable), world.engine.databases.watched(down):
        raise DatabaseUnavailable(name=down)
    assert (await why(world, await desk.submit())).reason is Reason.STARTING


async def test_job_that_runs_or_has_ended_is_not_waiting(world: World) -> None:
    desk = await world.desk()
    job, leased = await desk.leased()
    waiting = await why(world, job)
    assert (waiting.reason, waiting.text) == (Reason.NOT_WAITING, "Not waiting: the job is processing.")
    await world.complete(leased)
    waiting = await why(world, job)
    assert (waiting.reason, waiting.text) == (Reason.NOT_WAITING, "Not waiting: the job is completed.")


async def test_prefetched_job_is_next_after_the_running_one(world: World) -> None:
    desk = await world.desk()
    await keep_busy(desk, seconds=60)
    job = await desk.submit()
    assert await world.lease(desk.worker, prefetch=1) is not None
    await world.advance(20)
    waiting = await why(world, job)
    assert (waiting.reason, waiting.position) == (Reason.BUSY, 1)
    assert waiting.expected_start_seconds == pytest.approx(40, abs=1)
    assert waiting.text == "Position 1. Its worker is busy. Expected to start in about 40 s."


async def test_job_of_another_tenant_is_not_found(world: World) -> None:
    desk = await world.desk()
    job = await desk.submit()
    other = await world.user()
    with pytest.raises(NotFound):
        await world.engine.queue.wait_reasons.of_job(other.tenant_id, job.id)
