"""Closing a pool ends, drains or keeps its jobs."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from comfyrelay.comfyui.pool import (
    JobCompleted,
    JobOutcome,
    JobRetrying,
    JobStarted,
    MemoryQueue,
    PoolJobStatus,
    SqliteQueue,
    Ticket,
    WorkflowPool,
)
from comfyrelay.comfyui.pool.jobs import StopReason
from comfyrelay.errors import Canceled, ComfyError, Conflict
from comfyrelay.simulator import Fail, Simulator, Slow, Stuck
from tests.support.pool import invert, plain, ready_pool, until
from tests.support.world import PATIENCE_SECONDS

ENDLESS = Slow(class_type="ImageInvert", seconds=600, steps=60_000)


async def test_closing_cancels_unfinished_jobs(simulator: Simulator) -> None:
    simulator.misbehave(ENDLESS)
    async with ready_pool(simulator) as pool:
        events = pool.events("job:canceled", "job:completed")
        done = await pool.enqueue(plain())
        await done
        running = await pool.enqueue(invert())
        waiting = await pool.enqueue(plain())
        await until(running.events(), JobStarted)
        parked = asyncio.gather(running, waiting, return_exceptions=True)
        await asyncio.sleep(0)
    assert [type(error) for error in await parked] == [Canceled, Canceled]
    assert (running.status, waiting.status, done.status) == (
        PoolJobStatus.CANCELED,
        PoolJobStatus.CANCELED,
        PoolJobStatus.COMPLETED,
    )
    received = [(event.type, event.job_id) async for event in events]
    assert received[0] == ("job:completed", done.id)
    assert set(received[1:]) == {("job:canceled", running.id), ("job:canceled", waiting.id)}
    # The run was interrupted on the server.
    assert simulator.log.interrupts == 1


async def test_draining_pool_finishes_its_jobs_and_accepts_no_new_one(simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    async with ready_pool(simulator) as pool:
        jobs = [await pool.enqueue(graph) for graph in (invert(), plain(), plain(1))]
        await until(jobs[0].events(), JobStarted)
        closing = asyncio.create_task(pool.close(drain=True))
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            await pool.enqueue(plain())
        assert not closing.done()
        stuck.end()
        await closing
        assert [job.status for job in jobs] == [PoolJobStatus.COMPLETED] * 3


@pytest.mark.parametrize("durable", [False, True])
async def test_closing_at_once_ends_a_drain(simulator: Simulator, tmp_path: Path, durable: bool) -> None:
    simulator.misbehave(ENDLESS)
    queue = SqliteQueue(tmp_path / "queue.db") if durable else MemoryQueue()
    async with ready_pool(simulator, queue=queue) as pool:
        job = await pool.enqueue(invert())
        await until(job.events(), JobStarted)
        draining = asyncio.create_task(pool.close(drain=True))
        await asyncio.sleep(0)
        await pool.close()
        await draining
        assert job.status is (PoolJobStatus.QUEUED if durable else PoolJobStatus.CANCELED)


async def test_closed_pool_can_be_closed_again_and_accepts_no_job(simulator: Simulator) -> None:
    async with ready_pool(simulator) as pool:
        await pool.run(plain())
    await pool.close()
    await pool.close(drain=True)
    with pytest.raises(Conflict):
        await pool.enqueue(plain())


async def test_stopping_a_run_that_has_just_ended_does_nothing(simulator: Simulator) -> None:
    """A run may end after a closing pool has listed it and before the pool stops it."""
    async with ready_pool(simulator) as pool:
        pool.pause_server("a")
        job = await pool.enqueue(plain())
        await pool._runner.stop(pool._registry.record(job.id), StopReason.PUT_BACK)
        pool.pause_server("a", is_paused=False)
        await job


async def test_unopened_pool_accepts_no_job(simulator: Simulator) -> None:
    pool = WorkflowPool([simulator.url])
    with pytest.raises(Conflict):
        await pool.enqueue(plain())
    await pool.close()


async def test_callback_may_close_the_pool(simulator: Simulator) -> None:
    async with ready_pool(simulator) as pool:
        closed = asyncio.Event()

        async def close(_event: JobCompleted) -> None:
            await pool.close()
            closed.set()

        pool.on(JobCompleted, close)
        await pool.run(plain())
        await asyncio.wait_for(closed.wait(), PATIENCE_SECONDS)


class FullDisk(MemoryQueue):
    """A queue that can no longer write to its disk."""

    async def begin(self, ticket: Ticket) -> None:
        raise OSError(28, "No space left on device")

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        raise OSError(28, "No space left on device")


async def test_failing_queue_fails_the_job_and_blocks_no_server(simulator: Simulator) -> None:
    async with ready_pool(simulator, queue=FullDisk()) as pool:
        job = await pool.enqueue(plain())
        with capture_logs() as logs, pytest.raises(ComfyError, match="OSError"):
            await job
        assert [entry["event"] for entry in logs] == ["pool.attempt_failed", "pool.settle_failed"]
        client = pool.stats().clients["a"]
        assert (client.running, client.failed, client.blocked_hashes) == (0, 0, frozenset())


async def test_durable_queue_keeps_unfinished_jobs(simulator: Simulator, tmp_path: Path) -> None:
    slow = simulator.misbehave(ENDLESS)
    path = tmp_path / "queue.db"
    async with ready_pool(simulator, queue=SqliteQueue(path)) as pool:
        done = await pool.enqueue(plain(), metadata={"user": "u"})
        await done
        running = await pool.enqueue(invert(), priority=-1)
        await until(running.events(), JobStarted)
        waiting = await pool.enqueue(plain(1), priority=-2)
        parked = asyncio.gather(running, waiting, return_exceptions=True)
        await asyncio.sleep(0)
    assert [str(error) for error in await parked] == [
        "The pool was closed; the job remains in its queue for the next start."
    ] * 2
    assert running.status is waiting.status is PoolJobStatus.QUEUED
    slow.end()
    async with ready_pool(simulator, queue=SqliteQueue(path)) as pool:
        again = [pool.job(job.id) for job in (done, running, waiting)]
        for job in again:
            assert (await job).files
        # An attempt stopped by a closing pool does not count.
        assert [job.attempts for job in again] == [1, 1, 1]
        assert again[0].metadata == {"user": "u"}
        assert again[0].finished_at == done.finished_at
        assert again[1].started_at is not None
        assert again[2].started_at is not None
        assert again[1].started_at < again[2].started_at
        first_file = (await again[0]).file
        assert await again[0].download(first_file, tmp_path / "out.png") > 0


async def test_failed_attempts_are_counted_across_a_restart(simulator: Simulator, tmp_path: Path) -> None:
    simulator.misbehave(Fail(class_type="ImageInvert", message="No space left on device", times=1))
    path = tmp_path / "queue.db"
    async with ready_pool(simulator, queue=SqliteQueue(path)) as pool:
        job = await pool.enqueue(invert(), retry_delay=600)
        await until(job.events(), JobRetrying)
    async with ready_pool(simulator, queue=SqliteQueue(path)) as pool:
        # The block survives a restart.
        assert pool.unblock("a", job.workflow_hash)
        await pool.job(job.id)
        assert pool.job(job.id).attempts == 2


async def test_queue_in_use_by_another_pool_is_refused(simulator: Simulator, tmp_path: Path) -> None:
    async with ready_pool(simulator, queue=SqliteQueue(tmp_path / "queue.db")) as pool:
        with pytest.raises(Conflict, match="another pool"):
            async with WorkflowPool([simulator.url], queue=SqliteQueue(tmp_path / "queue.db")):
                raise AssertionError("It must not open.")
        await pool.run(plain())


async def test_durable_queue_forgets_old_finished_jobs(simulator: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with ready_pool(simulator, queue=SqliteQueue(path), keep_finished=2) as pool:
        jobs = [await pool.enqueue(plain(number)) for number in range(4)]
        for job in jobs:
            await job
    async with ready_pool(simulator, queue=SqliteQueue(path)) as pool:
        assert list(pool.jobs) == [job.id for job in jobs[2:]]


async def test_cancelled_enqueue_stores_no_job(simulator: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with WorkflowPool([simulator.url], queue=SqliteQueue(path)) as pool:
        call = asyncio.create_task(pool.enqueue(plain()))
        for _ in range(3):
            await asyncio.sleep(0)
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(pool.jobs) == 0
    async with WorkflowPool([simulator.url], queue=SqliteQueue(path)) as pool:
        assert len(pool.jobs) == 0
