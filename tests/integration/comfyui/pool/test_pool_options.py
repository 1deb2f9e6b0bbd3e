"""Options of a pool apply to all of its jobs, and callers may choose job ids."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from comfyrelay.comfyui import RunTimeouts, workflow_hash
from comfyrelay.comfyui.pool import Affinity, JobStarted, PoolJobStatus, SqliteQueue, WorkflowPool
from comfyrelay.errors import IdempotencyConflict, InvalidInput, QueueFull, RunTimedOut
from comfyrelay.simulator import Simulator, Stuck
from tests.support.gpu_pool import SMALL, picture
from tests.support.pool import QUICK, invert, plain, ready_pool, until

NOWHERE = "http://127.0.0.1:1"


async def test_affinity_of_the_pool_chooses_the_servers_of_a_workflow(simulators: list[Simulator]) -> None:
    affinity: dict[str, Affinity] = {
        workflow_hash(invert()): {"preferred_clients": ["c"]},
        workflow_hash(plain()): {"exclude_clients": ["a", "b"]},
    }
    async with ready_pool(*simulators, affinity=affinity) as pool:

        async def servers(graph: Any, **options: Any) -> set[str | None]:
            jobs = []
            for _ in range(3):
                jobs.append(await pool.enqueue(graph, **options))
                await jobs[-1]
            return {job.client_id for job in jobs}

        assert await servers(invert()) == {"c"}
        assert await servers(plain()) == {"c"}
        # Options of a job override the options of the pool.
        assert await servers(invert(), preferred_clients=["b"]) == {"b"}
        assert await servers(plain(), exclude_clients=["b", "c"]) == {"a"}
        # A removed server is no longer preferred.
        await pool.remove_server("c")
        assert await servers(invert()) <= {"a", "b"}


async def test_affinity_with_an_unknown_server_or_option_is_refused(simulator: Simulator) -> None:
    pool = WorkflowPool({"a": simulator.url}, affinity={"w": {"preferred_clients": ["a", "x"]}})
    with pytest.raises(InvalidInput, match="affinity of workflow w names x, which the pool does not have; it has a"):
        await pool.open()
    with pytest.raises(InvalidInput, match="unknown option preferred"):
        WorkflowPool([simulator.url], affinity=cast(Any, {"w": {"preferred": ["a"]}}))


async def test_defaults_apply_unless_the_job_has_the_option(simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    defaults = {"timeouts": RunTimeouts(node_seconds=0.2), "max_attempts": 1, "metadata": {"by": "pool"}}
    async with ready_pool(simulator, defaults=defaults) as pool:
        job = await pool.enqueue(invert())
        with pytest.raises(RunTimedOut):
            await job
        assert (job.attempts, job.metadata) == (1, {"by": "pool"})
        stuck.end()
        other = await pool.enqueue(plain(), metadata={"by": "job"})
        await other
        assert other.metadata == {"by": "job"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"defaults": {"max_attempts": 0}}, "max_attempts"),
        ({"defaults": {"timeout": 3}}, "unknown option timeout"),
        ({"defaults": {"job_id": "x"}}, "unknown option job_id"),
        ({"max_queue_size": 0}, "max_queue_size"),
    ],
)
async def test_invalid_options_of_the_pool_are_refused_at_once(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        WorkflowPool([NOWHERE], **options)
    assert why in f"{caught.value.detail} {caught.value.errors}"


async def test_full_queue_refuses_jobs_until_one_has_started(simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    async with ready_pool(simulator, max_queue_size=2) as pool:
        running = await pool.enqueue(invert(0))
        await until(running.events(), JobStarted)
        # Jobs that are being enqueued concurrently count as well.
        results = await asyncio.gather(*(pool.enqueue(invert(color)) for color in range(1, 5)), return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["PoolJob", "PoolJob", "QueueFull", "QueueFull"]
        with pytest.raises(QueueFull, match=r"2 jobs are waiting, and max_queue_size is 2"):
            await pool.run(invert())
        stuck.end()
        await running
        await asyncio.gather(*(job for job in pool.jobs.values()))
        assert (await pool.run(invert())).files


async def test_same_job_id_is_queued_once(pool: WorkflowPool, simulator: Simulator) -> None:
    first, second = await asyncio.gather(*(pool.enqueue(invert(), job_id="order-7") for _ in range(2)))
    assert first is second
    assert first.id == "order-7"
    await first
    # The id of a finished job is known as well.
    assert await pool.enqueue(json.dumps(invert()), job_id="order-7", priority=5) is first
    assert simulator.log.prompts_queued == 1
    with pytest.raises(IdempotencyConflict, match="order-7"):
        await pool.enqueue(invert(8), job_id="order-7")


async def test_refused_job_id_can_be_used_again(pool: WorkflowPool) -> None:
    with pytest.raises(InvalidInput):
        await pool.enqueue(invert(), job_id="x", preferred_clients=["nobody"])
    assert (await pool.run(invert(), job_id="x")).files


async def test_job_id_and_random_seeds_survive_a_restart(tmp_path: Path) -> None:
    graph = picture(-1)
    async with WorkflowPool([NOWHERE], timings=QUICK, queue=SqliteQueue(tmp_path / "queue.db")) as pool:
        seeds = (await pool.enqueue(graph, job_id="mine")).seeds
    async with Simulator(models={"checkpoints": [SMALL]}) as simulator:
        async with ready_pool(simulator, queue=SqliteQueue(tmp_path / "queue.db")) as pool:
            job = await pool.enqueue(graph, job_id="mine")
            await job
            assert job.seeds == seeds
            assert seeds.keys() == {"4.seed"}
        async with ready_pool(simulator, queue=SqliteQueue(tmp_path / "queue.db")) as pool:
            again = await pool.enqueue(graph, job_id="mine")
            assert (again.status, again.seeds) == (PoolJobStatus.COMPLETED, seeds)
            assert (await again).node_seconds.keys() == set(graph)
            with pytest.raises(IdempotencyConflict):
                await pool.enqueue(picture(1), job_id="mine")
        assert simulator.log.prompts_queued == 1


async def test_result_has_the_duration_of_each_node_that_ran(pool: WorkflowPool) -> None:
    first = await pool.run(invert())
    assert first.node_seconds.keys() == {"1", "2", "3"}
    assert all(seconds >= 0 for seconds in first.node_seconds.values())
    # Cached nodes do not run.
    assert (await pool.run(invert())).node_seconds.keys() == {"3"}
