"""The control plane over HTTP: time to lease, cycles per second, and the cost of parked workers."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import procrastinate

from bench.engine import engine_on, postgres_urls
from bench.figure import Figure
from bench.postgres import Server
from comfyrelay.domain.records.accounts import User
from comfyrelay.services.accounts.sign_in import hash_secret
from comfyrelay.services.engine import Engine

GRAPH = {"1": {"class_type": "SaveVideo", "inputs": {"text": "a cat"}}}
FIRST_PORT = 8471
TICKS = os.sysconf("SC_CLK_TCK")
# Numbers of first jobs to ignore, because connections and statements are cold.
COLD_JOBS, COLD_HANDOVERS = 100, 20
OUTPUT = {"output": {"size": 1, "mime_type": "video/mp4"}}


@dataclass
class Site:
    """Server processes over one database, an engine in this process to fill it, and a user."""

    engine: Engine
    urls: list[str]
    pids: list[int]
    central: str
    user: User
    token: str
    effect_id: int

    async def workers(self, count: int) -> list[tuple[str, str]]:
        """Register workers. Return their names and tokens."""
        workers = [(f"worker-{number}", f"token-{number}") for number in range(count)]
        for name, token in workers:
            await self.engine.workers.workers.register(
                worker_id=name, fleet_slug="bench", token_hash=hash_secret(token)
            )
        return workers


@asynccontextmanager
async def site(server: Server, name: str, processes: int, **settings: str) -> AsyncIterator[Site]:
    async with postgres_urls(server, name, ["main"]) as (central, shards), AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-http-"))
        # in the servers' folder, where they look for graphs
        engine = await stack.enter_async_context(engine_on(central, shards, data_dir=Path(folder)))
        user = await engine.accounts.tenancy.create_user(email="bench@example.org")
        await engine.accounts.ledger.credit(user.tenant_id, 10**9, reference="bench")
        token = (await engine.accounts.sign_in.issue(user, name="bench")).secret
        await engine.catalogue.workflows.create(slug="bench", graph=GRAPH)
        effect = await engine.catalogue.effects.create(slug="bench", workflow_slug="bench", credits_cost=7)
        await engine.workers.fleets.create(slug="bench", max_workers=1_000_000, workflow_slugs=["bench"])
        ports = [FIRST_PORT + number for number in range(processes)]
        pids = [await stack.enter_async_context(_process(folder, central, shards, port, settings)) for port in ports]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        yield Site(engine, urls, pids, central, user, token, effect.id)


@asynccontextmanager
async def _process(
    folder: str, central: str, shards: dict[str, str], port: int, more: Mapping[str, str]
) -> AsyncIterator[int]:
    settings = {
        "DATA_DIR": folder,
        "DATABASE_URL": central,
        "SHARDS": json.dumps(shards),
        "PORT": str(port),
        "OUTPUT_VALIDATION": "warn",
        "MAX_ACTIVE_JOBS_PER_USER": "1000000",
        **more,
    }
    env = {**os.environ, **{f"COMFYRELAY_{key}": value for key, value in settings.items()}}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "comfyrelay", "server", "--log-level", "error", env=env, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    await session.get(f"http://127.0.0.1:{port}/healthz")
                except aiohttp.ClientError:
                    if process.returncode is not None:
                        raise RuntimeError("The server did not start.") from None
                    await asyncio.sleep(0.1)
                else:
                    break
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


class Caller:
    """A client with a token."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(f"{self._url}{path}", json=body, headers=self._headers) as answer:
            if answer.status >= 400:
                raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")
            return (await answer.json())["data"]


async def handover_ms(server: Server, jobs: int) -> list[float]:
    """Return the times from submission until a parked worker has the job, one job at a time."""
    times = []
    async with site(server, "handover", 1) as here, aiohttp.ClientSession() as session:
        [(name, token)] = await here.workers(1)
        user, worker = Caller(session, here.urls[0], here.token), Caller(session, here.urls[0], token)
        for number in range(jobs):
            waiting = asyncio.create_task(worker.post("/api/worker/poll", {"worker_id": name, "wait_seconds": 30}))
            # long enough for the poll to be parked
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            asyncio.create_task(user.post("/api/ai-jobs", job_body(here, number)))  # noqa: RUF006
            job = (await waiting)["job"]
            times.append(1000 * (time.perf_counter() - began))
            await worker.post("/api/worker/complete", {**_lease(job), **OUTPUT})
    return times


async def procrastinate_ms(server: Server, jobs: int) -> list[float]:
    """Return the same times for procrastinate: from deferring until the worker starts the job."""
    url = await server.create_database("rival_latency")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    started = asyncio.Event()

    @app.task(name="empty")
    async def empty() -> None:
        started.set()

    times = []
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False))
        for _ in range(jobs):
            await asyncio.sleep(0.02)
            started.clear()
            began = time.perf_counter()
            await empty.defer_async()
            await started.wait()
            times.append(1000 * (time.perf_counter() - began))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return times


async def cycles_per_second(
    server: Server, jobs: int, workers: int, processes: int, *, is_combined: bool = False
) -> tuple[float, float]:
    """Cycles over HTTP, and the CPU milliseconds of the servers per job, which depend less on other load.

    If combined, each completion polls for the next job.
    """
    async with site(server, "cycles", processes) as here:
        await _fill(here, jobs)
        credentials = await here.workers(workers)
        done = 0
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def work(number: int) -> None:
                nonlocal done
                name, token = credentials[number]
                caller = Caller(session, here.urls[number % processes], token)
                poll = {"worker_id": name}
                following = {"next": poll} if is_combined else {}
                answer = await caller.post("/api/worker/poll", poll)
                while job := answer["job"]:
                    settled = await caller.post("/api/worker/complete", {**_lease(job), **OUTPUT, **following})
                    done += 1
                    answer = settled["next"] if is_combined else await caller.post("/api/worker/poll", poll)

            began, used = time.perf_counter(), sum(map(_cpu_seconds, here.pids))
            await asyncio.gather(*(work(number) for number in range(workers)))
            seconds = time.perf_counter() - began
            used = sum(map(_cpu_seconds, here.pids)) - used
    if done != jobs:
        raise RuntimeError(f"{done} jobs done instead of {jobs}")
    return done / seconds, 1000 * used / done


@dataclass(frozen=True)
class ParkedCost:
    kib_per_worker: float
    transactions_per_second: float
    cold_p99_ms: float
    warm_p99_ms: float


async def parked(server: Server, workers: int, *, jobs: int, per_second: int) -> ParkedCost:
    """Return the cost of workers parked at one process, and the time until one of them gets a job."""
    async with site(server, "parked", 1) as here:
        credentials = await here.workers(workers)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            before = _rss_kib(here.pids[0])
            got: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

            async def wait(name: str, token: str) -> None:
                caller = Caller(session, here.urls[0], token)
                while True:
                    job = (await caller.post("/api/worker/poll", {"worker_id": name, "wait_seconds": 30}))["job"]
                    if job is not None:
                        got.put_nowait((job["job_id"], time.perf_counter()))
                        await caller.post("/api/worker/complete", {**_lease(job), **OUTPUT})

            tasks = [asyncio.create_task(wait(name, token)) for name, token in credentials]
            # The first poll of each worker looks up its token.
            await asyncio.sleep(15 + workers / 200)
            kib = (_rss_kib(here.pids[0]) - before) / workers
            transactions = await _transactions_per_second(here.central, seconds=10)
            user = Caller(session, here.urls[0], here.token)
            sent: dict[str, float] = {}

            async def submit(number: int) -> None:
                began = time.perf_counter()
                sent[(await user.post("/api/ai-jobs", job_body(here, number)))["id"]] = began

            submissions = []
            for number in range(jobs):
                submissions.append(asyncio.create_task(submit(number)))
                await asyncio.sleep(1 / per_second)
            await asyncio.gather(*submissions)
            taken = dict([await got.get() for _ in range(jobs)])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    times = [1000 * (taken[job] - began) for job, began in sorted(sent.items(), key=itemgetter(1))]
    return ParkedCost(kib, transactions, _p99(times[:COLD_JOBS]), _p99(times[COLD_JOBS:]))


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


def job_body(here: Site, number: int) -> dict[str, Any]:
    return {"effect_id": here.effect_id, "idempotency_key": f"bench-{number}", "input_payload": {}}


def _lease(job: dict[str, Any]) -> dict[str, Any]:
    return {"dispatch_id": job["dispatch_id"], "lease_token": job["lease_token"]}


async def _fill(here: Site, jobs: int) -> None:
    async with aiohttp.ClientSession() as session:
        user = Caller(session, here.urls[0], here.token)
        for start in range(0, jobs, 1000):
            items: list[dict[str, Any]] = [{"input_payload": {}}] * min(1000, jobs - start)
            await user.post("/api/batches", {"effect_id": here.effect_id, "items": items})


async def _transactions_per_second(url: str, *, seconds: float) -> float:
    """Return the transactions per second in the central database."""
    connection = await asyncpg.connect(url)
    try:
        query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        before = await connection.fetchval(query)
        await asyncio.sleep(seconds)
        # not counting this query
        return float(await connection.fetchval(query) - before - 1) / seconds
    finally:
        await connection.close()


def _cpu_seconds(pid: int) -> float:
    times = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / TICKS


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no VmRSS.")


async def measure(server: Server, scale: float, empty_jobs_per_second: float) -> list[Figure]:
    times = (await handover_ms(server, COLD_HANDOVERS + int(200 * scale)))[COLD_HANDOVERS:]
    procrastinate_times = await procrastinate_ms(server, int(200 * scale))
    p50, p99 = statistics.median(times), _p99(times)
    rate, cpu_ms = await cycles_per_second(server, int(6_000 * scale), workers=64, processes=2)
    ratio = rate / empty_jobs_per_second
    combined_rate, combined_ms = await cycles_per_second(
        server, int(6_000 * scale), workers=64, processes=2, is_combined=True
    )
    combined_ratio = combined_rate / empty_jobs_per_second
    idle = await parked(server, int(10_000 * scale), jobs=500, per_second=50)
    return [
        Figure(
            "submit until a parked worker has the job, p50",
            p50,
            "ms",
            "procrastinate",
            p50 / statistics.median(procrastinate_times),
            "≤ 1.5 ×",
            p50 <= 1.5 * statistics.median(procrastinate_times),
        ),
        Figure("submit until a parked worker has the job, p99", p99, "ms", goal="≤ 25 ms", is_met=p99 <= 25),
        Figure(
            "poll and complete over HTTP, 64 workers, 2 processes",
            rate,
            "/s",
            "procrastinate",
            ratio,
            "≥ 2 ×",
            ratio >= 2,
        ),
        Figure("  CPU time of the servers per job", cpu_ms, "ms"),
        Figure(
            "complete with the next poll over HTTP, 64 workers, 2 processes",
            combined_rate,
            "/s",
            "procrastinate",
            combined_ratio,
            "≥ 2 ×",
            combined_ratio >= 2,
        ),
        Figure("  CPU time of the servers per job", combined_ms, "ms"),
        Figure(
            "memory of a parked worker", idle.kib_per_worker, "KiB", goal="≤ 10 KiB", is_met=idle.kib_per_worker <= 10
        ),
        Figure(
            "transactions with only parked workers",
            idle.transactions_per_second,
            "/s",
            goal="≤ 2 /s",
            is_met=idle.transactions_per_second <= 2,
        ),
        Figure(
            "delivery at 50 jobs a second, first two seconds, p99",
            idle.cold_p99_ms,
            "ms",
            goal="≤ 250 ms",
            is_met=idle.cold_p99_ms <= 250,
        ),
        Figure(
            "delivery at 50 jobs a second, then, p99",
            idle.warm_p99_ms,
            "ms",
            goal="≤ 50 ms",
            is_met=idle.warm_p99_ms <= 50,
        ),
    ]
