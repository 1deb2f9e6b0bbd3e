"""A job that ran out of memory is retried alone on its GPU, then on each GPU that may suffice, and only then fails."""

import asyncio
from pathlib import Path

import pytest

from comfyrelay.comfyui.pool import ClientBlockedWorkflow, JobRetrying, JobStarted, PoolJobStatus, SmartFailover
from comfyrelay.comfyui.pool.gpu_memory import CROWDED_SECONDS
from comfyrelay.errors import OutOfMemory
from comfyrelay.simulator import OutOfMemory as RunsOut
from comfyrelay.simulator import SimulatedGpuOptions, Simulator, Stuck
from comfyrelay.simulator.gpu import GIB, SimulatedGpu
from tests.support.gpu_pool import LARGE, SMALL, gpus, picture, shared_gpu
from tests.support.pool import invert, plain, ready_pool, until


async def test_other_models_on_the_gpu_are_unloaded_and_the_retry_is_free(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 3) as (pool, simulators, _):
        await pool.run(picture(0), preferred_clients=["a"])
        await pool.run(picture(1), preferred_clients=["b"])
        # The job is known to need 9 GiB, more than the 6 GiB that the other servers leave free.
        simulators[2].misbehave(RunsOut(class_type="KSampler", times=1))
        job = await pool.enqueue(picture(2), preferred_clients=["c"], max_attempts=1)
        retrying = await until(job.events(), JobRetrying)
        await job
        assert (retrying.delay_seconds, retrying.attempt, job.attempts) == (0.0, 1, 1)
        # The two idle servers unloaded their models; the first had already done so once for the known need.
        assert [simulator.log.count("POST", "/free") for simulator in simulators[:2]] == [2, 1]
        assert pool.stats().clients["c"].blocked_hashes == frozenset()


async def test_no_other_job_starts_on_the_gpu_during_a_run_alone(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB) as (pool, simulators, _):
        await pool.run(picture(0))
        await pool.run(picture(0, model=LARGE))
        for simulator in simulators:
            simulator.misbehave(RunsOut(class_type="KSampler", times=1))
        job = await pool.enqueue(picture(1), priority=1, preferred_clients=["a"], exclude_clients=["b"])
        events = job.events()
        await until(events, JobRetrying)
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        await until(events, JobStarted)
        other = await pool.enqueue(picture(2, model=LARGE))
        await pool.enqueue(picture(3, model=LARGE))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (pool.stats().running, pool.stats().queued) == (1, 2)
        for handle in stuck:
            handle.end()
        simulators[1].behave()
        await asyncio.gather(job, other)


async def test_job_moves_from_a_too_small_gpu_to_a_larger_one(tmp_path: Path) -> None:
    async with gpus(tmp_path, 8, 24) as (pool, simulators):
        job = await pool.enqueue(picture(0), preferred_clients=["a"], max_attempts=1)
        await job
        assert (job.client_id, job.attempts) == ("b", 1)
        assert simulators[0].log.prompts_queued == 2
        # The small GPU is not tried again while the larger one exists.
        again = [await pool.enqueue(picture(seed), preferred_clients=["a"]) for seed in (1, 2)]
        await asyncio.gather(*again)
        assert {job.client_id for job in again} == {"b"}
        assert simulators[0].log.prompts_queued == 2


async def test_small_gpu_is_tried_again_once_the_larger_is_removed(tmp_path: Path) -> None:
    async with gpus(tmp_path, 8, 24) as (pool, simulators):
        await pool.run(picture(0), preferred_clients=["a"])
        await pool.remove_server("b")
        with pytest.raises(OutOfMemory):
            await pool.run(picture(1))
        assert simulators[0].log.prompts_queued == 4


async def test_job_fails_after_one_larger_gpu_and_the_error_names_its_size(tmp_path: Path) -> None:
    async with gpus(tmp_path, 4, 6, 8) as (pool, simulators):
        job = await pool.enqueue(picture(0), preferred_clients=["a"], exclude_clients=["b"])
        with pytest.raises(OutOfMemory) as failed:
            await job
        assert failed.value.gpu_bytes == 8 * GIB
        assert [simulator.log.prompts_queued for simulator in simulators] == [2, 0, 1]
        # The two runs on the small GPU cost no attempt.
        assert job.attempts == 1


async def test_job_that_fits_on_no_gpu_fails_and_blocks_none(tmp_path: Path) -> None:
    async with gpus(tmp_path, 8, 8, 6, cooldown_seconds=60) as (pool, simulators):
        # The small GPU cannot have enough memory.
        job = await pool.enqueue(picture(0), preferred_clients=["a"], max_attempts=1)
        blocked = pool.events(ClientBlockedWorkflow)
        with pytest.raises(OutOfMemory) as failed:
            await job
        assert failed.value.gpu_bytes == 8 * GIB
        assert [simulator.log.prompts_queued for simulator in simulators] == [2, 1, 0]
        # The first server was blocked until the second failed as well.
        assert (await anext(blocked)).client_id == "a"
        assert [client.blocks for client in pool.stats().clients.values()] == [{}, {}, {}]


async def test_job_too_large_for_gpus_that_completed_its_workflow_blocks_none(tmp_path: Path) -> None:
    async with gpus(tmp_path, 10, 10, cooldown_seconds=60) as (pool, simulators):
        for seed, name in enumerate("ab"):
            await pool.run(picture(seed), preferred_clients=[name])
        for simulator in simulators:
            simulator.misbehave(RunsOut(class_type="KSampler"))
        job = await pool.enqueue(picture(7), preferred_clients=["a"], max_attempts=5)
        with pytest.raises(OutOfMemory):
            await job
        assert [simulator.log.prompts_queued for simulator in simulators] == [3, 2]
        assert [client.blocks for client in pool.stats().clients.values()] == [{}, {}]


async def test_smaller_gpu_is_not_tried_after_a_larger_one(tmp_path: Path) -> None:
    async with gpus(tmp_path, 8, 6) as (pool, simulators):
        with pytest.raises(OutOfMemory):
            await pool.run(picture(0), preferred_clients=["a"])
        assert [simulator.log.prompts_queued for simulator in simulators] == [2, 0]


async def test_smaller_gpu_that_completed_the_workflow_gets_the_job(tmp_path: Path) -> None:
    async with gpus(tmp_path, 24, 10, cooldown_seconds=60) as (pool, simulators):
        await pool.run(picture(0), preferred_clients=["b"])
        simulators[0].misbehave(RunsOut(class_type="KSampler"))
        job = await pool.enqueue(picture(1), preferred_clients=["a"], max_attempts=1)
        await job
        assert (job.client_id, job.attempts) == ("b", 1)
        assert pool.stats().clients["a"].blocked_hashes == {job.workflow_hash}
        assert not pool.memory.is_oversized(job.workflow_hash)


async def test_size_is_too_small_once_each_gpu_of_that_size_failed(tmp_path: Path) -> None:
    async with gpus(tmp_path, 8, 8, 24, cooldown_seconds=60) as (pool, simulators):
        job = await pool.enqueue(picture(0), preferred_clients=["a", "b"], max_attempts=1)
        await job
        assert (job.client_id, job.attempts) == ("c", 1)
        assert sorted(simulator.log.prompts_queued for simulator in simulators) == [1, 1, 2]
        assert pool.memory.is_oversized(job.workflow_hash)
        assert [client.blocks for client in pool.stats().clients.values()] == [{}, {}, {}]


async def test_size_is_not_too_small_if_only_one_gpu_of_that_size_failed(tmp_path: Path) -> None:
    async with gpus(tmp_path, 10, 10, 24, cooldown_seconds=60) as (pool, simulators):
        simulators[0].misbehave(RunsOut(class_type="KSampler"))
        job = await pool.enqueue(picture(0), preferred_clients=["a"], exclude_clients=["b"])
        events = job.events()
        await job
        # The excluded server does not count, so the size seems to be the cause.
        assert (job.client_id, pool.memory.is_oversized(job.workflow_hash)) == ("c", True)
        assert [event.attempt async for event in events if isinstance(event, JobRetrying)] == [1, 1]
        # A completed run on b shows that size is not the cause.
        await pool.run(picture(1), exclude_clients=["a", "c"])
        assert not pool.memory.is_oversized(job.workflow_hash)
        again = await pool.enqueue(picture(2), preferred_clients=["a"])
        await again
        assert again.client_id != "a"
        assert pool.stats().clients["a"].blocked_hashes == {job.workflow_hash}
        assert not pool.memory.is_oversized(job.workflow_hash)


@pytest.mark.parametrize("arguments", [[], ["--cpu"]], ids=["equal GPUs", "unknown memory"])
async def test_server_that_alone_runs_out_of_memory_is_blocked_and_fails_no_job(arguments: list[str]) -> None:
    async with Simulator(arguments=arguments) as sick, Simulator(arguments=arguments) as fine:
        sick.misbehave(RunsOut(class_type="ImageInvert"))
        async with ready_pool(sick, fine) as pool:
            first = await pool.enqueue(invert(), preferred_clients=["a"], max_attempts=1)
            await first
            assert (first.client_id, first.attempts) == ("b", 1)
            assert pool.stats().clients["a"].blocked_hashes == {first.workflow_hash}
            tried = sick.log.prompts_queued
            jobs = [await pool.enqueue(invert(color), preferred_clients=["a"], max_attempts=1) for color in range(4)]
            await asyncio.gather(*jobs)
            assert {job.client_id for job in jobs} == {"b"}
            # Other workflows still run there.
            other = await pool.enqueue(plain(), preferred_clients=["a"])
            await other
            assert (sick.log.prompts_queued, other.client_id) == (tried + 1, "a")


async def test_job_waits_for_the_gpu_that_completed_the_workflow() -> None:
    failover = SmartFailover()
    async with Simulator() as sick, Simulator() as fine, ready_pool(sick, fine, failover=failover) as pool:
        done = await pool.enqueue(invert(), preferred_clients=["b"])
        await done
        sick.misbehave(RunsOut(class_type="ImageInvert"))
        failover.record_failure("b", done.workflow_hash, OutOfMemory())
        job = await pool.enqueue(invert(8), preferred_clients=["a"], retry_delay=0)
        events = job.events()
        assert [(await until(events, JobRetrying)).attempt for _ in range(2)] == [1, 1]
        assert job.status is not PoolJobStatus.FAILED
        assert pool.stats().clients["a"].blocked_hashes == {job.workflow_hash}
        pool.unblock("b", job.workflow_hash)
        await job
        assert (job.client_id, job.attempts) == ("b", 2)


async def test_server_with_unnamed_gpu_unloads_its_models_and_retries(simulator: Simulator) -> None:
    simulator.misbehave(RunsOut(class_type="ImageInvert", times=1))
    async with ready_pool(simulator) as pool:
        job = await pool.enqueue(invert(), max_attempts=1)
        await job
        assert job.attempts == 1
        assert simulator.log.count("POST", "/free") == 1
        await pool.run(plain())


async def test_memory_of_other_programs_does_not_count_against_the_gpu(tmp_path: Path) -> None:
    """The GPU of 24 GiB is large enough for the model, but another program uses 16 GiB of it."""
    async with gpus(tmp_path, 24, 25) as (pool, simulators):
        other = SimulatedGpu(SimulatedGpuOptions(folder=tmp_path / "gpu-0", context_bytes=16 * GIB))
        other.open()
        job = await pool.enqueue(picture(0), preferred_clients=["a"], one_attempt_per_server=True)
        await job
        # The job ran next to the program, then alone, then on a GPU with enough memory.
        assert [simulator.log.prompts_queued for simulator in simulators] == [2, 1]
        with pytest.raises(OutOfMemory) as failed:
            await pool.run(picture(1), exclude_clients=["b"], one_attempt_per_server=True)
        other.close()
        assert failed.value.gpu_bytes is None
        assert failed.value.others_bytes == 15 * GIB
        assert failed.value.retry_after_seconds == CROWDED_SECONDS
        # Once that program has stopped, the GPU is used normally again.
        assert not pool.memory.is_oversized(job.workflow_hash)
        await pool.run(picture(2), preferred_clients=["a"], exclude_clients=["b"])


async def test_job_waits_briefly_for_memory_used_by_other_programs(tmp_path: Path) -> None:
    async with gpus(tmp_path, 24) as (pool, _):
        other = SimulatedGpu(SimulatedGpuOptions(folder=tmp_path / "gpu-0", context_bytes=16 * GIB))
        other.open()
        job = await pool.enqueue(picture(0), max_attempts=2)
        events = job.events()
        delays = [(await until(events, JobRetrying)).delay_seconds for _ in range(2)]
        # The first retry is immediate and free.
        assert delays == [0.0, CROWDED_SECONDS]
        assert job.attempts == 1
        await job.cancel()
        other.close()


async def test_server_with_unnamed_gpu_counts_as_another_program(tmp_path: Path) -> None:
    gpu = SimulatedGpuOptions(
        folder=tmp_path / "gpu", memory_bytes=24 * GIB, context_bytes=0, model_bytes=14 * GIB, pixel_bytes=0
    )
    models = {"checkpoints": [SMALL, LARGE]}
    async with (
        Simulator(gpu=gpu, models=models) as one,
        Simulator(gpu=gpu, models=models) as other,
        ready_pool(one, other, failover=SmartFailover(cooldown_seconds=0)) as pool,
    ):
        await pool.run(picture(0), exclude_clients=["b"])
        with pytest.raises(OutOfMemory) as failed:
            await pool.run(picture(1), exclude_clients=["a"], one_attempt_per_server=True)
        assert failed.value.gpu_bytes is None
        assert failed.value.others_bytes == 13 * GIB


async def test_job_without_a_gpu_fails_after_a_run_alone() -> None:
    async with Simulator(arguments=["--cpu"]) as simulator, ready_pool(simulator) as pool:
        simulator.misbehave(RunsOut(class_type="ImageInvert"))
        with pytest.raises(OutOfMemory) as failed:
            await pool.run(invert(), max_attempts=3, retry_delay=0)
        assert failed.value.gpu_bytes == 0
        # First in the usual way, then alone.
        assert simulator.log.prompts_queued == 2
        assert not pool.stats().clients["a"].blocks
