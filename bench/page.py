"""The web app with a long history: time to load, time to respond, and idle cost.

The desk is a process started with `comfyrelay up`, and the page runs in a real Chromium on the same machine. The
history is created through the services, and every output then gets the same image.
"""

import asyncio
import gzip
import os
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import BrowserContext, Page

from bench.desk import (
    PROMPTS,
    DeskProcess,
    add,
    create_workflow,
    end_jobs,
    prompts,
    running,
    write_pictures,
)
from bench.figure import Figure
from comfyrelay.client import Client
from comfyrelay.domain.ids import poster_path
from comfyrelay.simulator import Simulator, Slow
from comfyrelay.web.app_files import APP
from tests.support.chromium import open_chromium
from tests.support.web_app import build_app
from tests.system.browser.sample_desk import picture

JOBS = 20_000
BATCH = 5_000
# For example, four images from one save node and one from another.
OUTPUTS_PER_JOB = 5
LOADS = 7
EVENTS = 40
PRESSES = 40
IDLE_SECONDS = 30.0
GOAL_BYTES = 200_000
GOAL_PAINT_MS = 200.0
GOAL_READY_MS = 1_000.0
GOAL_EVENT_MS = 1_000.0
GOAL_INPUT_MS = 50.0
GOAL_IDLE_PERCENT = 3.0
# The resolution of the browser's event timing.
MIN_INPUT_MS = 16.0
_SCRIPT = re.compile(r'(?:type="module"[^>]*src|rel="modulepreload"[^>]*href)="/(assets/[^"]+)"')
# Waits until the area is complete and the page responds.
_LOADED = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const isLoaded = () => IS_LOADED;
  const busy = [];
  new PerformanceObserver((seen) => busy.push(...seen.getEntries())).observe({ type: "longtask", buffered: true });
  while (!isLoaded()) await frame();
  await frame();
  await frame();
  const shown = performance.now();
  const ready = () => Math.max(shown, ...busy.map((task) => task.startTime + task.duration));
  while (performance.now() - ready() < 300) await frame();
  const [navigation] = performance.getEntriesByType("navigation");
  const [painted] = performance.getEntriesByName("first-contentful-paint");
  return {
    byte: navigation.responseStart - navigation.requestStart,
    paint: painted.startTime,
    ready: ready(),
  };
}"""
# The queue shows a batch by its label, or a job by its prompt.
_QUEUE = '/of the cat|cat on a roof/.test(document.querySelector("main")?.innerText)'
_GALLERY = '[...document.querySelectorAll("main img")].some((image) => image.complete && image.naturalWidth)'
# Resolves to the wall-clock time at which a text appears on the screen.
SEEN = """(text) => new Promise((done) => {
  const look = () => {
    if (!document.querySelector("main").innerText.includes(text)) return requestAnimationFrame(look);
    requestAnimationFrame(() => done(Date.now()));
  };
  look();
})"""
_INPUT = """() => {
  window.inputs = [];
  const record = (list) => window.inputs.push(...list.getEntries().map((entry) => [entry.name, entry.duration]));
  new PerformanceObserver(record).observe({ type: "event", durationThreshold: 16 });
}"""


@asynccontextmanager
async def history(folder: Path, simulator_url: str, jobs: int) -> AsyncIterator[tuple[DeskProcess, Client]]:
    """Yield a desk with this many ended jobs, most of them with an output, and an empty queue."""
    batch = min(jobs, BATCH)
    write_pictures(folder / "data" / "inputs" / "many", batch // PROMPTS)
    async with running(folder, simulator_url) as (_, client):
        slug = await create_workflow(client)
        for _ in range(jobs // batch):
            await add(client, slug, "many", prompts(PROMPTS))
        # the worker has already started one
        for job in [job async for job in client.jobs(status="processing")]:
            await client.cancel("job", job.id)
    await end_jobs(folder / "data", jobs)
    add_images(folder / "data")
    async with running(folder, simulator_url) as (desk, client):
        yield desk, client


def add_images(data_dir: Path) -> None:
    """Give every output an image and a poster."""
    original = data_dir / "objects" / "bench.png"
    original.write_bytes(picture(1))
    with sqlite3.connect(next(data_dir.glob("tenant*.db"))) as database:
        of_outputs = "id IN (SELECT id FROM outputs)"
        database.execute(f"UPDATE files SET poster = 'webp', width = 640, height = 480 WHERE {of_outputs}")
        for (path,) in database.execute(f"SELECT path FROM files WHERE {of_outputs}"):
            for name in (path, poster_path(path, "webp")):
                place = data_dir / "objects" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(original, place)
        join_outputs(database)


def join_outputs(database: sqlite3.Connection) -> None:
    """Assign every `OUTPUTS_PER_JOB` consecutive outputs to one job."""
    rows = database.execute("SELECT id, job_id FROM outputs ORDER BY created_at, id").fetchall()
    for start in range(0, len(rows), OUTPUTS_PER_JOB):
        job_id = rows[start][1]
        for number, (id_, _) in enumerate(rows[start : start + OUTPUTS_PER_JOB], start=1):
            database.execute("UPDATE outputs SET job_id = ?, number = ? WHERE id = ?", (job_id, number, id_))


# ------------------------------------------------------------------------------------------------ loading


def script_figure() -> Figure:
    """Return the gzipped size of the scripts that `index.html` loads or preloads."""
    names = _SCRIPT.findall((APP / "index.html").read_text("utf-8"))
    size = sum(len(gzip.compress((APP / name).read_bytes(), 9)) for name in names) / 1000
    goal = GOAL_BYTES / 1000
    return Figure("initial script, gzip", size, "KB", f"{len(names)} files", goal=f"≤ {goal:g} KB", is_met=size <= goal)


async def load_figures(context: BrowserContext, path: str, loaded_condition: str, name: str) -> list[Figure]:
    """Measure several loads, each with an empty cache."""
    found = [await _load(context, path, loaded_condition) for _ in range(LOADS)]
    middle = {key: statistics.median(load[key] for load in found) for key in found[0]}
    worst = {key: max(load[key] for load in found) for key in found[0]}

    def figure(key: str, label: str, goal_ms: float | None = None) -> Figure:
        goal = "" if goal_ms is None else f"≤ {goal_ms:g} ms"
        is_met = None if goal_ms is None else middle[key] <= goal_ms
        return Figure(f"{name}: {label}", middle[key], "ms", f"worst {worst[key]:.0f} ms", goal=goal, is_met=is_met)

    return [
        figure("byte", "time to first byte"),
        figure("paint", "first paint", GOAL_PAINT_MS),
        figure("ready", "time to interactive", GOAL_READY_MS),
    ]


async def _load(context: BrowserContext, path: str, loaded_condition: str) -> dict[str, float]:
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Network.clearBrowserCache")
    await page.goto(path, wait_until="commit")
    found: dict[str, float] = await page.evaluate(_LOADED.replace("IS_LOADED", loaded_condition))
    await page.close()
    return found


# ------------------------------------------------------------------------------------------------ responding


async def event_figures(page: Page, client: Client, slug: str, file_id: str) -> list[Figure]:
    """Measure the time from the response to a submission until an open page shows the job."""
    times_ms = []
    for number in range(EVENTS):
        label = f"seen {number:03d}"
        seen = asyncio.create_task(page.evaluate(SEEN, label))
        job = await client.submit(
            workflow_slug=slug, input_payload={"prompt": label}, input_file_id=file_id, label=label
        )
        began = time.time()
        times_ms.append(max(0.0, await seen - 1000 * began))
        await client.cancel("job", job.id)
    times_ms.sort()
    p50, p95 = statistics.median(times_ms), times_ms[int(0.95 * len(times_ms))]
    goal = f"≤ {GOAL_EVENT_MS:g} ms"
    return [
        Figure("event to screen, p50", p50, "ms"),
        Figure("event to screen, p95", p95, "ms", goal=goal, is_met=p95 <= GOAL_EVENT_MS),
    ]


async def input_figures(page: Page, name: str, keys: Sequence[str]) -> list[Figure]:
    """Measure the time from a key press to the next paint, as the browser reports it."""
    await page.evaluate(_INPUT)
    for number in range(PRESSES):
        await page.keyboard.press(keys[number % len(keys)], delay=40)
    # entries follow the paint they describe
    await page.wait_for_timeout(1000)
    slow = sorted(duration for kind, duration in await page.evaluate("window.inputs") if kind == "keydown")
    times_ms = [MIN_INPUT_MS] * (PRESSES - len(slow)) + slow
    p95 = times_ms[int(0.95 * len(times_ms))]
    goal = f"≤ {GOAL_INPUT_MS:g} ms"
    return [Figure(f"{name}, p95", p95, "ms", f"worst {times_ms[-1]:.0f} ms", goal=goal, is_met=p95 <= GOAL_INPUT_MS)]


async def idle_figure(desk: DeskProcess) -> Figure:
    """Measure the desk's CPU share while an idle page is open."""
    used = desk.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    share = 100 * (desk.cpu_seconds() - used) / IDLE_SECONDS
    goal = f"≤ {GOAL_IDLE_PERCENT:g} %"
    return Figure(
        "idle desk with an open page", share, "%", "of one core", goal=goal, is_met=share <= GOAL_IDLE_PERCENT
    )


# ------------------------------------------------------------------------------------------------ all figures


async def measure(scale: float) -> list[Figure]:
    jobs = max(PROMPTS, int(JOBS * scale))
    build_app()
    figures = [script_figure()]
    with tempfile.TemporaryDirectory(prefix="bench-page-") as folder:
        async with Simulator() as simulator, open_chromium() as chromium:
            simulator.misbehave(Slow(class_type="ImageInvert", seconds=3600, steps=3600))
            async with history(Path(folder), simulator.url, jobs) as (desk, client):
                context = await chromium.new_context(base_url=desk.url, viewport={"width": 1440, "height": 900})
                await sign_in(context, client)
                figures += await load_figures(context, "/queue", _QUEUE, f"queue, {jobs:,} jobs")
                figures += await load_figures(context, "/gallery", _GALLERY, f"gallery, {jobs:,} outputs")
                page = await context.new_page()
                await page.goto("/queue", wait_until="commit")
                await page.evaluate(_LOADED.replace("IS_LOADED", _QUEUE))
                figures.append(await idle_figure(desk))
                figures += await input_figures(page, "key press in the list", ["j", "j", "j", "k"])
                await page.keyboard.press("/")
                figures += await input_figures(page, "key press in the search", [*"roof", *(["Backspace"] * 4)])
                await page.keyboard.press("Escape")
                slug = await create_workflow(client)
                file_id = await client.upload(next((Path(folder) / "data" / "inputs" / "many").iterdir()))
                figures += await event_figures(page, client, slug, file_id)
                await context.close()
    return figures


async def sign_in(context: BrowserContext, client: Client) -> None:
    page = await context.new_page()
    await page.goto((await client.add_link()).url)
    await page.get_by_role("navigation", name="Areas").wait_for()
    await page.close()
