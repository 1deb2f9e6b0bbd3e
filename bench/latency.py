"""Time to lease with few and with many rows, and the share of heartbeats that are HOT updates."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import asyncpg
import uvloop

from bench.engine import GRAPH, engine_on, fill, postgres_urls, vacuum
from bench.postgres import Server, postgres_server
from comfyrelay.services.engine import Engine
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest

PROVIDERS = ("self_hosted",)

# Rows of other workflows: most are done, the others are queued before the measured jobs.
CROWD = """
INSERT INTO ai_job_dispatches
       (tenant_id, tenant_job_id, shard, workflow_id, workflow_hash, provider, stage, status, priority, rank,
        max_attempts, available_at, created_at, finished_at)
SELECT 'crowd', 'crowd-' || n, 'a', $1::bigint + n % 20, 'crowd', 'self_hosted', 'production',
       CASE WHEN n <= $3 THEN 'queued' ELSE 'completed' END, 0, n, 3, now(), now(),
       CASE WHEN n <= $3 THEN NULL ELSE now() END
  FROM generate_series(1, $2::bigint) AS n
"""


@dataclass(frozen=True)
class Latency:
    p50_ms: float
    p99_ms: float


async def lease_latency(server: Server, *, rows: int, queued: int, samples: int = 400) -> Latency:
    """Return the time to lease one job, one worker at a time."""
    async with (
        postgres_urls(server, "latency", ("a",)) as (central_url, shard_urls),
        engine_on(central_url, shard_urls) as engine,
    ):
        await _crowd(engine, central_url, rows, queued)
        filled = await fill(engine, jobs=samples + 50, tenants=1, workers=1, concurrency=10_000)
        await vacuum([central_url, *shard_urls.values()])
        request = LeaseRequest(worker_id=filled.workers[0], providers=PROVIDERS)
        times = []
        for _ in range(samples + 50):
            begin = time.perf_counter()
            leased = await engine.queue.leasing.lease(request)
            times.append(time.perf_counter() - begin)
            if not leased:
                raise RuntimeError("No job was leased.")
            await engine.outbox.delivery.idle()
        # The first ones warm up connections and plans.
        measured = sorted(1000 * seconds for seconds in times[50:])
        return Latency(statistics.median(measured), measured[int(0.99 * len(measured))])


async def _crowd(engine: Engine, central_url: str, rows: int, queued: int) -> None:
    first = 0
    for n in range(20):
        workflow = await engine.catalogue.workflows.create(slug=f"crowd-{n}", graph=GRAPH)
        first = first or workflow.id
    connection = await asyncpg.connect(central_url)
    await connection.execute(CROWD, first, rows, queued)
    await connection.close()


async def hot_share(server: Server, *, leases: int = 200, beats: int = 20) -> float:
    """Return the share of heartbeats that PostgreSQL applied without touching an index."""
    async with (
        postgres_urls(server, "hot", ("a",)) as (central_url, shard_urls),
        engine_on(central_url, shard_urls) as engine,
    ):
        filled = await fill(engine, jobs=leases, tenants=1, workers=1, concurrency=leases)
        request = LeaseRequest(worker_id=filled.workers[0], providers=PROVIDERS, limit=leases)
        leased = await engine.queue.leasing.lease(request)
        # Leases are updates, too, but not measured.
        before = await _updates(central_url, at_least=leases)
        for beat in range(beats):
            heartbeats = [
                Heartbeat(
                    dispatch_id=dispatch.dispatch_id, lease_token=dispatch.lease_token, progress={"fraction": beat / 20}
                )
                for dispatch in leased
            ]
            await engine.queue.heartbeats.beat_many(heartbeats)
        after = await _updates(central_url, at_least=before[0] + leases * beats)
        return (after[1] - before[1]) / (after[0] - before[0])


async def _updates(url: str, *, at_least: int = 0) -> tuple[int, int]:
    """Return the number of all and of HOT updates of dispatches, once the delayed statistics have arrived."""
    connection = await asyncpg.connect(url)
    try:
        for _ in range(200):
            row = await connection.fetchrow(
                "SELECT n_tup_upd, n_tup_hot_upd, pg_sleep(0.1) FROM pg_stat_user_tables"
                " WHERE relname = 'ai_job_dispatches'"
            )
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            if row["n_tup_upd"] >= at_least:
                return row["n_tup_upd"], row["n_tup_hot_upd"]
        raise RuntimeError("The statistics of PostgreSQL did not arrive within 20 s.")
    finally:
        await connection.close()


async def measure() -> None:
    async with postgres_server() as server:
        print(f"heartbeats that are HOT: {100 * await hot_share(server):.1f} %", flush=True)
        for rows, queued in ((1_000, 100), (1_000_000, 100_000)):
            found = await lease_latency(server, rows=rows, queued=queued)
            print(f"lease with {rows:>9,} rows: p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.2f} ms", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    uvloop.run(measure())


if __name__ == "__main__":
    main()
