"""Jobs that are tried once on each server, and jobs that do not wait for ever for one."""

import asyncio
from pathlib import Path

import pytest

from comfyrelay.errors import ComfyError, Fault, NodeFailed, NotInstalled, RunInterrupted
from comfyrelay.pool import JobFailed, JobRetrying, JobStarted, JobStatus, SmartFailover, SqliteQueue, WorkflowPool
from comfyrelay.sim import Fail, Sim, Stuck
from tests.harness import PATIENCE_SECONDS
from tests.pool.harness import QUICK, invert, ready_pool, until

NOWHERE = "http://127.0.0.1:1"
# A missing module is the fault of the server.
BROKEN = Fail(class_type="ImageInvert", exception_type="ModuleNotFoundError", message="no torch")


def prompts(*sims: Sim) -> list[int]:
    return [each.log.count("POST", "/prompt") for each in sims]


async def test_it_is_tried_once_on_each_server_even_where_nothing_is_blocked() -> None:
    never_blocks = SmartFailover(cooldown_seconds=0)
    async with Sim() as one, Sim() as two, Sim() as three, ready_pool(one, two, three, failover=never_blocks) as pool:
        for sim in (one, two, three):
            sim.misbehave(BROKEN)
        job = await pool.enqueue(invert(), max_attempts=1, one_try_per_server=True, retry_delay=0)
        events = job.events()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ComfyError, match="no torch"):
                await job
        assert prompts(one, two, three) == [1, 1, 1]
        found = [event.type async for event in events if isinstance(event, JobRetrying | JobFailed)]
        assert found == ["job:retrying", "job:retrying", "job:failed"]


async def test_one_that_can_do_it_completes_it_at_the_cost_of_no_attempt() -> None:
    async with Sim() as one, Sim() as two, ready_pool(one, two) as pool:
        one.misbehave(BROKEN)
        # to another server it goes at once
        job = await pool.enqueue(invert(), max_attempts=1, one_try_per_server=True, retry_delay=3600)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await job).files
        assert (job.client_id, job.attempts) == ("b", 1)


async def test_a_server_that_is_away_is_not_waited_for() -> None:
    async with Sim() as sim, WorkflowPool([sim.url, NOWHERE], timings=QUICK) as pool:
        await pool.wait_ready()
        sim.misbehave(BROKEN)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ComfyError, match="no torch"):
                await pool.run(invert(), max_attempts=5, one_try_per_server=True, retry_delay=0)
        assert prompts(sim) == [1]


async def test_the_fault_of_a_job_moves_it_nowhere() -> None:
    async with Sim() as one, Sim() as two, ready_pool(one, two) as pool:
        for sim in (one, two):
            sim.misbehave(Fail(class_type="ImageInvert", exception_type="ValueError", message="wrong"))
        with pytest.raises(NodeFailed) as caught:
            await pool.run(invert(), one_try_per_server=True, retry_delay=0)
        assert caught.value.fault is Fault.JOB
        assert sum(prompts(one, two)) == 1


async def test_a_job_for_which_no_server_is_there_is_given_up() -> None:
    async with WorkflowPool([NOWHERE], timings=QUICK) as pool:
        job = await pool.enqueue(invert(), give_up_after_seconds=0.1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(RunInterrupted, match="No server"):
                await job
        assert (job.status, job.attempts, pool.stats().failed) == (JobStatus.FAILED, 0, 1)


async def test_what_failed_it_first_is_told_of_a_job_that_is_given_up() -> None:
    graph = invert()
    graph["2"]["class_type"] = "NoSuchNode"
    async with Sim() as sim, WorkflowPool([sim.url, NOWHERE], timings=QUICK) as pool:
        await pool.wait_ready()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(NotInstalled):
                await pool.run(graph, give_up_after_seconds=0.1, retry_delay=0)


async def test_a_job_is_given_up_when_the_servers_that_it_waits_for_go() -> None:
    async with Sim() as one, Sim() as two, ready_pool(one, two) as pool:
        one.misbehave(BROKEN)
        stuck = two.misbehave(Stuck(class_type="ImageInvert"))
        busy = await pool.enqueue(invert(1), exclude_clients=["a"], max_attempts=1)
        waiting = await pool.enqueue(
            invert(), max_attempts=1, one_try_per_server=True, retry_delay=0, give_up_after_seconds=0.1
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(waiting.events(), JobRetrying)
            await two.stop()
            stuck.end()
            with pytest.raises(ComfyError, match="no torch"):
                await waiting
            await busy.cancel()


async def test_a_job_that_waits_for_a_busy_server_is_not_given_up() -> None:
    async with Sim() as sim, ready_pool(sim) as pool:
        stuck = sim.misbehave(Stuck(class_type="ImageInvert"))
        first = await pool.enqueue(invert(1))
        events = first.events()
        second = await pool.enqueue(invert(2), give_up_after_seconds=0)
        await until(events, JobStarted)
        assert second.status is JobStatus.QUEUED
        stuck.end()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await first).files
            assert (await second).files


async def test_a_canceled_job_is_not_given_up_any_more() -> None:
    async with WorkflowPool([NOWHERE], timings=QUICK) as pool:
        canceled = await pool.enqueue(invert(), give_up_after_seconds=0.05)
        assert await canceled.cancel()
        other = await pool.enqueue(invert(), give_up_after_seconds=0.1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(RunInterrupted):
                await other
        assert (canceled.status, pool.stats().failed) == (JobStatus.CANCELED, 1)


async def test_a_job_from_an_earlier_life_of_the_queue_is_given_up_too(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with WorkflowPool([NOWHERE], queue=SqliteQueue(path), timings=QUICK) as pool:
        job_id = (await pool.enqueue(invert(), give_up_after_seconds=0.5)).id
    async with (
        WorkflowPool([NOWHERE], queue=SqliteQueue(path), timings=QUICK) as pool,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        with pytest.raises(RunInterrupted):
            await pool.job(job_id)
