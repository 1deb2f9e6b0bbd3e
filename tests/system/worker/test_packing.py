"""The packing loop sets the number of ComfyUI processes per GPU, here with simulators that share a GPU."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from comfyrelay.comfyui.pool import ClientState, JobRetrying, SmartFailover, WorkflowPool
from comfyrelay.comfyui.processes.gpus import GpuProcesses
from comfyrelay.domain.packing.state import PackingLimits
from comfyrelay.errors import NotFound, OutOfMemory
from comfyrelay.simulator import SimulatedGpuOptions
from comfyrelay.simulator.gpu import GIB, SimulatedGpu
from comfyrelay.worker.comfyui.packing import Packer
from comfyrelay.worker.comfyui.packing_results import PackingResults
from tests.support.pool import QUICK
from tests.support.simulated_gpus import KEY, SimulatedGpus, picture
from tests.support.world import PATIENCE_SECONDS

# With these limits, another process always or never pays off, independent of the load of the machine.
ALWAYS = PackingLimits(min_gain=-1.0, max_processes=3, idle_seconds=0.5, turns=1, jobs_per_turn=1)
NEVER = PackingLimits(min_gain=100.0, turns=1, jobs_per_turn=1)


@asynccontextmanager
async def gpu_of(
    folder: Path,
    limits: PackingLimits,
    *,
    spare: Callable[[int], float] = lambda _: 16.0,
    more_waiting: Callable[[], int] = lambda: 0,
    most: int | None = None,
    free: Callable[[], int] = lambda: 64 * GIB,
    sizes: Mapping[str, int] = MappingProxyType({KEY: 24 * GIB}),
    results: PackingResults | None = None,
    **gpu: Any,
) -> AsyncIterator[tuple[WorkflowPool, SimulatedGpus, Packer]]:
    """Start one process on each GPU, and run the packing loop while jobs run.

    By default, a GPU has 24 GiB and a process takes 5 GiB.
    """
    memory = {"context_bytes": GIB, "model_bytes": 4 * GIB, "pixel_bytes": 0, **gpu}
    options = {
        key: SimulatedGpuOptions(folder=folder / key, **{"memory_bytes": size, **memory}) for key, size in sizes.items()
    }
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            WorkflowPool([], timings=QUICK, failover=SmartFailover(cooldown_seconds=0))
        )
        gpus = SimulatedGpus(pool, options)
        stack.push_async_callback(gpus.close)
        for key in sizes:
            await gpus.add(key)
        packer = Packer(
            gpus,
            pool,
            limits=limits,
            max_processes=most,
            more_waiting=more_waiting,
            spare_cores=spare,
            loads=dict,
            free_ram=free,
            process_ram=lambda _gpu: 8 * GIB,
            results=results,
            check_seconds=0.1,
        )
        packer.restore()
        keeping = asyncio.create_task(packer.keep())
        working = asyncio.create_task(_work(pool))
        try:
            yield pool, gpus, packer
        finally:
            working.cancel()
            keeping.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)


async def _work(pool: WorkflowPool) -> None:
    """Keep some jobs waiting."""
    seed = 0
    while True:
        if pool.stats().queued < 5:
            seed += 1
            await pool.enqueue(picture(seed), max_attempts=1)
        else:
            await asyncio.sleep(0.005)


async def until_reason(packer: Packer, such: Callable[[str], bool], *, key: str = KEY) -> str:
    """Wait until the packer gives a matching reason."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (found := packer.statuses.get(key)) is None or not such(found.reason):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found.reason


async def test_processes_are_added_while_jobs_wait(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with gpu_of(tmp_path, ALWAYS) as (_, gpus, packer):
            await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
            assert len(gpus.gpus()[0].processes) == 3
            assert packer.statuses[KEY].processes == 3
            assert "trying 3 processes" in (packer.statuses[KEY].changed or "")
    changes = [log for log in logs if log["event"] == "worker.packing" and log["change"] == "add"]
    assert len(changes) == 1
    assert "another process needs 5.0 GiB of 19.0 GiB free: trying 3 processes." in changes[0]["why"]


async def test_process_that_does_not_pay_off_is_removed_for_good(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, NEVER) as (pool, gpus, packer):
        await until_reason(packer, lambda reason: reason.endswith("did not pay off for the current workflows."))
        assert len(gpus.gpus()[0].processes) == 1
        assert gpus.most == 4
        assert len(pool.stats().clients) == 1
        assert not pool.stats().failed


async def test_idle_gpu_keeps_one_process(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS) as (pool, gpus, packer):
        await until_reason(packer, lambda reason: reason.startswith("3 processes: this is the limit"))
        pool.enqueue = _refuse  # type: ignore[method-assign]
        await until_reason(packer, lambda reason: reason == "1 process: no jobs are waiting.")
        assert len(gpus.gpus()[0].processes) == 1
        assert not pool.stats().failed


async def test_gpu_memory_limits_the_processes(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS, memory_bytes=12 * GIB) as (pool, gpus, packer):
        await until_reason(
            packer, lambda reason: reason == "2 processes: the GPU has 12.0 GiB, and each process takes 5.0 GiB."
        )
        assert gpus.most == 2
        assert not pool.stats().failed


async def test_memory_of_another_program_counts_once(tmp_path: Path) -> None:
    """The other program takes 10 of 24 GiB, so two processes of 5 GiB fit, but not three."""
    other = SimulatedGpu(SimulatedGpuOptions(folder=tmp_path / KEY, context_bytes=10 * GIB))
    other.open()
    async with gpu_of(tmp_path, ALWAYS) as (pool, gpus, packer):
        await until_reason(packer, lambda reason: reason.startswith("2 processes: the GPU has"))
        assert gpus.most == 2
        assert not pool.stats().failed
    other.close()


async def test_busy_cpu_limits_the_gpu_to_one_process(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS, spare=lambda _: 0.5) as (_, gpus, packer):
        await until_reason(packer, lambda reason: reason == "1 process: no CPU core is free.")
        assert gpus.most == 1


async def test_machine_memory_limits_the_processes(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS, free=lambda: 6 * GIB) as (_, gpus, packer):
        why = "1 process: another one takes 8.0 GiB of machine memory, with 6.0 GiB free and 1.0 GiB in reserve."
        await until_reason(packer, lambda reason: reason == why)
        assert gpus.most == 1


async def test_concurrency_limits_the_processes(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS, most=1) as (_, gpus, packer):
        await until_reason(packer, lambda reason: reason == "1 process: this is the limit for one GPU.")
        assert gpus.most == 1


async def test_failed_start_is_reported_and_the_other_processes_continue(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS) as (pool, gpus, packer):
        gpus.refusal = "Its venv is broken."
        await until_reason(packer, lambda reason: reason == "Another ComfyUI did not start: Its venv is broken.")
        done = pool.stats().completed
        await until_reason(
            packer, lambda reason: reason.endswith("another one did not start and is retried after 300 s.")
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while pool.stats().completed == done:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert gpus.most == 1


async def test_no_process_is_added_while_another_restarts(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, ALWAYS) as (_, gpus, packer):
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
        first = gpus.gpus()[0].processes[0]
        await gpus.kill(KEY, first)
        await until_reason(packer, lambda reason: reason == "2 processes: one is restarting.")
        await gpus.start_again(KEY, first)
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
        assert gpus.added == 3


async def test_failed_trial_is_repeated_in_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server disappears when it is about to be resumed."""
    refused: list[str] = []
    pause_server = WorkflowPool.pause_server

    def refuse(pool: WorkflowPool, client_id: str, *, is_paused: bool = True) -> None:
        # all earlier calls, and the first call for the new process
        if pool.stats().completed and len(refused) < 3:
            refused.append(client_id)
            raise NotFound("It is gone.")
        pause_server(pool, client_id, is_paused=is_paused)

    monkeypatch.setattr(WorkflowPool, "pause_server", refuse)
    async with gpu_of(tmp_path, ALWAYS) as (_, gpus, packer):
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
        assert len(refused) == 3
        assert gpus.added == 3


async def test_process_with_a_pinned_workflow_is_kept(tmp_path: Path) -> None:
    async with gpu_of(tmp_path, replace(ALWAYS, max_processes=2, idle_seconds=1.0)) as (pool, gpus, packer):
        await until_reason(packer, lambda reason: reason.startswith("2 processes: this is the limit"))
        newest = gpus.gpus()[0].processes[-1]
        enqueue, pool.enqueue = pool.enqueue, _refuse  # type: ignore[method-assign]
        await asyncio.gather(*pool.jobs.values())
        others = [client for client in pool.stats().clients if client != newest]
        await (await enqueue(picture(0), keep_loaded=True, exclude_clients=others))
        await until_reason(packer, lambda reason: reason == "1 process: no jobs are waiting.")
        assert gpus.gpus()[0].processes == (newest,)


async def test_memory_of_each_gpu_limits_its_processes(tmp_path: Path) -> None:
    sizes = {"small": 8 * GIB, "middle": 12 * GIB, "large": 24 * GIB}
    async with gpu_of(tmp_path, ALWAYS, sizes=sizes) as (pool, gpus, packer):
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.", key="large")
        await until_reason(packer, lambda reason: reason.startswith("2 processes: the GPU has 12.0 GiB"), key="middle")
        await until_reason(packer, lambda reason: reason.startswith("1 process: the GPU has 8.0 GiB"), key="small")
        assert {gpu.key: len(gpu.processes) for gpu in gpus.gpus()} == {"small": 1, "middle": 2, "large": 3}
        assert not pool.stats().failed
        pool.enqueue = _refuse  # type: ignore[method-assign]
        for key in sizes:
            await until_reason(packer, lambda reason: reason == "1 process: no jobs are waiting.", key=key)
        assert [len(gpu.processes) for gpu in gpus.gpus()] == [1, 1, 1]


async def test_saved_process_count_is_started_at_once_and_checked(tmp_path: Path) -> None:
    # With these limits, jobs count as equally fast on every machine.
    limits = replace(ALWAYS, idle_seconds=60.0)
    file = tmp_path / "gpu-sharing.json"
    async with gpu_of(tmp_path / "first", limits, results=PackingResults(file, comfyui="1.0")) as (_, _, packer):
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
    [saved] = PackingResults(file, comfyui="1.0").of("simulator", 24 * GIB).values()
    assert (saved.processes, saved.is_limit, saved.machine_bytes) == (3, False, 8 * GIB)
    assert 4 * GIB <= saved.need_bytes < 5 * GIB
    PackingResults(file, comfyui="1.0").save(saved.model_copy(update={"seconds": 3600.0}))
    with capture_logs() as logs:
        results = PackingResults(file, comfyui="1.0")
        async with gpu_of(tmp_path / "second", replace(limits, min_gain=0.1), results=results) as (_, gpus, packer):
            await until_reason(packer, lambda reason: reason == "3 processes: as fast as before the restart.")
            assert gpus.added == 3
    assert [log["started"] for log in logs if log["event"] == "worker.packing_restored"] == [2]
    # The processes started before any job ran, and no trial followed.
    assert [log["change"] for log in logs if log["event"] == "worker.packing" and log["change"] != "nothing"] == []
    [checked] = PackingResults(file, comfyui="1.0").of("simulator", 24 * GIB).values()
    assert checked == saved.model_copy(update={"seconds": 3600.0})


async def test_memory_of_the_machine_limits_all_processes_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "gpu-sharing.json"
    async with gpu_of(tmp_path / "first", ALWAYS, results=PackingResults(file, comfyui="1.0")) as (_, _, packer):
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
    # Four processes of 8 GiB fit, including the first process of each GPU.
    free = 32 * GIB + ALWAYS.machine_reserve_bytes
    sizes = {KEY: 24 * GIB, "second": 24 * GIB}
    results = PackingResults(file, comfyui="1.0")
    with capture_logs() as logs:
        async with gpu_of(tmp_path / "second", NEVER, results=results, sizes=sizes, free=lambda: free):
            pass
    assert [log["started"] for log in logs if log["event"] == "worker.packing_restored"] == [2, 0]


async def test_process_count_of_another_comfyui_is_not_restored(tmp_path: Path) -> None:
    file = tmp_path / "gpu-sharing.json"
    async with gpu_of(tmp_path / "first", ALWAYS, results=PackingResults(file, comfyui="1.0")) as (_, _, packer):
        await until_reason(packer, lambda reason: reason == "3 processes: this is the limit for one GPU.")
    async with gpu_of(tmp_path / "second", ALWAYS, results=PackingResults(file, comfyui="2.0")) as (_, _, packer):
        await until_reason(packer, lambda reason: "trying 3 processes" in reason)


class OneGpu:
    """A pool with two servers on one GPU, where the named servers are busy; it records event callbacks."""

    def __init__(self, *busy: str) -> None:
        self._busy = busy
        self.heard: dict[type[Any], Callable[[Any], object]] = {}

    def on(self, which: type[Any], callback: Callable[[Any], object]) -> Callable[[], None]:
        self.heard[which] = callback
        return lambda: None

    def stats(self) -> Any:
        clients = {name: SimpleNamespace(gpu=KEY, running=int(name in self._busy)) for name in ("a", "b")}
        return SimpleNamespace(clients=clients)


@pytest.mark.parametrize(
    ("busy", "ran_alone", "is_blamed"), [(["b"], False, True), (["b"], True, False), ([], False, False)]
)
async def test_out_of_memory_is_blamed_on_sharing_only_if_others_ran(
    busy: list[str], ran_alone: bool, is_blamed: bool
) -> None:
    pool, error = OneGpu(*busy), OutOfMemory("There is not enough memory.")
    packer = Packer(cast("Any", None), cast("WorkflowPool", pool), spare_cores=lambda _: 1.0)
    error.ran_alone = ran_alone
    pool.heard[JobRetrying](SimpleNamespace(client_id="a", workflow_hash="w", error=error))
    assert packer.ran_out(KEY) == (frozenset("w") if is_blamed else frozenset())


async def test_started_process_counts_once() -> None:
    """The pool's answer ends the task that adds the process; the next callback of the event loop checks the count."""
    counts: list[tuple[int, set[str]]] = []
    client = SimpleNamespace(url="http://new", state=ClientState.ONLINE)

    def stats() -> Any:
        asyncio.get_running_loop().call_soon(lambda: counts.append((len(state.adding), state.known)))
        return SimpleNamespace(clients={"new": client})

    async def add(_key: str) -> str:
        return "http://new"

    gpu = GpuProcesses(key=KEY, name="simulator", memory_bytes=None, processes=(client.url,))
    pool = SimpleNamespace(on=lambda *_: None, stats=stats)
    packer = Packer(cast("Any", SimpleNamespace(add=add, gpus=lambda: [gpu])), cast("WorkflowPool", pool))
    state = packer._states[KEY]
    packer._start_more(gpu, state, 1)
    await asyncio.gather(*state.adding)
    assert counts == [(0, {"new"})]


async def _refuse(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def test_jobs_waiting_outside_the_pool_count(tmp_path: Path) -> None:
    elsewhere = 0
    async with gpu_of(tmp_path, ALWAYS, more_waiting=lambda: elsewhere) as (pool, gpus, packer):
        add, pool.enqueue = pool.enqueue, _refuse  # type: ignore[method-assign]
        await (await add(picture(1)))
        await until_reason(packer, lambda reason: reason == "1 process: no jobs are waiting.")
        elsewhere = 400
        await until_reason(packer, lambda reason: reason.startswith("400 jobs wait") and "of 19.0 GiB free" in reason)
        assert gpus.most <= 3
