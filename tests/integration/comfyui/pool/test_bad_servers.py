"""Some servers lack models of other servers, or never end a run."""

import asyncio

import pytest

from comfyrelay.comfyui import RunTimeouts
from comfyrelay.comfyui.pool import SmartFailover, WorkflowPool
from comfyrelay.errors import Conflict, NotInstalled
from comfyrelay.simulator import MissingModel, Simulator, Stuck
from tests.support.pool import QUICK, invert, plain
from tests.support.world import PATIENCE_SECONDS

RARE = {
    "8": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "rare.safetensors"}},
    "9": {"class_type": "PreviewAny", "inputs": {"source": ["8", 0]}},
}


async def test_server_with_a_stuck_run_gets_no_other_job(simulator: Simulator) -> None:
    stuck = simulator.misbehave(Stuck(class_type="ImageInvert"))
    async with Simulator() as other, WorkflowPool({"stuck": simulator.url, "fine": other.url}, timings=QUICK) as pool:
        await pool.wait_ready()
        limits = RunTimeouts(node_seconds=0.2)
        first = await pool.enqueue(
            invert(),
            preferred_clients=["stuck"],
            timeouts=limits,
            retry_delay=0,
            exclude_clients=["fine"],
            max_attempts=1,
        )
        with pytest.raises(Exception, match="no progress"):
            await first
        # Another workflow, which is not blocked on this server.
        jobs = [await pool.enqueue(plain(color), preferred_clients=["stuck"]) for color in range(4)]
        await asyncio.gather(*jobs)
        assert {job.client_id for job in jobs} == {"fine"}
        stuck.end()


async def test_job_runs_on_the_only_server_with_its_model() -> None:
    models = {"checkpoints": ["rare.safetensors"]}
    async with (
        Simulator(models=models) as a,
        Simulator(models=models) as b,
        Simulator(models=models) as c,
        Simulator(models=models) as d,
    ):
        for simulator in (a, b, c):
            simulator.misbehave(MissingModel(model="rare.safetensors"))
        async with WorkflowPool([a.url, b.url, c.url, d.url], timings=QUICK) as pool:
            await pool.wait_ready()
            job = await pool.enqueue(RARE, max_attempts=2, retry_delay=0)
            await job
            assert job.client_id == d.url


async def test_server_can_be_added_to_an_unopened_pool_but_not_to_a_closed_one(simulator: Simulator) -> None:
    pool = WorkflowPool([], timings=QUICK)
    pool.add_server(simulator.url)
    async with pool:
        assert (await pool.run(plain())).files
    with pytest.raises(Conflict, match="closed"):
        pool.add_server(simulator.url)


async def test_model_missing_on_every_server_fails_the_job() -> None:
    never_blocks = SmartFailover(cooldown_seconds=0)
    async with (
        Simulator() as one,
        Simulator() as other,
        WorkflowPool([one.url, other.url], timings=QUICK, failover=never_blocks) as pool,
    ):
        await pool.wait_ready()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(NotInstalled):
                await pool.run(RARE, max_attempts=1, retry_delay=0)
        assert [simulator.log.count("POST", "/prompt") for simulator in (one, other)] == [1, 1]
