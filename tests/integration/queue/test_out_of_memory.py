"""A job that ran out of memory is tried on other workers, to learn whether a worker, its GPU size or the job fails."""

import pytest

from comfyrelay.domain.queue.memory import GIB
from comfyrelay.domain.queue.wait_reasons import Reason
from comfyrelay.errors import Fault, OutOfMemory
from comfyrelay.services.hooks import Hooks
from tests.support.full import full_only
from tests.support.world import Desk, World, execute

pytestmark = pytest.mark.both_databases

TEXT = "KSampler (4): there was not enough memory"


async def report_gpu(world: World, worker: str, gib: float, *, name: str = "RTX") -> None:
    world.engine.workers.slots.note(worker, [{"server": "comfyui-1", "name": name, "memory_total": int(gib * GIB)}])
    await world.engine.workers.slots.write_noted()


async def run_out_of_memory(world: World, worker: str, gib: float) -> str:
    leased = await world.lease(worker)
    assert leased is not None
    return await world.fail(
        leased, TEXT, fault=Fault.WORKER, code=OutOfMemory.code, gpu_bytes=int(gib * GIB), worker_id=worker
    )


@pytest.fixture
async def desk(world: World) -> Desk:
    """Return a desk with an 8 GiB GPU, whose users run the server themselves and so see ComfyUI's messages."""
    await world.restart(Hooks(users_are_owners=True))
    desk = await world.desk(concurrency=10)
    await report_gpu(world, desk.worker, 8)
    return desk


@pytest.fixture
async def large(world: World, desk: Desk) -> str:
    worker = await world.worker(desk.fleet, concurrency=10)
    await report_gpu(world, worker, 24)
    return worker


async def test_out_of_memory_job_is_requeued_for_a_larger_gpu(world: World, desk: Desk, large: str) -> None:
    job = await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    found = await world.dispatch(job)
    assert (found.attempts, found.memory_failures) == (0, {desk.worker: 8 * GIB})
    assert found.last_error == "Requeued: needs more memory than a GPU of 8 GiB"
    assert await world.lease(desk.worker) is None
    leased = await world.lease(large)
    assert leased is not None
    # a worker with GPUs of several sizes needs this to choose one
    assert leased.ran_out_bytes == 8 * GIB
    await world.complete(leased)
    assert (await world.job(job)).status == "completed"
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_CONSUME": 0}


async def test_job_fails_after_it_ran_out_of_memory_on_every_worker(world: World, desk: Desk, large: str) -> None:
    largest = await world.worker(desk.fleet)
    await report_gpu(world, largest, 80)
    job = await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    assert await run_out_of_memory(world, large, 24) == "queued"
    assert await world.lease(large) is None
    assert await run_out_of_memory(world, largest, 80) == "failed"
    assert (await world.job(job)).error_detail == (
        f"{TEXT}. It was tried on every GPU that can run it: 8 GiB, 24 GiB, 80 GiB. Use fewer pixels or frames, a "
        "smaller batch or a smaller model, or run it on a GPU with more memory."
    )
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}
    assert len(await world.attempts(job)) == 3


async def test_only_worker_is_not_blocked_for_a_job_that_is_too_large(world: World, desk: Desk) -> None:
    job = await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "failed"
    assert "It was tried on every GPU that can run it: 8 GiB." in ((await world.job(job)).error_message or "")
    assert await desk.balance() == 1000
    await desk.submit()
    assert await world.lease(desk.worker) is not None


async def test_sick_worker_is_blocked_and_its_jobs_complete_elsewhere(world: World, desk: Desk) -> None:
    """One of two equal GPUs always runs out of memory."""
    healthy = await world.worker(desk.fleet, concurrency=10)
    await report_gpu(world, healthy, 8)
    jobs = [await desk.submit() for _ in range(4)]
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    # The sick worker gets neither this job nor others of the workflow.
    assert await world.lease(desk.worker) is None
    for leased in await world.leases(healthy, 10):
        await world.complete(leased)
    assert {(await world.job(job)).status for job in jobs} == {"completed"}
    assert [(await world.dispatch(job)).attempts for job in jobs] == [1, 1, 1, 1]
    (block,) = (await world.engine.workers.views.worker(desk.worker)).blocks
    assert (block.reason, block.is_out_of_memory) == ("ran out of memory on a GPU of 8 GiB", True)
    assert (await world.engine.workers.views.worker(healthy)).blocks == []
    # The block expires.
    await desk.submit()
    await world.advance(14 * 60)
    assert await world.lease(desk.worker) is None
    await world.advance(2 * 60)
    assert await world.lease(desk.worker) is not None


async def test_sick_worker_is_blamed_before_a_larger_gpu_is_used_for_all(world: World, desk: Desk, large: str) -> None:
    """A success on an equal GPU shows that the size is not the cause, so that GPU keeps getting these jobs."""
    healthy = await world.worker(desk.fleet)
    await report_gpu(world, healthy, 8)
    await desk.submit()
    leased = await world.lease(healthy)
    assert leased is not None
    await world.complete(leased)
    for _ in range(2):
        await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    assert await world.lease(desk.worker) is None
    assert await world.lease(healthy) is not None


async def test_job_that_fits_nowhere_unblocks_the_workers_that_tried_it(world: World, desk: Desk) -> None:
    other = await world.worker(desk.fleet, concurrency=10)
    await report_gpu(world, other, 8)
    job = await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    assert await run_out_of_memory(world, other, 8) == "failed"
    assert "every GPU that can run it: 2 × 8 GiB." in ((await world.job(job)).error_message or "")
    for _ in range(2):
        await desk.submit()
    assert await world.lease(desk.worker) is not None
    assert await world.lease(other) is not None


async def test_two_jobs_that_fit_nowhere_do_not_wait_for_each_other(world: World, desk: Desk) -> None:
    other = await world.worker(desk.fleet, concurrency=10)
    await report_gpu(world, other, 8)
    jobs = [await desk.submit() for _ in range(2)]
    first, second = await world.lease(desk.worker), await world.lease(other)
    for leased in (first, second):
        assert leased is not None
        await world.fail(leased, TEXT, fault=Fault.WORKER, code=OutOfMemory.code, gpu_bytes=8 * GIB)
    assert await run_out_of_memory(world, other, 8) == "failed"
    assert {(await world.job(job)).status for job in jobs} == {"failed"}


async def test_smaller_gpu_is_tried_only_if_it_has_completed_the_workflow(world: World, desk: Desk) -> None:
    smaller = await world.worker(desk.fleet)
    await report_gpu(world, smaller, 6)
    await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "failed"
    await desk.submit()
    leased = await world.lease(smaller)
    assert leased is not None
    await world.complete(leased)
    await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    assert await world.lease(desk.worker) is None
    assert await world.lease(smaller) is not None


async def test_job_never_runs_twice_on_a_worker_that_ran_out_of_memory(world: World, desk: Desk) -> None:
    """This also holds after the block of the worker has ended."""
    other = await world.worker(desk.fleet)
    await report_gpu(world, other, 8)
    job = await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    await world.advance(3600)
    await world.engine.workers.workers.record_seen([desk.worker, other])
    assert await world.lease(desk.worker) is None
    later = await desk.submit()
    assert [lease.dispatch.tenant_job_id for lease in await world.leases(desk.worker, 5)] == [later.id]
    assert [lease.dispatch.tenant_job_id for lease in await world.leases(other, 5)] == [job.id]


async def test_job_waits_for_an_absent_worker_that_can_run_it_and_then_fails(world: World, desk: Desk) -> None:
    other = await world.worker(desk.fleet)
    await report_gpu(world, other, 8)
    job = await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    await world.engine.workers.workers.set_draining(other, is_draining=True)
    waiting = await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)
    assert waiting.reason is Reason.MEMORY
    assert waiting.text == "Waiting for another worker: the job ran out of memory on a GPU of 8 GiB."
    # After a break, such as an outage of the server, workers get time to return.
    await world.engine.queue.reaper.run_once()
    await world.advance(601)
    await world.engine.queue.reaper.run_once()
    for _ in range(30):
        assert (await world.job(job)).status == "queued"
        await world.advance(20)
        await world.engine.workers.workers.record_seen([desk.worker, other])
        await world.engine.queue.reaper.run_once()
    failed = await world.job(job)
    assert failed.status == "failed"
    assert (failed.error_message or "").startswith("There was not enough memory. It was tried on every GPU")
    assert await world.transactions(job) == {"JOB_RESERVE": -10, "JOB_REFUND": 10}


async def test_out_of_memory_without_a_code_is_recognized_by_the_message(world: World, desk: Desk) -> None:
    """The original worker reports neither a fault nor its GPU."""
    other = await world.worker(desk.fleet)
    job = await desk.submit()
    leased = await world.lease(desk.worker)
    assert leased is not None
    error = "Traceback ...\ntorch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory."
    assert await world.fail(leased, error) == "queued"
    assert await world.lease(desk.worker) is None
    leased = await world.lease(other)
    assert leased is not None
    assert await world.fail(leased, error) == "failed"
    assert "every GPU that can run it: 8 GiB, unknown size." in ((await world.job(job)).error_message or "")


async def test_sick_worker_is_blocked_even_if_the_healthy_worker_is_absent(world: World, desk: Desk) -> None:
    healthy = await world.worker(desk.fleet)
    await report_gpu(world, healthy, 8)
    await desk.submit()
    leased = await world.lease(healthy)
    assert leased is not None
    await world.complete(leased)
    await world.engine.workers.workers.set_draining(healthy, is_draining=True)
    job = await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    await world.engine.workers.workers.set_draining(healthy, is_draining=False)
    leased = await world.lease(healthy)
    assert leased is not None
    await world.complete(leased)
    assert (await world.job(job)).status == "completed"


async def test_later_jobs_of_the_workflow_skip_the_small_gpu(world: World, desk: Desk, large: str) -> None:
    await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    smaller = await world.worker(desk.fleet)
    await report_gpu(world, smaller, 6)
    jobs = [await desk.submit() for _ in range(2)]
    assert await world.lease(desk.worker) is None
    assert await world.lease(smaller) is None
    assert len(await world.leases(large, 5)) == 3
    assert {(await world.dispatch(job)).worker_id for job in jobs} == {large}


@pytest.mark.parametrize("absence", ["silent", *full_only("draining", "blocked")])
async def test_small_gpu_is_used_if_no_larger_one_is_available(
    world: World, desk: Desk, large: str, absence: str
) -> None:
    """A worker with a larger GPU may never return."""
    first = await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    later = await desk.submit()
    if absence == "silent":
        await world.advance(world.engine.settings.worker_offline_seconds + 1)
        await world.engine.workers.workers.record_seen([desk.worker])
    elif absence == "draining":
        await world.engine.workers.workers.set_draining(large, is_draining=True)
    else:
        leased = await world.lease(large)
        assert leased is not None
        await world.fail(leased, fault=Fault.WORKER)
    assert [lease.dispatch.tenant_job_id for lease in await world.leases(desk.worker, 5)] == [later.id]
    assert (await world.dispatch(first)).status == "queued"


async def test_other_workflows_still_run_on_the_small_gpu(world: World, desk: Desk, large: str) -> None:
    other = await world.workflow(graph={"1": {"class_type": "Other", "inputs": {}}})
    effect = await world.effect(other)
    fleet = await world.fleet(other)
    small = await world.worker(fleet)
    await report_gpu(world, small, 8)
    await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    await world.submit(desk.user, effect)
    leased = await world.lease(small)
    assert leased is not None
    assert leased.ran_out_bytes is None


async def test_worker_without_the_workflow_does_not_count_as_a_larger_gpu(world: World, desk: Desk) -> None:
    elsewhere = await world.worker(await world.fleet(await world.workflow()))
    await report_gpu(world, elsewhere, 80)
    await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "failed"


async def test_workflow_with_the_same_graph_runs_if_no_larger_gpu_serves_it(
    world: World, desk: Desk, large: str
) -> None:
    """The larger GPU serves only the first of two workflows with one graph."""
    same = await world.workflow()
    effect = await world.effect(same)
    small = await world.worker(await world.fleet(desk.workflow, same), concurrency=10)
    await report_gpu(world, small, 8)
    await world.engine.workers.workers.set_draining(desk.worker, is_draining=True)
    await desk.submit()
    await run_out_of_memory(world, small, 8)
    first, second = await desk.submit(), await world.submit(desk.user, effect)
    assert (await world.dispatch(first)).workflow_hash == (await world.dispatch(second)).workflow_hash
    waiting = await world.engine.queue.wait_reasons.of_job(second.tenant_id, second.id)
    assert "larger" not in waiting.text
    assert waiting.reason is not Reason.MEMORY
    assert [lease.dispatch.tenant_job_id for lease in await world.leases(small, 5)] == [second.id]
    assert await world.lease(large) is not None


async def test_pinned_job_does_not_wait_for_a_larger_gpu(world: World, desk: Desk, large: str) -> None:
    job = await desk.submit(only_worker=desk.worker)
    assert await run_out_of_memory(world, desk.worker, 8) == "failed"
    assert ((await world.job(job)).error_message or "").startswith(TEXT)
    # unlike other jobs, a pinned job may run on this worker again
    pinned, other = await desk.submit(only_worker=desk.worker), await desk.submit()
    waiting = await world.engine.queue.wait_reasons.of_job(pinned.tenant_id, pinned.id)
    assert waiting.reason is not Reason.MEMORY
    assert [lease.dispatch.tenant_job_id for lease in await world.leases(desk.worker, 5)] == [pinned.id]
    assert (await world.dispatch(other)).status == "queued"


async def test_job_waits_for_a_starting_machine_with_a_larger_gpu(world: World, desk: Desk) -> None:
    """The GPU of a machine type is known from an absent worker."""
    away = await world.worker(desk.fleet)
    await report_gpu(world, away, 24)
    await _sql(world, "UPDATE workers SET instance_type = 'g6e' WHERE worker_id = :worker", worker=away)
    await world.advance(world.engine.settings.worker_offline_seconds + 1)
    await world.engine.workers.workers.record_seen([desk.worker])
    insert = (
        "INSERT INTO machines (key, fleet_id, instance_type, ordered_at) "
        "SELECT 'm-1', fleet_id, 'g6e', last_seen_at FROM workers WHERE worker_id = :worker"
    )
    await _sql(world, insert, worker=away)
    job = await desk.submit()
    assert await run_out_of_memory(world, desk.worker, 8) == "queued"
    assert await world.lease(desk.worker) is None
    waiting = await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)
    assert waiting.reason is Reason.MEMORY
    assert "more than 8 GiB" in waiting.text
    later = await desk.submit()
    assert await world.lease(desk.worker) is None
    await _sql(world, "UPDATE machines SET ended_at = ordered_at")
    assert [lease.dispatch.tenant_job_id for lease in await world.leases(desk.worker, 5)] == [later.id]


async def test_wait_reason_names_the_larger_gpu(world: World, desk: Desk, large: str) -> None:
    job = await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    waiting = await world.engine.queue.wait_reasons.of_job(job.tenant_id, job.id)
    assert waiting.text == (
        "Waiting for a GPU with more than 8 GiB: the job ran out of memory on one of that size. "
        "Next in the queue; a worker is free."
    )
    assert waiting.workers == 1


async def test_gpu_size_is_learned_from_an_out_of_memory_failure(world: World, desk: Desk, large: str) -> None:
    unreported = await world.worker(desk.fleet)
    await desk.submit()
    await run_out_of_memory(world, unreported, 8)
    assert await world.lease(unreported) is None


async def test_learned_memory_limit_expires_after_a_week(world: World, desk: Desk, large: str) -> None:
    await desk.submit()
    await run_out_of_memory(world, desk.worker, 8)
    await desk.submit()
    await world.advance(6 * 86_400)
    await world.engine.workers.workers.record_seen([desk.worker, large])
    await world.engine.catalogue.availability.delete_unused()
    assert await world.lease(desk.worker) is None
    await world.advance(2 * 86_400)
    await world.engine.catalogue.availability.delete_unused()
    await world.engine.workers.workers.record_seen([desk.worker, large])
    assert await world.lease(desk.worker) is not None


async def test_cancel_request_wins_over_a_requeue(world: World, desk: Desk, large: str) -> None:
    job = await desk.submit()
    leased = await world.lease(desk.worker)
    assert leased is not None
    await world.engine.queue.control.cancel(job.tenant_id, job.id)
    await world.fail(leased, TEXT, fault=Fault.WORKER, code=OutOfMemory.code, gpu_bytes=8 * GIB)
    assert (await world.job(job)).status == "canceled"


async def _sql(world: World, statement: str, **values: str) -> None:
    await execute(world.engine.databases.central, statement, **values)
