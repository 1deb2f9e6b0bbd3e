"""How many ComfyUI one GPU is worth: a simulator's own queue, filled ahead, against one to four behind a pool, and
against as many as the loop finds by itself.

A job takes the seconds of one thread, and the seconds that all who run on the GPU wait for each other. Both are such
that one, two and four make as many pictures a minute as they did on a real GPU (docs/howto/several-on-one-gpu.md).
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx

from bench.figure import Figure
from comfyrelay.comfyui.pool import JobCompleted, WorkflowPool
from comfyrelay.simulator import SimulatedGpuOptions
from comfyrelay.simulator.gpu import GIB
from comfyrelay.worker.comfyui import packing
from comfyrelay.worker.comfyui.packing import Packer
from comfyrelay.worker.comfyui.servers import AHEAD_SECONDS
from tests.support.simulated_gpus import KEY, SimulatedGpus, picture

# Few, since each is a moment at which a busy machine may be late.
STEPS = 5
# As much faster than the real GPU, so that all of it is over in five minutes; told is what the GPU would do.
SPEED = 4.0
# As often in a job as a worker looks: each look takes the gpu's lock, which those that sample need too.
LOOK_SECONDS = packing.LOOK_SECONDS / SPEED
# The simulators use no processor: what this machine has to spare is not what is measured.
CORES = 16.0
AT_REST = ("not worth it for what runs now.", "no more are allowed on one GPU.")


@dataclass(frozen=True)
class Curve:
    name: str
    thread_seconds: float
    gpu_seconds: float
    # `auto` against one process
    at_least: float


# Processes that take turns on the GPU: one made 53 of 512 × 512 a minute, two 81 and four 107; 42, 52 and 59 of
# 1024 × 1024, which is 1.41 times as many by four on paper. Under MPS, as they are started where it is there, one made
# 50.5 of 1024 × 1024, two 65, three 75 and four 77.
CURVES = (
    Curve("512²", 0.77, 0.366, 2.0),
    Curve("1024²", 0.55, 0.88, 1.4),
    Curve("1024² under MPS", 0.55, 0.64, 1.4),
)


@asynccontextmanager
async def gpu_with(curve: Curve, count: int) -> AsyncIterator[tuple[WorkflowPool, SimulatedGpus]]:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        gpu = SimulatedGpuOptions(
            folder=Path(folder),
            memory_bytes=80 * GIB,
            model_bytes=4 * GIB,
            gpu_seconds=curve.gpu_seconds / STEPS / SPEED,
        )
        async with WorkflowPool([], ahead_seconds=AHEAD_SECONDS) as pool:
            gpus = SimulatedGpus(pool, gpu, step_seconds=curve.thread_seconds / STEPS / SPEED)
            try:
                for _ in range(count):
                    await gpus.add(KEY)
                await pool.wait_ready()
                yield pool, gpus
            finally:
                await gpus.close()


async def own_queue(curve: Curve, jobs: int) -> float:
    """Pictures a minute of one simulator whose own queue is filled ahead."""
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
    # the first loads what all of them need
    while await remaining() > jobs:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    began = loop.time()
    while await remaining():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return 60 * jobs / (loop.time() - began)


async def fixed(curve: Curve, count: int, jobs: int) -> float:
    """Pictures a minute of so many behind a pool, once each has loaded its models."""
    async with gpu_with(curve, count) as (pool, _):
        return await _throughput(pool, warm=4 * count, jobs=jobs)


@dataclass(frozen=True)
class Settled:
    """What the loop has come to: pictures a minute once it was at rest, with how many, and why no more; after how many
    seconds since the first job, and after how many it had that many for the first time."""

    rate: float
    count: int
    why: str
    seconds: float
    reached_seconds: float


async def auto(curve: Curve, jobs: int) -> Settled:
    """The same, with as many as the loop has found, once it has come to rest."""
    async with gpu_with(curve, 1) as (pool, gpus):
        packer = Packer(gpus, pool, spare=lambda _busy: CORES, loads=dict, look_seconds=LOOK_SECONDS)
        keeping = asyncio.create_task(packer.keep())
        filling = asyncio.create_task(_fill(pool))
        loop = asyncio.get_running_loop()
        began = loop.time()
        reached: dict[int, float] = {}
        try:
            while not (told := packer.decided.get(KEY)) or not told.reason.endswith(AT_REST):
                if told:
                    reached.setdefault(told.processes, loop.time() - began)
                await asyncio.sleep(0.05)
            seconds = loop.time() - began
            rate = await _throughput(pool, warm=2 * told.processes, jobs=jobs)
            return Settled(
                rate=rate,
                count=told.processes,
                why=told.changed or "",
                seconds=seconds,
                reached_seconds=reached.get(told.processes, seconds),
            )
        finally:
            for task in (filling, keeping):
                task.cancel()
            await asyncio.gather(filling, keeping, return_exceptions=True)


async def _throughput(pool: WorkflowPool, *, warm: int, jobs: int) -> float:
    """From the end of the last job of the warm-up to the end of the last job."""
    loop = asyncio.get_running_loop()
    ended: list[float] = []
    end = pool.on(JobCompleted, lambda _event: ended.append(loop.time()))
    filling = asyncio.create_task(_fill(pool))
    try:
        while len(ended) < warm + jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        end()
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
    return 60 * jobs / (ended[warm + jobs - 1] - ended[warm - 1]) / SPEED


async def _fill(pool: WorkflowPool) -> None:
    """Always some that wait."""
    while True:
        if pool.stats().queued < 20:
            await pool.enqueue(picture(uuid4().int % 2**32, steps=STEPS))
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
        print(f"{curve.name}: {count} at once. {settled.why}", flush=True)
        best = max(rates.values())
        figures += [
            Figure(f"{curve.name}: ComfyUI's own queue, filled ahead", own, "/min"),
            *(
                Figure(f"{curve.name}: {each} on the gpu", rate, "/min", "its own queue", rate / own)
                for each, rate in rates.items()
            ),
            Figure(
                f"{curve.name}: one behind a pool",
                rates[1],
                "/min",
                "its own queue",
                rates[1] / own,
                "≥ 0.98 ×",
                rates[1] / own >= 0.98,
            ),
            Figure(
                f"{curve.name}: auto ({count} on the GPU)",
                found,
                "/min",
                "the best of 1 to 4",
                found / best,
                "≥ 0.95 ×",
                found / best >= 0.95,
            ),
            Figure(
                f"{curve.name}: auto ({count} on the GPU)",
                found,
                "/min",
                "its own queue",
                found / own,
                f"≥ {curve.at_least:g} ×",
                found / own >= curve.at_least,
            ),
            # of this machine's clock: those that start take as long as they take, and jobs a quarter
            Figure(f"{curve.name}: auto had {count} after", settled.reached_seconds, "s"),
            Figure(f"{curve.name}: auto was at rest after", settled.seconds, "s"),
        ]
    return figures
