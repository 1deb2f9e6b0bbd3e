"""A server with 200 viewers who watch their own queues on one process while jobs come and go.

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
    """A user with a token, and when each job was seen."""

    token: str
    heard: dict[str, float] = field(default_factory=dict)

    async def follow(self, session: aiohttp.ClientSession, url: str, is_open: asyncio.Event) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with session.get(f"{url}/api/events", headers=headers) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                is_open.set()
                if line.startswith(b"data: ") and b'"jobs"' in line:
                    now = time.perf_counter()
                    for job in orjson.loads(line[6:])["jobs"]:
                        self.heard.setdefault(job["id"], now)


async def measure(server: Server, scale: float) -> list[Figure]:
    """From the answer to a submission until the job is seen."""
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
                group.create_task(each.follow(session, here.urls[0], is_open))
                for each, is_open in zip(others, opened, strict=True)
            ]
            for each in opened:
                await each.wait()
            context = await chromium.new_context(base_url=here.urls[0], viewport={"width": 1440, "height": 900})
            await context.add_cookies([{"name": SESSION_COOKIE, "value": watching.token, "url": here.urls[0]}])
            page = await context.new_page()
            await page.goto("/queue")
            await page.get_by_role("navigation", name="Areas").wait_for()
            heard, seen = await asyncio.gather(
                _heard(here, session, others, jobs),
                _seen(here, session, watching, page, max(5, int(SCREEN_JOBS * scale))),
            )
            for task in follows:
                task.cancel()
            await context.close()
    reach = f"≤ {GOAL_EVENT_MS:g} ms"
    p95_heard, p95_seen = _p95(heard), _p95(seen)
    return [
        Figure(f"{viewers} viewers: event to stream, p50", statistics.median(heard), "ms"),
        Figure(
            f"{viewers} viewers: event to stream, p95", p95_heard, "ms", reach=reach, holds=p95_heard <= GOAL_EVENT_MS
        ),
        Figure(f"{viewers} viewers: event to screen, p50", statistics.median(seen), "ms"),
        Figure(
            f"{viewers} viewers: event to screen, p95", p95_seen, "ms", reach=reach, holds=p95_seen <= GOAL_EVENT_MS
        ),
    ]


async def _token(here: Site, number: int) -> str:
    user = await here.engine.accounts.tenancy.create_user(email=f"viewer{number}@example.org")
    await here.engine.accounts.ledger.credit(user.tenant_id, 10**6, reference="bench")
    return (await here.engine.accounts.sign_in.issue(user, name="bench")).secret


async def _heard(here: Site, session: aiohttp.ClientSession, viewers: list[Viewer], jobs: int) -> list[float]:
    sent: list[tuple[Viewer, str, float]] = []

    async def submit(number: int) -> None:
        viewer = viewers[number % len(viewers)]
        made = await Caller(session, here.urls[0], viewer.token).post("/api/ai-jobs", job_body(here, number))
        sent.append((viewer, made["id"], time.perf_counter()))

    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(submit(number))
            await asyncio.sleep(1 / PER_SECOND)
    async with asyncio.timeout(30):
        while not all(job in viewer.heard for viewer, job, _ in sent):  # noqa: ASYNC110  (of 200 streams)
            await asyncio.sleep(0.05)
    # a stream may be faster than the answer
    return [max(0.0, 1000 * (viewer.heard[job] - answered)) for viewer, job, answered in sent]


async def _seen(here: Site, session: aiohttp.ClientSession, viewer: Viewer, page: Page, jobs: int) -> list[float]:
    caller, took = Caller(session, here.urls[0], viewer.token), []
    for number in range(jobs):
        label = f"seen {number:03d}"
        seen = asyncio.create_task(page.evaluate(SEEN, label))
        made = await caller.post("/api/ai-jobs", {**job_body(here, 10**6 + number), "label": label})
        answered = 1000 * time.time()
        took.append(max(0.0, await seen - answered))
        # the next one appears in its place
        await caller.post(f"/api/ai-jobs/{made['id']}/cancel", {})
    return took


def _p95(times: list[float]) -> float:
    return sorted(times)[int(0.95 * len(times))]
