"""Images per minute of one GPU: a simulator's own queue, one to four processes behind a pool, and `auto`.

A job takes time on one thread, and time on the GPU, which concurrent runs share. Both are calibrated so that one, two
and four processes make as many images as on a real GPU (docs/howto/several-on-one-gpu.md).

`python -m bench.gpu --comfyui FOLDER --graph FILE` measures a real GPU: how fast `auto` climbs after a first start, and
after a restart.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count as count_from
from pathlib import Path
from statistics import fmean
from uuid import uuid4

import httpx

from bench.figure import Figure
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool import JobCompleted, WorkflowPool
from comfyrelay.simulator import SimulatedGpuOptions
from comfyrelay.simulator.gpu import GIB
from comfyrelay.worker.comfyui import packing, packing_results
from comfyrelay.worker.comfyui.managed import ManagedServers
from comfyrelay.worker.comfyui.packing import Packer
from comfyrelay.worker.comfyui.packing_results import PackingResults
from comfyrelay.worker.comfyui.servers import AHEAD_SECONDS, Servers
from comfyrelay.worker.settings import WorkerSettings
from tests.support.simulated_gpus import KEY, SimulatedGpus, picture

# Few steps, because every step may be late on a busy machine.
STEPS = 5
# Speed-up over the real GPU, so that everything ends in five minutes; results are scaled back.
SPEED = 4.0
# As many observations per job as in a worker. Each one takes the GPU's lock, which samplers also need.
CHECK_SECONDS = packing.CHECK_SECONDS / SPEED
# The simulators use no CPU, so spare cores are not part of the measurement.
CORES = 16.0
SETTLED_REASONS = ("more did not pay off for the current workflows.", "this is the limit for one GPU.")
# A climb is reported in windows of this length. The best rate is measured over three consecutive windows.
WINDOW_SECONDS = 5.0
BEST_WINDOWS = 3
CLIMB_WINDOWS = 20
# Time to load the models of Stable Diffusion 1.5.
LOAD_SECONDS = 6.0
# Goals for the time to reach 90 % of the best rate.
CLIMB_SECONDS = {"first start": 60.0, "restart": 30.0}


@dataclass(frozen=True)
class Curve:
    name: str
    thread_seconds: float
    gpu_seconds: float
    # goal for `auto`, relative to ComfyUI's own queue
    min_ratio: float


# Measured images per minute by number of processes:
#
#                        1     2     3     4
#   512², time-sliced   53    81         107
#   1024², time-sliced  42    52          59
#   1024², under MPS    50.5  65    75    77
CURVES = (
    Curve("512²", 0.77, 0.366, 2.0),
    Curve("1024²", 0.55, 0.88, 1.4),
    Curve("1024² under MPS", 0.55, 0.64, 1.4),
)


@asynccontextmanager
async def gpu_with(
    curve: Curve, count: int, *, load_seconds: float = 0.0, speed: float = SPEED
) -> AsyncIterator[tuple[WorkflowPool, SimulatedGpus]]:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        gpu = SimulatedGpuOptions(
            folder=Path(folder),
            memory_bytes=80 * GIB,
            model_bytes=4 * GIB,
            load_seconds=load_seconds,
            gpu_seconds=curve.gpu_seconds / STEPS / speed,
        )
        async with WorkflowPool([], ahead_seconds=AHEAD_SECONDS) as pool:
            gpus = SimulatedGpus(pool, gpu, step_seconds=curve.thread_seconds / STEPS / speed)
            try:
                for _ in range(count):
                    await gpus.add(KEY)
                await pool.wait_ready()
                yield pool, gpus
            finally:
                await gpus.close()


async def own_queue(curve: Curve, jobs: int) -> float:
    """Return the images per minute of one simulator with a full queue."""
    async with gpu_with(curve, 1) as (_, gpus):
        [url] = gpus.gpus()[0].processes
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            for number in range(jobs + 1):
                body = {"prompt": picture(number, steps=STEPS), "client_id": str(uuid4())}
                (await http.post("/prompt", json=body)).raise_for_status()
            return await _rate(lambda: _remaining(http), jobs) / SPEED


async def _remaining(http: httpx.AsyncClient) -> int:
    return int((await http.get("/prompt")).json()["exec_info"]["queue_remaining"])


async def _rate(remaining: Callable[[], Awaitable[int]], jobs: int) -> float:
    loop = asyncio.get_running_loop()
    # the first job loads the models
    while await remaining() > jobs:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    began = loop.time()
    while await remaining():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return 60 * jobs / (loop.time() - began)


async def fixed(curve: Curve, count: int, jobs: int) -> float:
    """Return the images per minute of `count` processes behind a pool, after loading."""
    async with gpu_with(curve, count) as (pool, _):
        return await _throughput(pool, warm=4 * count, jobs=jobs)


@dataclass(frozen=True)
class Settled:
    """The settled state of `auto`, and the seconds until it settled and until it first had that many processes."""

    rate: float
    count: int
    reason: str
    seconds: float
    reached_seconds: float


async def auto(curve: Curve, jobs: int) -> Settled:
    """Measure the rate with the number of processes on which `auto` settles."""
    async with gpu_with(curve, 1) as (pool, gpus):
        packer = Packer(gpus, pool, spare_cores=lambda _busy: CORES, loads=dict, check_seconds=CHECK_SECONDS)
        keeping = asyncio.create_task(packer.keep())
        filling = asyncio.create_task(_fill(pool))
        loop = asyncio.get_running_loop()
        began = loop.time()
        reached: dict[int, float] = {}
        try:
            while not (status := packer.statuses.get(KEY)) or not status.reason.endswith(SETTLED_REASONS):
                if status:
                    reached.setdefault(status.processes, loop.time() - began)
                await asyncio.sleep(0.05)
            seconds = loop.time() - began
            rate = await _throughput(pool, warm=2 * status.processes, jobs=jobs)
            return Settled(
                rate=rate,
                count=status.processes,
                reason=status.changed or "",
                seconds=seconds,
                reached_seconds=reached.get(status.processes, seconds),
            )
        finally:
            for task in (filling, keeping):
                task.cancel()
            await asyncio.gather(filling, keeping, return_exceptions=True)


@dataclass(frozen=True)
class Climb:
    """Images per minute and processes in each window since the first job was added."""

    rates: list[float]
    processes: list[int]

    @property
    def best(self) -> float:
        ends = range(BEST_WINDOWS, len(self.rates) + 1)
        return max(fmean(self.rates[end - BEST_WINDOWS : end]) for end in ends)

    @property
    def seconds(self) -> float:
        """The end of the first window with at least 90 % of the best rate."""
        number = next(number for number, rate in enumerate(self.rates, start=1) if rate >= 0.9 * self.best)
        return number * WINDOW_SECONDS

    def show(self, name: str) -> None:
        steps = " ".join(f"{rate:.0f}({count})" for rate, count in zip(self.rates, self.processes, strict=True))
        print(f"{name}: per minute (processes) in windows of {WINDOW_SECONDS:g} s: {steps}", flush=True)
        print(f"{name}: best {self.best:.0f} per minute, 90 % of it after {self.seconds:g} s", flush=True)


async def climb(pool: WorkflowPool, packer: Packer, job: Callable[[], Graph], *, windows: int) -> Climb:
    """Fill a pool that has just started, and count completed jobs in windows."""
    ended = 0

    def count(_event: JobCompleted) -> None:
        nonlocal ended
        ended += 1

    unsubscribe = pool.on(JobCompleted, count)
    tasks = [asyncio.create_task(packer.keep()), asyncio.create_task(_fill(pool, job))]
    loop = asyncio.get_running_loop()
    began = loop.time()
    rates, processes = [], []
    try:
        for number in range(1, windows + 1):
            before = ended
            await asyncio.sleep(began + number * WINDOW_SECONDS - loop.time())
            rates.append(60 * (ended - before) / WINDOW_SECONDS)
            processes.append(sum(status.processes for status in packer.statuses.values()))
    finally:
        unsubscribe()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Climb(rates=rates, processes=processes)


async def simulated_climbs(curve: Curve) -> dict[str, Climb]:
    """Measure the climb after a first start and after a restart, at real speed, as process starts are not sped up."""
    climbs = {}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        for name in CLIMB_SECONDS:
            results = PackingResults(Path(folder) / packing_results.FILE, comfyui="simulator")
            async with gpu_with(curve, 1, load_seconds=LOAD_SECONDS, speed=1.0) as (pool, gpus):
                packer = Packer(gpus, pool, spare_cores=lambda _busy: CORES, loads=dict, results=results)
                packer.restore()
                climbs[name] = await climb(pool, packer, _picture, windows=CLIMB_WINDOWS)
    return climbs


async def real_climb(settings: WorkerSettings, graph: Graph, *, windows: int) -> Climb:
    """Measure a climb with managed ComfyUI processes, which write their outputs to the data folder."""
    options = settings.managed
    assert options is not None
    seeds = count_from(uuid4().int % 2**32)

    def job() -> Graph:
        seed = next(seeds)
        return {
            key: {**node, "inputs": {**node["inputs"], "seed": seed}} if "seed" in node["inputs"] else node
            for key, node in graph.items()
        }

    servers = Servers(settings, on_change=lambda: None)
    managed = ManagedServers(options, servers, folder=settings.data_dir, held=list)
    try:
        await servers.open()
        await managed.open()
        packer = Packer(managed, servers.pool, process_ram=managed.largest_process_bytes, results=managed.results)
        packer.restore()
        while not servers.online("self_hosted"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return await climb(servers.pool, packer, job, windows=windows)
    finally:
        await servers.close()
        await managed.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--comfyui", type=Path, required=True, help="ComfyUI folder")
    parser.add_argument("--graph", type=Path, required=True, help="graph in ComfyUI's API format; its seeds are varied")
    parser.add_argument("--size", type=int, help="width and height of the images, instead of the graph's")
    parser.add_argument("--seconds", type=float, default=150.0, help="length of each of the two climbs")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="Python interpreter for ComfyUI")
    parser.add_argument("arguments", nargs="*", help="after `--`: further arguments for ComfyUI")
    options = parser.parse_args()
    graph = json.loads(options.graph.read_text("utf-8"))
    for node in graph.values():
        if options.size is not None and "width" in node["inputs"]:
            node["inputs"] |= {"width": options.size, "height": options.size}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        settings = WorkerSettings(
            comfyui_dir=options.comfyui,
            comfyui_python=options.python,
            comfyui_args=options.arguments,
            data_dir=Path(folder),
            metadata_url="off",
        )
        windows = max(int(options.seconds / WINDOW_SECONDS), BEST_WINDOWS)
        for name in CLIMB_SECONDS:
            asyncio.run(real_climb(settings, graph, windows=windows)).show(name)
        saved = Path(folder) / packing_results.FILE
        print(saved.read_text("utf-8") if saved.exists() else "No result was saved.")


async def _throughput(pool: WorkflowPool, *, warm: int, jobs: int) -> float:
    """Return the rate from the end of the last warm-up job to the end of the last job."""
    loop = asyncio.get_running_loop()
    ended: list[float] = []
    unsubscribe = pool.on(JobCompleted, lambda _event: ended.append(loop.time()))
    filling = asyncio.create_task(_fill(pool))
    try:
        while len(ended) < warm + jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        unsubscribe()
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
    return 60 * jobs / (ended[warm + jobs - 1] - ended[warm - 1]) / SPEED


def _picture() -> Graph:
    return picture(uuid4().int % 2**32, steps=STEPS)


async def _fill(pool: WorkflowPool, job: Callable[[], Graph] = _picture) -> None:
    """Keep some jobs waiting in the pool."""
    while True:
        if pool.stats().queued < 20:
            await pool.enqueue(job())
        else:
            await asyncio.sleep(0.02)


async def measure(scale: float) -> list[Figure]:
    figures: list[Figure] = []
    jobs = max(int(30 * scale), 4)
    for curve in CURVES:
        own = await own_queue(curve, jobs)
        rates = {count: await fixed(curve, count, jobs) for count in (1, 2, 3, 4)}
        settled = await auto(curve, jobs)
        found, count = settled.rate, settled.count
        print(f"{curve.name}: {count} processes. {settled.reason}", flush=True)
        best = max(rates.values())
        figures += [
            Figure(f"{curve.name}: ComfyUI's own queue, filled ahead", own, "/min"),
            *(
                Figure(f"{curve.name}: {processes} processes", rate, "/min", "ComfyUI's own queue", rate / own)
                for processes, rate in rates.items()
            ),
            Figure(
                f"{curve.name}: one process behind a pool",
                rates[1],
                "/min",
                "ComfyUI's own queue",
                rates[1] / own,
                "≥ 0.98 ×",
                rates[1] / own >= 0.98,
            ),
            Figure(
                f"{curve.name}: auto ({count} processes)",
                found,
                "/min",
                "best of 1 to 4",
                found / best,
                "≥ 0.95 ×",
                found / best >= 0.95,
            ),
            Figure(
                f"{curve.name}: auto ({count} processes)",
                found,
                "/min",
                "ComfyUI's own queue",
                found / own,
                f"≥ {curve.min_ratio:g} ×",
                found / own >= curve.min_ratio,
            ),
            # wall time: jobs are sped up four times, process starts are not
            Figure(f"{curve.name}: auto reached {count} processes after", settled.reached_seconds, "s"),
            Figure(f"{curve.name}: auto settled after", settled.seconds, "s"),
        ]
    for name, climbed in (await simulated_climbs(CURVES[0])).items():
        climbed.show(f"{CURVES[0].name}, {name}")
        goal = CLIMB_SECONDS[name]
        is_met = climbed.seconds <= goal
        figures.append(
            Figure(
                f"{CURVES[0].name}: 90 % of the best, {name}", climbed.seconds, "s", goal=f"≤ {goal:g} s", is_met=is_met
            )
        )
    return figures


if __name__ == "__main__":
    main()
