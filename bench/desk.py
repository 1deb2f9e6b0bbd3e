"""Waiting times of a desk: its start, adding a large batch, and pages over a long history.

The desk is a process started with `comfyrelay up`. The simulator runs in this process and takes an hour per job, so one
job runs and the others wait. The services create the history.
"""

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.figure import Figure
from bench.worker import picture
from comfyrelay.client import Client
from comfyrelay.services.engine import Engine
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Report, SettledOutput, Verb
from comfyrelay.settings import Settings
from comfyrelay.simulator import Simulator, Slow
from comfyrelay.system.owner_secret import load_secret
from tests.support.processes import Service
from tests.support.server_processes import free_port

GRAPH = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "{{IMAGE}}"}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "out"}},
    "4": {"class_type": "PreviewAny", "inputs": {"source": "{{PROMPT}}"}},
    "5": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": "{{SEED}}"}},
}
PROPERTIES = [
    {"key": "image", "type": "image", "placeholder": "{{IMAGE}}", "required": True, "is_primary_input": True},
    {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "required": True},
    {"key": "seed", "type": "number", "placeholder": "{{SEED}}", "default_value": 1},
]
PROMPTS = 100
ITEMS = 5_000
SINGLES = 4_000
SMALL_BATCHES = 100
SMALL_BATCH = 10
# Share of ended jobs. One in twenty of them failed.
ENDED_SHARE = 0.6
FAILED_EVERY = 20
ERROR = "HTTP 400: Value not in list: ckpt_name: 'wan2.2_i2v.safetensors' not in []"
OUTPUT = SettledOutput(size=1, mime_type="image/png", extension="png")
RARE = "the only zeppelin"
GOAL_MS = 50.0
GOAL_ADD_SECONDS = 10.0
TICKS = os.sysconf("SC_CLK_TCK")
# Keep bytecode, as an installed package does.
COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "bench-desk-pyc")}


@dataclass
class DeskProcess:
    """A restartable `comfyrelay up` with its data folder."""

    folder: Path
    comfyui_url: str | None
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.environment = {
            "COMFYRELAY_DATA_DIR": str(self.folder / "data"),
            "COMFYRELAY_PORT": str(self.port),
            "COMFYRELAY_DESK_SHUTDOWN_SECONDS": "0",
            **(
                {"COMFYRELAY_DESK_COMFYUI_URL": self.comfyui_url}
                if self.comfyui_url
                else {"COMFYRELAY_DESK_SIMULATOR": "1"}
            ),
            **COMPILED,
        }
        self.service = Service("up", "up", environment=self.environment, log=self.folder / "up.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> tuple[float, float]:
        """Start the desk. Return the seconds from process start to the first answer, and the CPU seconds."""
        began = time.perf_counter()
        await self.service.start()
        await self._wait_for_answer()
        seconds = time.perf_counter() - began
        return seconds, self.cpu_seconds()

    def cpu_seconds(self) -> float:
        """CPU seconds of the process so far."""
        times = Path(f"/proc/{self.service.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / TICKS

    async def stop(self) -> None:
        if self.service.is_running:
            self.service.send(signal.SIGTERM)
        await self.service.ended()

    async def _wait_for_answer(self) -> None:
        while True:
            assert self.service.is_running, self.service.text()[-4000:]
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.005)
                continue
            # the answer follows once the application has started
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
            return


@asynccontextmanager
async def running(folder: Path, comfyui_url: str | None) -> AsyncIterator[tuple[DeskProcess, Client]]:
    desk = DeskProcess(folder, comfyui_url)
    await desk.start()
    try:
        async with Client(desk.url) as client:
            yield desk, client
    finally:
        await desk.stop()


# ------------------------------------------------------------------------------------------------ start


async def start_figures(simulator_url: str, filled: Path, jobs: int, rounds: int) -> list[Figure]:
    figures = []
    for name, comfyui_url, folder in (
        ("new folder, simulator", None, None),
        ("new folder, ComfyUI", simulator_url, None),
        (f"{jobs:,} jobs, ComfyUI", simulator_url, filled),
    ):
        figures.append(
            duration_figure(f"start of `up`, {name}", [await _start(folder, comfyui_url) for _ in range(rounds)])
        )
    return figures


async def _start(folder: Path | None, comfyui_url: str | None) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="bench-desk-") as new:
        desk = DeskProcess(folder or Path(new), comfyui_url)
        try:
            return await desk.start()
        finally:
            await desk.stop()


def duration_figure(name: str, found: Sequence[tuple[float, float]]) -> Figure:
    """Median wall time and minimum CPU time."""
    return Figure(name, statistics.median(run[0] for run in found), "s", f"CPU {min(run[1] for run in found):.2f} s")


# ------------------------------------------------------------------------------------------------ adding


async def create_workflow(client: Client) -> str:
    return str((await client.create_workflow(GRAPH, name="bench", properties=PROPERTIES)).slug)


def write_pictures(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"picture {number:04d}.png").write_bytes(picture(number))


def prompts(count: int) -> list[str]:
    """Return prompts of realistic length. A label shows the first words."""
    rest = "slow dolly in, shallow depth of field, warm light of the evening, film grain, 35 mm, high detail"
    return [f"scene {number:03d}: a cat on a roof, {rest}" for number in range(count)]


async def add(client: Client, slug: str, folder: str, texts: Sequence[str]) -> tuple[str, float]:
    """Add a batch of folder × prompts. Return its id and the seconds until the answer."""
    request = {"workflow_slug": slug, "input_subdir": folder, "prompts": list(texts), "label": f"{folder} of the cat"}
    began = time.perf_counter()
    batch = await client.add_batch(request)
    return batch.id, time.perf_counter() - began


# ------------------------------------------------------------------------------------------------ a long history


async def add_singles(client: Client, slug: str, file: Path, count: int) -> None:
    """Add jobs without a batch. One of them has a unique label."""
    file_id = await client.upload(file)
    numbers = iter(range(count))

    async def submit() -> None:
        for number in numbers:
            label = RARE if number == count // 2 else f"portrait {number:04d}"
            values = {"prompt": prompts(1)[0]}
            await client.submit(workflow_slug=slug, input_payload=values, input_file_id=file_id, label=label)

    await asyncio.gather(*(submit() for _ in range(8)))


async def end_jobs(data_dir: Path, count: int) -> None:
    """Lease and settle jobs in queue order, like an infinitely fast worker."""
    async with Engine(Settings(data_dir=data_dir)) as engine:
        await engine.workers.workers.register(worker_id="bench", fleet_slug="desk", max_concurrency=100)
        request = LeaseRequest(worker_id="bench", providers=("self_hosted",), limit=100)
        done = 0
        while done < count and (leased := await engine.queue.leasing.lease(request)):
            reports = [
                Report(verb=Verb.FAIL, dispatch_id=dispatch.dispatch_id, lease_token=dispatch.lease_token, error=ERROR)
                if number % FAILED_EVERY == 0
                else Report(
                    verb=Verb.COMPLETE,
                    dispatch_id=dispatch.dispatch_id,
                    lease_token=dispatch.lease_token,
                    output=OUTPUT,
                )
                for number, dispatch in enumerate(leased, done)
            ]
            for answer in await engine.queue.settle.report_many(reports):
                if isinstance(answer, Exception):
                    raise answer
            done += len(leased)
        await engine.workers.workers.deregister("bench")
        await engine.outbox.delivery.idle()


# ------------------------------------------------------------------------------------------------ the page


async def page_figures(desk: DeskProcess, data_dir: Path, batch_id: str, rounds: int) -> list[Figure]:
    """Measure the requests of a page, in order, over an open connection."""
    headers = {"Authorization": f"Bearer {load_secret(data_dir)}"}
    async with aiohttp.ClientSession(desk.url, headers=headers) as http:

        async def get(path: str, **query: Any) -> Any:
            params = {name: str(value) for name, value in query.items() if value}
            async with http.get(path, params=params) as answer:
                assert answer.status == 200, await answer.text()
                return (await answer.json())["data"]

        async def last_cursor(path: str, **query: Any) -> str:
            """Return the cursor of the last page."""
            cursor = ""
            while next_cursor := (await get(path, limit=200, cursor=cursor, **query))["next_cursor"]:
                cursor = next_cursor
            return cursor

        jobs, single = "/api/ai-jobs", {"no_batch": "true"}
        item_id = (await get(jobs, batch_id=batch_id, limit=1))["items"][0]["id"]
        requests: dict[str, tuple[str, dict[str, Any]]] = {
            "status of the queue": ("/api/desk/now", {}),
            "first page of jobs": (jobs, {"limit": 50, **single}),
            "first page of batches": ("/api/batches", {"limit": 50}),
            "running jobs": (jobs, {"limit": 50, "status": "processing"}),
            "failed jobs": (jobs, {"limit": 50, "status": "failed", **single}),
            "completed jobs": (jobs, {"limit": 50, "status": "completed", **single}),
            "filter without matches": (jobs, {"limit": 50, "status": "canceled", **single}),
            "search with one match": (jobs, {"limit": 50, "q": RARE}),
            "search that matches half": (jobs, {"limit": 50, "q": "picture 00"}),
            "search without matches": (jobs, {"limit": 50, "q": "xylophone"}),
            "search in failed jobs": (jobs, {"limit": 50, "q": "not in list", "status": "failed"}),
            "last page of jobs": (jobs, {"limit": 200, "cursor": await last_cursor(jobs, **single), **single}),
            "last page of a search": (
                jobs,
                {"limit": 200, "q": "picture", "cursor": await last_cursor(jobs, q="picture")},
            ),
            "last page of batches": ("/api/batches", {"limit": 200, "cursor": await last_cursor("/api/batches")}),
            "large batch": (f"/api/batches/{batch_id}", {}),
            "items of the batch": (jobs, {"batch_id": batch_id, "limit": 100}),
            "running items of the batch": (jobs, {"batch_id": batch_id, "status": "processing", "limit": 50}),
            "last items of the batch": (
                jobs,
                {"batch_id": batch_id, "limit": 200, "cursor": await last_cursor(jobs, batch_id=batch_id)},
            ),
            "job": (f"{jobs}/{item_id}", {}),
            "details of the job": (f"/api/desk/jobs/{item_id}", {}),
        }
        figures = []
        for name, (path, query) in requests.items():
            took, used = [], desk.cpu_seconds()
            for _ in range(rounds):
                began = time.perf_counter()
                await get(path, **query)
                took.append(1000 * (time.perf_counter() - began))
            took.sort()
            p50, p95 = statistics.median(took), took[int(0.95 * len(took))]
            used = 1000 * (desk.cpu_seconds() - used) / rounds
            baseline = f"p95 {p95:.0f} ms, CPU {used:.0f} ms"
            goal = f"≤ {GOAL_MS:g} ms"
            figures.append(Figure(f"{name}, p50", p50, "ms", baseline, goal=goal, is_met=p50 <= GOAL_MS))
        return figures


# ------------------------------------------------------------------------------------------------ all figures


async def measure(scale: float) -> list[Figure]:
    items, rounds = max(PROMPTS, int(ITEMS * scale)), 5
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bench-desk-") as name:
        folder = Path(name)
        data_dir, inputs = folder / "data", folder / "data" / "inputs"
        async with Simulator() as simulator:
            simulator.misbehave(Slow(class_type="ImageInvert", seconds=3600, steps=3600))
            async with running(folder, simulator.url) as (_, client):
                slug = await create_workflow(client)
                write_pictures(inputs / "few", items // PROMPTS)
                write_pictures(inputs / "many", items)
                write_pictures(inputs / "ten", SMALL_BATCH)
                await add_singles(client, slug, inputs / "few" / "picture 0000.png", int(SINGLES * scale))
                for _ in range(int(SMALL_BATCHES * scale)):
                    await add(client, slug, "ten", prompts(1))
                crossed = [await add(client, slug, "few", prompts(PROMPTS)) for _ in range(2)]
                many = await add(client, slug, "many", prompts(1))
            seconds = statistics.median(added[1] for added in crossed)
            figures += [
                add_figure(f"adding {items:,} items, {items // PROMPTS} pictures × {PROMPTS} prompts", items, seconds),
                add_figure(f"adding {items:,} items, as many pictures", items, many[1]),
            ]
            total = int(SINGLES * scale) + int(SMALL_BATCHES * scale) * SMALL_BATCH + 3 * items
            await end_jobs(data_dir, int(total * ENDED_SHARE))
            async with running(folder, simulator.url) as (desk, client):
                figures += await page_figures(desk, data_dir, crossed[1][0], rounds=40)
            figures += await start_figures(simulator.url, folder, total, rounds)
    return figures


def add_figure(name: str, items: int, seconds: float) -> Figure:
    goal = f"≤ {GOAL_ADD_SECONDS:g} s"
    return Figure(name, seconds, "s", f"{items / seconds:,.0f} /s", goal=goal, is_met=seconds <= GOAL_ADD_SECONDS)
