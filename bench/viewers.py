"""A server process with 200 viewers who watch their own queues while jobs come and go.

One viewer uses a real Chromium for "event to screen"; the others follow the same stream over HTTP. All share the
machine with the server and PostgreSQL.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass, field

import aiohttp
import orjson
from playwright.async_api import Page

from bench.figure import Figure
from bench.http import Caller, Site, job_body, site
from bench.page import GOAL_EVENT_MS, SEEN
from bench.postgres import Server
from comfyrelay.server.http.context import SESSION_COOKIE
from tests.support.chromium import open_chromium
from tests.support.web_app import build_app

VIEWERS = 200
JOBS = 200
PER_SECOND = 10
SCREEN_JOBS = 40


@dataclass
class Viewer:
    """A user with a token, and the time at which each job was seen."""

    token: str
    received_at: dict[str, float] = field(default_factory=dict)

    async def follow(self, session: aiohttp.ClientSession, url: str, is_open: asyncio.Event) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with session.get(f"{url}/api/events", headers=headers) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                is_open.set()
                if line.startswith(b"data: ") and b'"jobs"' in line:
                    now = time.perf_counter()
                    for job in orjson.loads(line[6:])["jobs"]:
                        self.received_at.setdefault(job["id"], now)


async def measure(server: Server, scale: float) -> list[Figure]:
    """Measure the time from the answer to a submission until the job is seen."""
    viewers, jobs = max(2, int(VIEWERS * scale)), max(10, int(JOBS * scale))
    build_app()
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        site(server, "viewers", 1) as here,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
        open_chromium() as chromium,
    ):
        audience = [Viewer(await _token(here, number)) for number in range(viewers)]
        *others, watching = audience
        async with asyncio.TaskGroup() as group:
            opened = [asyncio.Event() for _ in others]
            follows = [
                group.create_task(viewer.follow(session, here.urls[0], is_open))
                for viewer, is_open in zip(others, opened, strict=True)
            ]
            for is_open in opened:
                await is_open.wait()
            context = await chromium.new_context(base_url=here.urls[0], viewport={"width": 1440, "height": 900})
            await context.add_cookies([{"name": SESSION_COOKIE, "value": watching.token, "url": here.urls[0]}])
            page = await context.new_page()
            await page.goto("/queue")
            await page.get_by_role("navigation", name="Areas").wait_for()
            stream_ms, screen_ms = await asyncio.gather(
                _stream_times(here, session, others, jobs),
                _screen_times(here, session, watching, page, max(5, int(SCREEN_JOBS * scale))),
            )
            for task in follows:
                task.cancel()
            await context.close()
    goal = f"≤ {GOAL_EVENT_MS:g} ms"
    stream_p95, screen_p95 = _p95(stream_ms), _p95(screen_ms)
    return [
        Figure(f"{viewers} viewers: event to stream, p50", statistics.median(stream_ms), "ms"),
        Figure(
            f"{viewers} viewers: event to stream, p95", stream_p95, "ms", goal=goal, is_met=stream_p95 <= GOAL_EVENT_MS
        ),
        Figure(f"{viewers} viewers: event to screen, p50", statistics.median(screen_ms), "ms"),
        Figure(
            f"{viewers} viewers: event to screen, p95", screen_p95, "ms", goal=goal, is_met=screen_p95 <= GOAL_EVENT_MS
        ),
    ]


async def _token(here: Site, number: int) -> str:
    user = await here.engine.accounts.tenancy.create_user(email=f"viewer{number}@example.org")
    await here.engine.accounts.ledger.credit(user.tenant_id, 10**6, reference="bench")
    return (await here.engine.accounts.sign_in.issue(user, name="bench")).secret


async def _stream_times(here: Site, session: aiohttp.ClientSession, viewers: list[Viewer], jobs: int) -> list[float]:
    sent: list[tuple[Viewer, str, float]] = []

    async def submit(number: int) -> None:
        viewer = viewers[number % len(viewers)]
        job = await Caller(session, here.urls[0], viewer.token).post("/api/ai-jobs", job_body(here, number))
        sent.append((viewer, job["id"], time.perf_counter()))

    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(submit(number))
            await asyncio.sleep(1 / PER_SECOND)
    async with asyncio.timeout(30):
        while not all(job in viewer.received_at for viewer, job, _ in sent):  # noqa: ASYNC110  (of 200 streams)
            await asyncio.sleep(0.05)
    # a stream may be faster than the answer
    return [max(0.0, 1000 * (viewer.received_at[job] - answered)) for viewer, job, answered in sent]


async def _screen_times(
    here: Site, session: aiohttp.ClientSession, viewer: Viewer, page: Page, jobs: int
) -> list[float]:
    caller, took = Caller(session, here.urls[0], viewer.token), []
    for number in range(jobs):
        label = f"seen {number:03d}"
        seen = asyncio.create_task(page.evaluate(SEEN, label))
        job = await caller.post("/api/ai-jobs", {**job_body(here, 10**6 + number), "label": label})
        answered = 1000 * time.time()
        took.append(max(0.0, await seen - answered))
        # the next one appears in its place
        await caller.post(f"/api/ai-jobs/{job['id']}/cancel", {})
    return took


def _p95(times: list[float]) -> float:
    return sorted(times)[int(0.95 * len(times))]
