"""Servers on one GPU keep different models loaded; pinned models remain loaded, and identical jobs run once."""

import asyncio
from pathlib import Path

import pytest

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool import JobCompleted, JobStarted
from comfyrelay.errors import ComfyError
from comfyrelay.simulator import Fail, Stuck
from comfyrelay.simulator.gpu import GIB
from comfyrelay.simulator.running.cache import Cache
from tests.support.gpu_pool import LARGE, SMALL, picture, shared_gpu
from tests.support.pool import until

MODELS = (SMALL, LARGE)


async def test_alternating_workflows_keep_their_own_servers(tmp_path: Path) -> None:
    # Each process holds one model, and the GPU holds both.
    async with shared_gpu(tmp_path, 2, model_bytes=11 * GIB) as (pool, simulators, _):
        for seed in range(10):
            await pool.run(picture(seed, model=MODELS[seed % 2]))
        # The second workflow was unknown at first, so it had the GPU to itself once.
        assert [simulator.log.models_loaded for simulator in simulators] == [2, 1]


async def test_most_recent_server_of_a_workflow_gets_it_again(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=11 * GIB) as (pool, simulators, _):
        await pool.run(picture(0, model=SMALL), preferred_clients=["a"])
        await pool.run(picture(1, model=LARGE), preferred_clients=["b"])
        # Each server has run both workflows, and then holds the model that it ran last.
        await pool.run(picture(2, model=LARGE), preferred_clients=["a"])
        await pool.run(picture(3, model=SMALL), preferred_clients=["b"])
        before = sum(simulator.log.models_loaded for simulator in simulators)
        for seed in range(4, 10):
            await pool.run(picture(seed, model=MODELS[seed % 2]))
        assert sum(simulator.log.models_loaded for simulator in simulators) == before


async def test_pinned_workflow_keeps_its_server_while_another_can_have_the_rest(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=9 * GIB) as (pool, simulators, _):
        await pool.run(picture(0), keep_loaded=True, preferred_clients=["a"])
        await pool.run(picture(0, model=LARGE), preferred_clients=["b"])
        stuck = simulators[1].misbehave(Stuck(class_type="KSampler"))
        events = pool.events(JobStarted)
        # Even a job that prefers the pinned server waits for the other.
        others = [await pool.enqueue(picture(seed, model=LARGE), preferred_clients=["a"]) for seed in (1, 2)]
        started = await until(events, JobStarted)
        assert started.client_id == "b"
        own = await pool.enqueue(picture(3), keep_loaded=True)
        await own
        assert own.client_id == "a"
        assert (pool.stats().running, pool.stats().queued) == (1, 1)
        stuck.end()
        await asyncio.gather(*others)
        assert {other.client_id for other in others} == {"b"}
        assert [simulator.log.models_loaded for simulator in simulators] == [1, 1]


async def test_job_gets_the_pinned_server_when_the_other_is_removed(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=9 * GIB) as (pool, simulators, _):
        await pool.run(picture(0), keep_loaded=True, preferred_clients=["a"])
        simulators[1].misbehave(Stuck(class_type="KSampler"))
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed, model=LARGE)) for seed in (1, 2)]
        assert (await until(events, JobStarted)).client_id == "b"
        await pool.remove_server("b")
        await asyncio.gather(*jobs)
        assert {job.client_id for job in jobs} == {"a"}


async def test_pin_ends_with_the_next_job_of_its_server_without_one(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, _, _):
        await pool.run(picture(0), keep_loaded=True, preferred_clients=["a"])
        await pool.run(picture(1), keep_loaded=True, preferred_clients=["b"])
        other = await pool.enqueue(picture(2, model=LARGE), preferred_clients=["a"])
        await other
        assert other.client_id == "b"
        await pool.run(picture(3))
        other = await pool.enqueue(picture(4, model=LARGE), preferred_clients=["a"])
        await other
        assert other.client_id == "a"


async def test_pinned_model_is_unloaded_last(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 3, model_bytes=7 * GIB) as (pool, simulators, _):
        await pool.run(picture(0), keep_loaded=True, preferred_clients=["a"])
        await pool.run(picture(1, model=LARGE), preferred_clients=["b"])
        # Next to both models, 9 GiB minus the margin are free, so one of them must be unloaded.
        await pool.run(picture(2, model=LARGE), preferred_clients=["c"], exclude_clients=["b"], memory_bytes=12 * GIB)
        assert [simulator.log.count("POST", "/free") for simulator in simulators] == [0, 1, 0]
        # The pinned model is unloaded for a job that does not fit next to it.
        await pool.run(picture(3, model=LARGE), preferred_clients=["c"], exclude_clients=["b"], memory_bytes=22 * GIB)
        assert simulators[0].log.count("POST", "/free") == 1


async def test_identical_graphs_run_once_and_are_then_served_from_the_cache(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, simulators, _):
        await pool.run(picture(0))
        before = sum(simulator.log.nodes_executed for simulator in simulators)
        jobs = [await pool.enqueue(picture(1), cache_key="one") for _ in range(6)]
        await asyncio.gather(*jobs)
        assert len({job.client_id for job in jobs}) == 1
        # Nodes that depend on the seed run once; the saver node runs for each job.
        assert sum(simulator.log.nodes_executed for simulator in simulators) - before == 3 + 5
        # A later job is served from the cache as well.
        again = await pool.enqueue(picture(1), cache_key="one", preferred_clients=[])
        await again
        assert again.client_id == jobs[0].client_id


async def test_job_does_not_wait_for_an_uncached_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, simulators, _):
        await pool.run(picture(0))
        with monkeypatch.context() as patch:
            # The same happens with `--cache-none` or a node with random output.
            patch.setattr(Cache, "get", lambda _self, _node_id: None)
            for _ in range(2):
                await pool.run(picture(1), cache_key="one")
            stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
            events = pool.events(JobStarted)
            jobs = [await pool.enqueue(picture(2), cache_key="two") for _ in range(2)]
            for _ in jobs:
                await until(events, JobStarted)
            assert pool.stats().running == 2
            for handle in stuck:
                handle.end()
            await asyncio.gather(*jobs)
        # A cached result is waited for again.
        for simulator in simulators:
            simulator.behave()
        for _ in range(2):
            await pool.run(picture(3), cache_key="three", preferred_clients=["a"])
        jobs = [await pool.enqueue(picture(4), cache_key="four") for _ in range(4)]
        await asyncio.gather(*jobs)
        assert len({job.client_id for job in jobs}) == 1


async def test_different_graphs_run_in_parallel(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, simulators, _):
        await pool.run(picture(0))
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed), cache_key=f"key {seed}") for seed in (1, 2)]
        for _ in jobs:
            await until(events, JobStarted)
        assert pool.stats().running == 2
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)


async def test_waiting_duplicate_runs_if_the_first_run_fails_or_loses_its_server(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, simulators, _):
        await pool.run(picture(0))
        for simulator in simulators:
            simulator.misbehave(Fail(class_type="KSampler", times=1))
        jobs = [await pool.enqueue(picture(1), cache_key="one", max_attempts=1) for _ in range(2)]
        first, second = await asyncio.gather(*jobs, return_exceptions=True)
        assert isinstance(first, ComfyError)
        assert isinstance(second, RunResult)
        for simulator in simulators:
            simulator.behave()
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted, JobCompleted)
        jobs = [await pool.enqueue(picture(2), cache_key="two") for _ in range(2)]
        started = await until(events, JobStarted)
        assert (pool.stats().running, pool.stats().queued) == (1, 1)
        assert started.client_id is not None
        await pool.remove_server(started.client_id)
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)


@pytest.mark.parametrize("key", [None, "same"])
async def test_job_without_a_cache_key_waits_for_no_other(tmp_path: Path, key: str | None) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, simulators, _):
        await pool.run(picture(0))
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(1), cache_key=key) for _ in range(2)]
        await until(events, JobStarted)
        for _ in range(20):
            await asyncio.sleep(0)
        assert pool.stats().running == (2 if key is None else 1)
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)
