"""The next job waits in ComfyUI's own queue while a short job runs there; nothing else changes."""

import httpx
import pytest

from comfyrelay.comfyui.pool import JobAccepted, JobStarted, PoolJob, PoolJobStatus, SmartFailover, WorkflowPool
from comfyrelay.simulator import Fail, OutOfMemory, Simulator, Slow, Stuck
from tests.support.pool import invert, plain, ready_pool, until
from tests.support.world import PATIENCE_SECONDS

LONG = 60.0


async def prompts(simulator: Simulator) -> tuple[int, int]:
    """Return the numbers of running and pending prompts in ComfyUI."""
    async with httpx.AsyncClient(base_url=simulator.url) as http:
        queue = (await http.get("/queue")).json()
    return len(queue["queue_running"]), len(queue["queue_pending"])


async def start_blocked_job(pool: WorkflowPool, color: int = 1) -> PoolJob:
    """Start a job that runs until the test ends the simulator's `Stuck` fault."""
    job = await pool.enqueue(invert(color), retry_delay=0)
    await until(job.events(), JobStarted)
    return job


async def enqueue_next_job(pool: WorkflowPool, color: int = 2) -> PoolJob:
    """Enqueue a job; return it once it waits on the server."""
    job = await pool.enqueue(invert(color), retry_delay=0)
    accepted = await until(job.events(), JobAccepted)
    assert accepted.position == 1
    return job


async def test_next_job_waits_in_the_server_queue_during_a_run(simulator: Simulator) -> None:
    async with ready_pool(simulator, ahead_seconds=LONG) as pool:
        await pool.run(invert(0))
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        first, second, third = (
            await start_blocked_job(pool),
            await enqueue_next_job(pool),
            await pool.enqueue(invert(3)),
        )
        # Only one job is sent ahead, so urgent jobs can pass the rest.
        assert await prompts(simulator) == (1, 1)
        assert third.status is PoolJobStatus.QUEUED
        stuck.end()
        for job in (first, second, third):
            await job
        assert [job.attempts for job in (first, second, third)] == [1, 1, 1]


async def test_unknown_or_long_job_is_not_sent_ahead(simulator: Simulator) -> None:
    async with ready_pool(simulator, ahead_seconds=0.01) as pool:
        slow = simulator.misbehave(Slow(class_type="ImageInvert", seconds=0.05, times=1))
        await pool.run(invert(0))
        assert slow.happened == 1
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        jobs = [await start_blocked_job(pool), await pool.enqueue(invert(2)), await pool.enqueue(plain())]
        assert await prompts(simulator) == (1, 0)
        assert pool.stats().queued == 2
        stuck.end()
        for job in jobs:
            await job


async def test_prefetch_does_not_pass_the_next_job_in_the_queue(simulator: Simulator) -> None:
    async with ready_pool(simulator, ahead_seconds=LONG) as pool:
        await pool.run(invert(0))
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        first = await start_blocked_job(pool)
        urgent = await pool.enqueue(plain(), priority=5)
        later = await pool.enqueue(invert(2))
        assert await prompts(simulator) == (1, 0)
        stuck.end()
        for job in (first, urgent, later):
            await job
        assert urgent.started_at is not None
        assert later.started_at is not None
        assert urgent.started_at <= later.started_at


async def test_cancelling_the_waiting_job_does_not_affect_the_running_one(simulator: Simulator) -> None:
    async with ready_pool(simulator, ahead_seconds=LONG) as pool:
        await pool.run(invert(0))
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        first, second = await start_blocked_job(pool), await enqueue_next_job(pool)
        assert await second.cancel()
        assert await prompts(simulator) == (1, 0)
        stuck.end()
        await first
        assert first.attempts == 1


async def test_paused_server_gets_no_job_ahead(simulator: Simulator) -> None:
    async with ready_pool(simulator, ahead_seconds=LONG) as pool:
        await pool.run(invert(0))
        stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
        first = await start_blocked_job(pool)
        pool.pause_server("a")
        second = await pool.enqueue(invert(2))
        assert (second.status, await prompts(simulator)) == (PoolJobStatus.QUEUED, (1, 0))
        pool.pause_server("a", is_paused=False)
        await until(second.events(), JobAccepted)
        stuck.end()
        await first
        await second


async def test_server_restart_costs_the_waiting_job_no_attempt(simulator: Simulator) -> None:
    async with ready_pool(simulator, ahead_seconds=LONG, failover=SmartFailover(cooldown_seconds=0)) as pool:
        await pool.run(invert(0))
        simulator.misbehave(Slow(class_type="EmptyImage", seconds=PATIENCE_SECONDS, steps=1000, times=1))
        first, second = await start_blocked_job(pool), await enqueue_next_job(pool)
        await simulator.restart()
        await first
        await second
        assert (first.attempts, second.attempts) == (2, 1)


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [
        (Fail(message="CUDA error: an illegal memory access was encountered", times=2), 2),
        # A retry with the GPU to itself costs no attempt.
        (OutOfMemory(times=2), 1),
    ],
)
async def test_leftovers_of_one_run_do_not_fail_the_next(
    simulator: Simulator, fault: Fail | OutOfMemory, attempts: int
) -> None:
    async with ready_pool(simulator, ahead_seconds=LONG, failover=SmartFailover(cooldown_seconds=0)) as pool:
        await pool.run(invert(0))
        stuck = simulator.misbehave(Stuck(class_type="EmptyImage", times=1))
        failing = simulator.misbehave(fault)
        first, second = await start_blocked_job(pool), await enqueue_next_job(pool)
        stuck.end()
        await first
        await second
        assert failing.happened == 2
        assert (first.attempts, second.attempts) == (attempts, 1)
