"""A process with a durable queue is killed, and another process continues its jobs."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from comfyrelay.comfyui.pool import PoolJobStatus, SqliteQueue, WorkflowPool
from comfyrelay.errors import Conflict, RunLost
from comfyrelay.simulator import Simulator, Slow
from tests.support.pool import ready_pool

# This program enqueues jobs, one of them endless, and prints a line once the queue has them.
PROGRAM = """
import asyncio, sys
from comfyrelay.comfyui.pool import JobCompleted, JobStarted, SqliteQueue, WorkflowPool
from tests.support.pool import invert, plain

async def main(url, path, attempts):
    async with WorkflowPool({"a": url}, queue=SqliteQueue(path)) as pool:
        events = pool.events(JobStarted)
        first = await pool.enqueue(plain(0), metadata={"number": 0})
        await first
        await anext(events)
        print(first.id, flush=True)
        endless = await pool.enqueue(invert(), metadata={"number": 1}, max_attempts=int(attempts))
        print(endless.id, flush=True)
        for number in range(2, 50):
            job = await pool.enqueue(plain(number), metadata={"number": number}, priority=number)
            print(job.id, flush=True)
            if number == 2:
                assert (await anext(events)).job_id == endless.id
        print("running", flush=True)
        await endless

asyncio.run(main(*sys.argv[1:]))
"""


async def killed_process(simulator: Simulator, path: Path, *, attempts: int = 3) -> list[str]:
    """Start the program, kill it while a job runs, and return the ids of the jobs it had enqueued."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, simulator.url, str(path), str(attempts), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    ids = []
    while (line := (await process.stdout.readline()).decode().strip()) != "running":
        assert line, "The program ended early."
        ids.append(line)
    with pytest.raises(Conflict):
        await WorkflowPool([simulator.url], queue=SqliteQueue(path)).open()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    return ids


@pytest.mark.journey
async def test_no_job_is_lost_when_the_process_is_killed(simulator: Simulator, tmp_path: Path) -> None:
    slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60_000))
    ids = await killed_process(simulator, tmp_path / "queue.db")
    assert len(ids) == 50
    slow.end()
    # the dead process left this run on the server
    async with ready_pool(simulator, queue=SqliteQueue(tmp_path / "queue.db")) as pool:
        assert [pool.job(job_id).status for job_id in ids[:2]] == [PoolJobStatus.COMPLETED, PoolJobStatus.QUEUED]
        await simulator.restart()
        results = [await pool.job(job_id) for job_id in ids]
        jobs = [pool.job(job_id) for job_id in ids]
        assert all(result.files for result in results)
        assert [job.metadata["number"] for job in jobs] == list(range(50))
        # the interrupted attempt counts
        assert [job.attempts for job in jobs] == [1, 2, *[1] * 48]
        waited = sorted(jobs[2:], key=lambda job: job.started_at or job.created_at)
        assert [job.priority for job in waited] == list(range(49, 1, -1))
    async with ready_pool(simulator, queue=SqliteQueue(tmp_path / "queue.db")) as pool:
        assert [await pool.job(job_id) for job_id in ids] == results


async def test_job_that_kills_its_process_uses_up_its_attempts(simulator: Simulator, tmp_path: Path) -> None:
    simulator.misbehave(Slow(class_type="ImageInvert", seconds=600, steps=60_000))
    ids = await killed_process(simulator, tmp_path / "queue.db", attempts=1)
    async with WorkflowPool([simulator.url], queue=SqliteQueue(tmp_path / "queue.db")) as pool:
        job = pool.job(ids[1])
        with pytest.raises(RunLost, match="process exited"):
            await job
        assert (job.status, job.attempts) == (PoolJobStatus.FAILED, 1)
        assert pool.stats().queued == 48
