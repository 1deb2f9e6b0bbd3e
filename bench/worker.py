"""Worker overhead: the time that a job takes in addition to its run, and the GPU utilization.

Server and worker are separate processes. The simulator and the simulated network run in this process.
"""

import asyncio
import io
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from bench.figure import Figure
from comfyrelay.comfyui import ComfyClient
from comfyrelay.simulator import Slow
from tests.support.graphs import invert_file
from tests.support.whole_system import System, open_system

RUN_SECONDS = 3.0
TRANSFER_SECONDS = 1.0
SAMPLE_SECONDS = 0.02


def picture(number: int, *, side: int = 64) -> bytes:
    """Return a picture that is different for each number. Larger ones are noise, which does not compress."""
    file = io.BytesIO()
    if side > 64:
        Image.frombytes("RGB", (side, side), os.urandom(3 * side * side)).save(file, "PNG", compress_level=0)
    else:
        Image.new("RGB", (side, side), f"#{number:06x}").save(file, "PNG")
    return file.getvalue()


async def comfyui_seconds(system: System, count: int) -> float:
    """Return ComfyUI's median time for such an image, from its messages."""
    found = []
    async with ComfyClient(system.simulator.url) as comfy, httpx.AsyncClient(base_url=system.simulator.url) as http:
        for number in range(count):
            uploaded = await comfy.upload(picture(number))
            result = await comfy.run(invert_file(uploaded.reference))
            history = (await http.get(f"/history/{result.prompt_id}")).json()[result.prompt_id]
            at = {kind: data["timestamp"] for kind, data in history["status"]["messages"]}
            found.append((at["execution_success"] - at["execution_start"]) / 1000)
    return float(statistics.median(found))


async def seconds_to_completed(system: System, effect_id: int, file_id: str) -> float:
    """Return the time from submission until the user sees the completion."""
    began = time.perf_counter()
    job_id = await system.submit(effect_id, input_file_id=file_id)
    path = f"/api/ai-jobs/{job_id}/events"
    async with system.http.stream("GET", path, headers={"Authorization": f"Bearer {system.user_token}"}) as stream:
        async for line in stream.aiter_lines():
            if line == "event: job:completed":
                return time.perf_counter() - began
            assert line not in ("event: job:failed", "event: job:canceled"), (
                "The job failed or was canceled: read the log of the worker."
            )
    raise AssertionError("The event stream ended before the job.")


async def added_ms(count: int) -> list[float]:
    """Return the time that each job takes in addition to ComfyUI's own time, sorted."""
    with tempfile.TemporaryDirectory(prefix="bench-worker-") as folder:
        async with open_system(Path(folder), {}, quiet=True) as system:
            own = await comfyui_seconds(system, min(count, 20))
            effect = await system.effect()
            files = [await _upload(system, picture(number)) for number in range(count)]
            await system.started(api_base_url=str(system.http.base_url))
            await seconds_to_completed(system, effect, files[0])
            return sorted([1000 * (await seconds_to_completed(system, effect, file) - own) for file in files])


async def gpu_utilization(jobs: int, **settings: Any) -> float:
    """Return the GPU utilization between the first and the last run, in percent."""
    with tempfile.TemporaryDirectory(prefix="bench-worker-") as folder:
        async with open_system(Path(folder), {}, quiet=True) as system:
            effect = await system.effect()
            pictures = [picture(number, side=256) for number in range(jobs)]
            submitted = [await system.submit(effect, content) for content in pictures]
            system.simulator.misbehave(Slow(class_type="ImageInvert", seconds=RUN_SECONDS))
            system.files.bytes_per_second = len(pictures[0]) / TRANSFER_SECONDS
            seen: list[bool] = []
            watching = asyncio.create_task(_watch(system.simulator.url, seen))
            await system.started(**settings)
            for job_id in submitted:
                await system.until(job_id, "completed", seconds=jobs * 10)
            watching.cancel()
            await asyncio.wait({watching})
    first, last = seen.index(True), len(seen) - seen[::-1].index(True)
    return 100 * sum(seen[first:last]) / (last - first)


async def _watch(url: str, seen: list[bool]) -> None:
    """Sample whether ComfyUI is running a job."""
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    async with httpx.AsyncClient(base_url=url) as http:
        while True:
            queue = (await http.get("/queue")).json()
            seen.append(bool(queue["queue_running"]))
            next_at += SAMPLE_SECONDS
            await asyncio.sleep(max(0.0, next_at - loop.time()))


async def _upload(system: System, content: bytes) -> str:
    return await system.upload(content, name="cat.png", mime_type="image/png")


async def measure(scale: float) -> list[Figure]:
    added = await added_ms(max(5, int(50 * scale)))
    jobs = max(4, int(20 * scale))
    sequential = await gpu_utilization(jobs, prefetch=0, upload_behind=0)
    overlapped = await gpu_utilization(jobs)
    p50, p90 = statistics.median(added), added[int(0.9 * len(added))]
    return [
        Figure("time added to a small image, p50", p50, "ms", goal="≤ 150 ms", is_met=p50 <= 150),
        Figure("time added to a small image, p90", p90, "ms"),
        Figure("GPU utilisation, 1 s + 3 s + 1 s, sequential", sequential, "%"),
        Figure(
            "GPU utilisation, 1 s + 3 s + 1 s, overlapped",
            overlapped,
            "%",
            "sequential",
            overlapped / sequential,
            "≥ 95 %",
            overlapped >= 95,
        ),
    ]
