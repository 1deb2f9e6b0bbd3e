"""Empty jobs per second of two other PostgreSQL job queues with one worker process.

Jobs are enqueued in bulk beforehand. The clock runs from the start of the worker until
it has returned, with every job recorded as done in the database.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import asyncpg
import procrastinate
import uvloop
from pgqueuer import AsyncpgPoolDriver, Job, Queries, QueueManager
from pgqueuer.types import QueueExecutionMode

from bench.postgres import Server, postgres_server

CHUNK = 5_000


async def _settle(url: str) -> None:
    """Update the planner statistics, as autovacuum does in production."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def _count(url: str, query: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


def _check(found: int, jobs: int) -> None:
    if found != jobs:
        raise RuntimeError(f"{found} jobs done instead of {jobs}")


async def procrastinate_rate(server: Server, jobs: int, concurrency: int = 32, pool_size: int = 4) -> float:
    """Return the jobs per second of procrastinate with a psycopg connection pool."""
    url = await server.create_database("rival_procrastinate")
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=pool_size, max_size=pool_size)
    app = procrastinate.App(connector=connector)

    @app.task(name="empty")
    async def empty() -> None:
        pass

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        nothing: list[dict[str, Any]] = [{}] * jobs
        for start in range(0, jobs, CHUNK):
            await empty.batch_defer_async(*nothing[start : start + CHUNK])
        await _settle(url)
        begin = time.perf_counter()
        await app.run_worker_async(
            concurrency=concurrency,
            wait=False,
            listen_notify=False,
            install_signal_handlers=False,
        )
        elapsed = time.perf_counter() - begin
    done = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
    _check(await _count(url, done), jobs)
    return jobs / elapsed


async def pgqueuer_rate(server: Server, jobs: int, batch_size: int, pool_size: int = 5) -> float:
    """Return the jobs per second of pgqueuer with an asyncpg connection pool."""
    url = await server.create_database(f"rival_pgqueuer_{batch_size}")
    async with asyncpg.create_pool(url, min_size=pool_size, max_size=pool_size) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        for start in range(0, jobs, CHUNK):
            size = min(CHUNK, jobs - start)
            await queries.enqueue(["empty"] * size, [None] * size, [0] * size)
        await _settle(url)

        manager = QueueManager(queries)

        @manager.entrypoint("empty")
        async def empty(_job: Job) -> None:
            pass

        begin = time.perf_counter()
        await manager.run(batch_size=batch_size, mode=QueueExecutionMode.drain)
        elapsed = time.perf_counter() - begin
    done = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
    _check(await _count(url, done), jobs)
    _check(await _count(url, "SELECT count(*) FROM pgqueuer"), 0)
    return jobs / elapsed


async def measure(scale: float, rounds: int) -> None:
    """Print the rates. At scale 1, each takes five to ten seconds."""
    async with postgres_server() as server:
        for _ in range(rounds):
            jobs = int(6_000 * scale)
            rate = await procrastinate_rate(server, jobs)
            print(f"procrastinate concurrency=32  {jobs:>6} jobs {rate:>7.0f}/s", flush=True)
            for batch_size, full in ((10, 40_000), (100, 80_000)):
                jobs = int(full * scale)
                rate = await pgqueuer_rate(server, jobs, batch_size)
                print(f"pgqueuer batch_size={batch_size:<9} {jobs:>6} jobs {rate:>7.0f}/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the job counts")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    uvloop.run(measure(options.scale, options.rounds))


if __name__ == "__main__":
    main()
