"""Jobs run in parallel on servers that share a GPU only if its memory is known to suffice."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.comfyui.pool import (
    Bucket,
    JobCompleted,
    JobStarted,
)
from comfyrelay.comfyui.pool.gpu_memory import ALONE_SECONDS, LEARN_SECONDS, GpuMemory, Memory, memory_in
from comfyrelay.comfyui.pool.members import Member
from comfyrelay.errors import Conflict, NodeFailed
from comfyrelay.simulator import Fail, Stuck
from comfyrelay.simulator.gpu import GIB
from tests.support.full import full_only
from tests.support.gpu_pool import LARGE, SMALL, gpus, picture, shared_gpu
from tests.support.pool import member, until
from tests.support.world import PATIENCE_SECONDS


async def test_model_that_fills_the_gpu_never_runs_out_of_memory(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=20 * GIB) as (pool, _, _):
        jobs = [await pool.enqueue(picture(seed), max_attempts=1) for seed in range(12)]
        await asyncio.gather(*jobs)
        assert [job.attempts for job in jobs] == [1] * 12


@pytest.mark.parametrize("ahead_seconds", [0.0, *full_only(10.0)])
async def test_model_that_fills_the_gpu_never_runs_out_of_memory_in_a_hundred_jobs(
    tmp_path: Path, ahead_seconds: float
) -> None:
    async with shared_gpu(tmp_path, 4, ahead_seconds=ahead_seconds, model_bytes=20 * GIB) as (pool, _, _):
        jobs = [await pool.enqueue(picture(seed, model=(SMALL, LARGE)[seed % 2])) for seed in range(100)]
        await asyncio.gather(*jobs)
        assert {job.attempts for job in jobs} == {1}


async def test_jobs_that_fit_together_share_the_gpu(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 3) as (pool, simulators, _):
        await pool.run(picture(0))
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed)) for seed in (1, 2, 3)]
        await until(events, JobStarted)
        await until(events, JobStarted)
        # Two of 9 GiB fit into 24, and three do not.
        assert pool.stats().running == 2
        assert pool.stats().queued == 1
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)


async def test_first_run_of_an_unknown_workflow_has_the_gpu_to_itself(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2) as (pool, simulators, _):
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed)) for seed in (1, 2)]
        await until(events, JobStarted)
        assert (pool.stats().running, pool.stats().queued) == (1, 1)
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)
        assert pool.memory.known_need(jobs[0].workflow_hash) == 9 * GIB


async def test_larger_pictures_of_the_same_workflow_are_known_after_their_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.comfyui.pool.gpu_memory.LEARN_SECONDS", 0.0)
    async with shared_gpu(tmp_path, 2, model_bytes=GIB, pixel_bytes=GIB // 64**2) as (pool, simulators, _):
        job = await pool.enqueue(picture(0), preferred_clients=["a"])
        await job
        assert pool.memory.known_need(job.workflow_hash) == 2 * GIB
        await pool.run(picture(1, side=256), preferred_clients=["a"])
        assert pool.memory.known_need(job.workflow_hash) == 17 * GIB
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed)) for seed in (2, 3)]
        await until(events, JobStarted)
        assert (pool.stats().running, pool.stats().queued) == (1, 1)
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)


async def test_models_of_a_failed_run_do_not_count_for_another_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comfyrelay.comfyui.pool.gpu_memory.LEARN_SECONDS", 0.0)
    async with shared_gpu(tmp_path, 2) as (pool, simulators, _):
        simulators[0].misbehave(Fail(class_type="SaveImage", times=1))
        with pytest.raises(NodeFailed):
            await pool.run(picture(0), preferred_clients=["a"], exclude_clients=["b"])
        job = await pool.enqueue(picture(1, model=LARGE), preferred_clients=["a"])
        await job
        assert pool.memory.known_need(job.workflow_hash) == 18 * GIB
        # With no other models loaded, the measured need is exact.
        await pool.run(picture(2, model=LARGE), exclude_clients=["a"])
        assert pool.memory.known_need(job.workflow_hash) == 9 * GIB


async def test_known_memory_need_is_measured_again() -> None:
    seconds = 0.0
    memory = GpuMemory(clock=lambda: seconds)
    fake = FakeServer(held=60)
    server = server_on_gpu("a", fake)
    server.loaded = {"other": None, "w": None}
    await memory.learn("w", server, [server])
    fake.held = 40
    await memory.learn("w", server, [server])
    assert memory.known_need("w") == 60
    seconds += LEARN_SECONDS
    await memory.learn("w", server, [server])
    assert memory.known_need("w") == 40
    # A new workflow is measured at once.
    await memory.learn("new", server, [server])
    assert memory.known_need("new") == 40


def test_workflow_that_ran_out_of_memory_shares_the_gpu_after_an_hour() -> None:
    seconds = 0.0
    memory = GpuMemory(clock=lambda: seconds)
    memory.record_out_of_memory("w")
    seconds += ALONE_SECONDS - 1
    assert memory.runs_alone("w")
    seconds += 1
    assert not memory.runs_alone("w")


async def test_declared_memory_counts_if_it_exceeds_the_measured_need(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2) as (pool, simulators, _):
        await pool.run(picture(0))
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed), memory_bytes=13 * GIB) for seed in (1, 2)]
        await until(events, JobStarted)
        assert (pool.stats().running, pool.stats().queued) == (1, 1)
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)


async def test_idle_server_unloads_its_models_for_a_job_that_needs_the_memory(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=14 * GIB) as (pool, simulators, _):
        await pool.run(picture(1), preferred_clients=["a"])
        await pool.run(picture(2), preferred_clients=["b"])
        assert [simulator.log.count("POST", "/free") for simulator in simulators] == [1, 0]
        # Server a has unloaded its models, so it is no longer preferred.
        assert [len(client.warm_hashes) for client in pool.stats().clients.values()] == [0, 1]


async def test_large_job_is_not_starved_by_small_ones(tmp_path: Path) -> None:
    """A large job waits for the whole GPU, and the small jobs behind it must not take memory that becomes free."""
    async with shared_gpu(tmp_path, 2) as (pool, simulators, _):
        await pool.run(picture(0))
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted, JobCompleted)
        first = [await pool.enqueue(picture(seed)) for seed in (1, 2)]
        for _ in first:
            await until(events, JobStarted)
        large = await pool.enqueue(picture(3), memory_bytes=20 * GIB)
        small = [await pool.enqueue(picture(seed)) for seed in range(4, 10)]
        ended: list[str] = []
        pool.on(JobCompleted, lambda event: ended.append(event.job_id))
        for handle in stuck:
            handle.end()
        await asyncio.gather(large, *first, *small)
        assert ended.index(large.id) == 2


async def test_large_job_waits_for_one_gpu_and_small_jobs_use_the_other(tmp_path: Path) -> None:
    """If the large job waited for both GPUs, neither would be fully used."""
    async with gpus(tmp_path, 24, 24, per_gpu=2) as (pool, simulators), asyncio.timeout(PATIENCE_SECONDS):
        await pool.run(picture(0))
        stuck = {
            name: simulator.misbehave(Stuck(class_type="KSampler"))
            for name, simulator in zip("abcd", simulators, strict=True)
        }
        events = pool.events(JobStarted, JobCompleted)
        first = [await pool.enqueue(picture(seed)) for seed in range(1, 5)]
        for _ in first:
            await until(events, JobStarted)
        large = await pool.enqueue(picture(5), memory_bytes=20 * GIB)
        small = [await pool.enqueue(picture(seed)) for seed in range(6, 10)]
        stuck["a"].end()
        await until(events, JobCompleted)
        stuck["c"].end()
        await until(events, JobStarted, lambda event: event.client_id == "c")
        stuck["b"].end()
        begun = await until(events, JobStarted, lambda event: event.job_id == large.id)
        assert begun.client_id in ("a", "b")
        stuck["d"].end()
        await asyncio.gather(large, *first, *small)


async def test_workflow_that_ran_out_of_memory_then_runs_alone(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2, model_bytes=GIB, pixel_bytes=GIB // 64**2) as (pool, simulators, _):
        await pool.run(picture(0))
        # Two runs of the same workflow with larger images do not fit together.
        job = await pool.enqueue(picture(1, side=64 * 5), max_attempts=1)
        with pytest.raises(Exception, match="not enough memory"):
            await job
        assert pool.memory.runs_alone(job.workflow_hash)
        stuck = [simulator.misbehave(Stuck(class_type="KSampler")) for simulator in simulators]
        events = pool.events(JobStarted)
        jobs = [await pool.enqueue(picture(seed)) for seed in (2, 3)]
        await until(events, JobStarted)
        assert (pool.stats().running, pool.stats().queued) == (1, 1)
        for handle in stuck:
            handle.end()
        await asyncio.gather(*jobs)


async def test_paused_server_finishes_its_job_and_gets_no_other(tmp_path: Path) -> None:
    async with shared_gpu(tmp_path, 2) as (pool, simulators, _):
        await pool.run(picture(0), preferred_clients=["a"])
        stuck = simulators[1].misbehave(Stuck(class_type="KSampler"))
        events = pool.events(JobStarted)
        blocked = await pool.enqueue(picture(1), exclude_clients=["a"])
        await until(events, JobStarted)
        pool.pause_server("b")
        later = [await pool.enqueue(picture(seed), preferred_clients=["b"]) for seed in (2, 3)]
        await asyncio.gather(*later)
        assert {job.client_id for job in later} == {"a"}
        stuck.end()
        await blocked
        pool.pause_server("b", is_paused=False)
        job = await pool.enqueue(picture(4), preferred_clients=["b"])
        await job
        assert job.client_id == "b"


def test_device_that_is_not_a_gpu_has_no_memory() -> None:
    fields = {"vram_total": 10, "vram_free": 8, "torch_vram_total": 3, "torch_vram_free": 1}
    assert memory_in({"devices": [{"type": "cuda", **fields}]}) == Memory(total=10, free=7, held=3)
    for kind in ("cpu", "mps", "privateuseone"):
        assert memory_in({"devices": [{"type": kind, **fields}]}) is None
    assert memory_in({"devices": []}) is None


def test_only_the_memory_of_the_first_gpu_counts() -> None:
    """ComfyUI loads models on its first GPU; only a ComfyUI that splits its work also uses the others."""
    fields = {"type": "cuda", "vram_total": 10, "vram_free": 8, "torch_vram_total": 3, "torch_vram_free": 1}
    more = {"type": "cuda", "vram_total": 99, "vram_free": 99, "torch_vram_total": 0, "torch_vram_free": 0}
    assert memory_in({"devices": [fields, more], "novelty": []}) == Memory(total=10, free=7, held=3)


def server_on_gpu(client_id: str, comfyui: Any = None) -> Member:
    return member(client_id, gpu="gpu", comfyui=comfyui)


@dataclass
class FakeServer:
    free_bytes: int = 100
    held: int = 0

    async def system_stats(self) -> dict[str, Any]:
        fields = {"vram_total": 100, "vram_free": self.free_bytes, "torch_vram_total": self.held, "torch_vram_free": 0}
        return {"devices": [{"type": "cuda", **fields}]}

    async def free(self) -> None: ...


@dataclass
class RemovedServer(FakeServer):
    """A server that is removed from the pool after this many answers."""

    answers: int = 0
    leave: Callable[[], object] = lambda: None

    async def system_stats(self) -> dict[str, Any]:
        await self._answer()
        return await super().system_stats()

    async def free(self) -> None:
        await self._answer()

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if not self.answers:
            self.leave()
            raise Conflict("This client is closed.")
        self.answers -= 1


@pytest.mark.parametrize("bucket", [Bucket("new"), Bucket("new", alone=True)], ids=["shared", "alone"])
@pytest.mark.parametrize("answers", range(4))
async def test_server_removed_while_memory_is_freed_fails_no_job(bucket: Bucket, answers: int) -> None:
    memory = GpuMemory()
    here, *idle = servers = [server_on_gpu(name) for name in "abc"]
    here.comfyui = FakeServer(free_bytes=20)

    def leave() -> None:
        for server in idle:
            memory.forget(server)

    for server in idle:
        server.loaded["old"] = None
        server.comfyui = RemovedServer(free_bytes=20, held=40, answers=answers, leave=leave)
    await memory.free_memory_for(bucket, here, servers)
    assert memory.has_memory_for(bucket, here, servers)


async def test_gpu_filled_by_another_program_gets_one_job_at_a_time() -> None:
    memory, servers = GpuMemory(), [server_on_gpu(name) for name in "ab"]
    memory.record_need("w", 10, is_exact=True)
    for server in servers:
        server.comfyui = FakeServer(free_bytes=0)
    await memory.measure_gpu(servers[0], servers)
    assert memory.usable("gpu") == 0
    assert memory.has_memory_for(Bucket("w"), servers[0], servers)
    servers[1].buckets.append(Bucket("w"))
    assert not memory.has_memory_for(Bucket("w"), servers[0], servers)


@given(
    needs=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 120)),
    alone=st.frozensets(st.sampled_from("abcdef")),
    coming=st.lists(st.sampled_from("abcdef"), max_size=12),
    going=st.lists(st.integers(0, 3), max_size=12),
)
def test_jobs_that_share_a_gpu_never_exceed_its_memory(
    needs: dict[str, int], alone: frozenset[str], coming: list[str], going: list[int]
) -> None:
    memory, servers = GpuMemory(), [server_on_gpu(str(number)) for number in range(4)]
    servers[0].comfyui = FakeServer()
    asyncio.run(_measure(memory, servers))
    for workflow, need in needs.items():
        memory.record_need(workflow, need, is_exact=True)
    for workflow in alone:
        memory.record_out_of_memory(workflow)
    for number, workflow in enumerate(coming):
        free = next((server for server in servers if not server.buckets), None)
        if free is not None and memory.has_memory_for(Bucket(workflow), free, servers):
            free.buckets.append(Bucket(workflow))
        running = [bucket.workflow_hash for server in servers for bucket in server.buckets]
        known = all(name in needs and name not in alone for name in running)
        assert len(running) <= 1 or (known and sum(needs[name] for name in running) <= 100)
        if number < len(going):
            servers[going[number]].buckets.clear()


async def _measure(memory: GpuMemory, servers: list[Member]) -> None:
    await memory.measure(servers[0], servers)


class BusyServer(FakeServer):
    """A server that may be too busy to answer, on a GPU with 100 bytes of memory."""

    def __init__(self, free: int, held: int) -> None:
        self.free_bytes, self.held, self.is_busy = free, held, False

    async def system_stats(self) -> dict[str, Any]:
        if self.is_busy:
            raise TimeoutError
        fields = {"vram_total": 100, "vram_free": self.free_bytes, "torch_vram_total": self.held, "torch_vram_free": 0}
        return {"devices": [{"type": "cuda", **fields}]}


async def test_busy_server_does_not_count_as_another_program() -> None:
    memory, fakes = GpuMemory(), [BusyServer(70, 10), BusyServer(70, 10)]
    servers = [server_on_gpu(name, comfyui) for name, comfyui in zip("ab", fakes, strict=True)]

    async def look() -> int | None:
        memory.update_foreign("gpu", await asyncio.gather(*(memory.measure(server, servers) for server in servers)))
        return memory.usable("gpu")

    assert await look() == 87
    fakes[1].is_busy = True
    fakes[0].free_bytes = 20
    assert await look() == 87
    fakes[1].is_busy, fakes[1].held, fakes[1].free_bytes = False, 60, 20
    assert await look() == 87
    # Another program has started.
    fakes[0].free_bytes = fakes[1].free_bytes = 5
    assert await look() == 72
