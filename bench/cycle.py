"""Lease → complete cycles per second, with ledger, video, output, attempt, event and audit in both databases."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench.engine import Filled, count_rows, engine_on, fill, postgres_urls, vacuum
from bench.postgres import Server, postgres_server
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Report, SettledOutput, Verb

OUTPUT = SettledOutput(size=1, mime_type="video/mp4", extension="mp4")
PROVIDERS = ("self_hosted",)

# Rows of a completed job in its shard and in the central database.
TENANT_ROWS = {
    "jobs completed": "SELECT count(*) FROM ai_jobs WHERE status = 'completed' AND output_file_id IS NOT NULL",
    "consumed": "SELECT count(*) FROM token_transactions WHERE type = 'JOB_CONSUME'",
    "refunded": "SELECT count(*) FROM token_transactions WHERE type = 'JOB_REFUND'",
    "attempts": "SELECT count(*) FROM job_attempts WHERE outcome = 'completed' AND ended_at IS NOT NULL",
    "events": "SELECT count(*) FROM job_events",
    "videos": "SELECT count(*) FROM videos WHERE status = 'completed' AND processed_file_id IS NOT NULL",
    "output files": "SELECT count(*) FROM files WHERE path LIKE 'tenants/%'",
    "held tokens": "SELECT coalesce(sum(balance), 0) FROM token_wallets",
}
CENTRAL_ROWS = {
    "dispatches completed": "SELECT count(*) FROM ai_job_dispatches WHERE status = 'completed'",
    "leases ended": "SELECT count(*) FROM dispatch_leases WHERE outcome = 'completed'",
    "audit": "SELECT count(*) FROM worker_audit_logs WHERE event IN ('lease', 'complete')",
    "outbox entries": "SELECT count(*) FROM outbox",
    "effects timed": "SELECT count(*) FROM effects WHERE last_processing_time_seconds IS NOT NULL",
}


async def one_at_a_time(filled: Filled) -> None:
    """Each worker leases and completes one job at a time; the engine may group their transactions."""
    engine = filled.engine

    async def work(worker: str) -> None:
        request = LeaseRequest(worker_id=worker, providers=PROVIDERS)
        while leased := await engine.queue.polls.poll(request):
            for dispatch in leased:
                await engine.queue.settle.report(_completed(dispatch), wait_for_tenant=False)

    await asyncio.gather(*(work(worker) for worker in filled.workers))


def _completed(leased: LeasedDispatch) -> Report:
    return Report(verb=Verb.COMPLETE, dispatch_id=leased.dispatch_id, lease_token=leased.lease_token, output=OUTPUT)


def many_per_call(limit: int) -> Callable[[Filled], Awaitable[None]]:
    """Each worker leases `limit` jobs in one call, and completes them in another."""

    async def run(filled: Filled) -> None:
        engine = filled.engine

        async def work(worker: str) -> None:
            request = LeaseRequest(worker_id=worker, providers=PROVIDERS, limit=limit)
            while leased := await engine.queue.leasing.lease(request):
                for answer in await engine.queue.settle.report_many([_completed(dispatch) for dispatch in leased]):
                    if isinstance(answer, Exception):
                        raise answer

        await asyncio.gather(*(work(worker) for worker in filled.workers))

    return run


async def cycle_rate(
    server: Server,
    run: Callable[[Filled], Awaitable[None]],
    *,
    jobs: int,
    workers: int,
    concurrency: int,
    tenants: int = 100,
) -> float:
    """Return the cycles per second over 100 tenants in two shards. The run counts only if all rows exist afterwards."""
    async with (
        postgres_urls(server, "cycle", ("a", "b")) as (central_url, shard_urls),
        engine_on(central_url, shard_urls) as engine,
    ):
        filled = await fill(engine, jobs=jobs, tenants=tenants, workers=workers, concurrency=concurrency)
        await vacuum([central_url, *shard_urls.values()])
        begin = time.perf_counter()
        await run(filled)
        await engine.outbox.delivery.idle()
        elapsed = time.perf_counter() - begin
        await check_rows(central_url, list(shard_urls.values()), filled.jobs)
    return filled.jobs / elapsed


async def sqlite_rate(folder: Path, *, jobs: int) -> float:
    """Return the rate of the same cycle on SQLite, with one file per database."""
    shard_urls = {shard: f"sqlite:///{folder}/{shard}.db" for shard in ("a", "b")}
    async with engine_on(f"sqlite:///{folder}/central.db", shard_urls) as engine:
        filled = await fill(engine, jobs=jobs, tenants=100, workers=32, concurrency=1)
        begin = time.perf_counter()
        await one_at_a_time(filled)
        await engine.outbox.delivery.idle()
        elapsed = time.perf_counter() - begin
        report = await engine.operations.reconciler.run()
        if not report.is_clean or report.jobs != filled.jobs:
            raise RuntimeError(f"Queue, jobs and ledger are inconsistent: {report.findings[:3]}")
    return filled.jobs / elapsed


async def check_rows(central_url: str, shard_urls: list[str], jobs: int) -> None:
    found = await count_rows(central_url, CENTRAL_ROWS)
    for url in shard_urls:
        for name, count in (await count_rows(url, TENANT_ROWS)).items():
            found[name] = found.get(name, 0) + count
    expected = {
        **dict.fromkeys([*CENTRAL_ROWS, *TENANT_ROWS], jobs),
        "audit": 2 * jobs,
        "events": 3 * jobs,
        "outbox entries": 0,
        "effects timed": 1,
        "refunded": 0,
        "held tokens": 0,
    }
    wrong = {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}
    if wrong:
        raise RuntimeError(f"Unexpected numbers of rows, as (found, expected): {wrong}")


async def measure(jobs: int) -> None:
    async with postgres_server() as server:
        rate = await cycle_rate(server, one_at_a_time, jobs=jobs, workers=32, concurrency=1)
        print(f"32 workers, one job at a time {rate:>8.0f}/s", flush=True)
        rate = await cycle_rate(server, many_per_call(10), jobs=jobs, workers=8, concurrency=10)
        print(f"8 workers, 10 jobs per call   {rate:>8.0f}/s", flush=True)
        rate = await cycle_rate(server, many_per_call(100), jobs=jobs * 2, workers=4, concurrency=100)
        print(f"4 workers, 100 jobs per call  {rate:>8.0f}/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    uvloop.run(measure(parser.parse_args().jobs))


if __name__ == "__main__":
    main()
