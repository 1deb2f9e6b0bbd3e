"""Queries for metrics and costs use indexes on both databases, however long the history is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Select
from sqlalchemy.dialects import sqlite

from comfyrelay.clock import utc_now
from comfyrelay.store.central import tables
from comfyrelay.store.central.autoscaling import figures, members, usage
from comfyrelay.store.database import Database
from tests.integration.store.test_query_plans import explain, has_full_scan, indexes
from tests.support.world import PostgresBackend, SqliteBackend, execute

ROWS = 20_000

FILL = f"""
INSERT INTO fleets (id, slug, stage, name, created_at)
SELECT n, 'f' || n, 'production', 'f', now() FROM generate_series(1, 50) AS n;
INSERT INTO workflows (id, slug, name, graph_path, properties, output_extension, output_mime_type,
                       created_at, updated_at)
SELECT n, 'w' || n, 'w', 'g', '[]', 'mp4', 'video/mp4', now(), now() FROM generate_series(1, 20) AS n;
INSERT INTO workflow_fleets (fleet_id, workflow_id) SELECT 1 + n % 50, n FROM generate_series(1, 20) AS n;
INSERT INTO workers (worker_id, fleet_id, stage, capabilities, max_concurrency, last_seen_at, created_at)
SELECT 'w' || n, 1 + n % 50, 'production', '{{}}', 1, now(), now() FROM generate_series(1, 200) AS n;
INSERT INTO ai_job_dispatches (workflow_id, rank, available_at, created_at, attempts, max_attempts, status, stage,
                               provider, tenant_id, tenant_job_id, shard, workflow_hash, finished_at)
SELECT 1 + n % 20, n, now(), now(), 0, 3, CASE WHEN n % 100 = 0 THEN 'queued' ELSE 'completed' END, 'production',
       'self_hosted', 't', 'j' || n, 'a', 'h', CASE WHEN n % 100 = 0 THEN NULL ELSE now() END
  FROM generate_series(1, {ROWS}) AS n;
INSERT INTO dispatch_leases (lease_token, dispatch_id, epoch, attempt, worker_id, leased_at, ended_at, outcome,
                             status_after)
SELECT 't' || n, n, 1, 1, 'w' || n % 200, now(), now() - make_interval(secs => {ROWS} - n), 'completed', 'completed'
  FROM generate_series(1, {ROWS}) AS n;
INSERT INTO worker_audit_logs (created_at, dispatch_id, worker_id, event, data)
SELECT now() - make_interval(secs => {ROWS} - n), n, 'w' || n % 400,
       CASE n % 100 WHEN 0 THEN 'register' ELSE 'complete' END, '{{}}'
  FROM generate_series(1, {ROWS}) AS n;
"""
# The settings of the server's own connections.
PLANNER_SETTINGS = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"


@pytest.fixture(scope="module")
def filled(postgres_url: str) -> Iterator[str]:
    backend = PostgresBackend(postgres_url, real_clock=True)
    with asyncio.Runner() as runner:
        context = backend.databases([])
        central, _, _ = runner.run(context.__aenter__())
        runner.run(_fill(central))
        yield central
        runner.run(context.__aexit__(None, None, None))


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(FILL)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


@pytest.fixture
async def central(filled: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled)
    await connection.execute(PLANNER_SETTINGS)
    yield connection
    await connection.close()


@pytest.fixture
async def sqlite_central(sqlite_backend: SqliteBackend) -> AsyncIterator[Database]:
    async with sqlite_backend.databases([]) as (url, _, _clock), Database("central", url) as database:
        yield database


async def sqlite_plan(database: Database, query: Any) -> list[str]:
    statement = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    # escape colons: SQLAlchemy parses them as parameters
    steps = await execute(database, "EXPLAIN QUERY PLAN " + statement.replace(":", "\\:"))
    return [str(step.detail) for step in steps]


SINCE = utc_now() - timedelta(minutes=10)
# By name: the statement, the indexes that PostgreSQL may use, and the index of SQLite.
STATEMENTS: dict[str, tuple[Select[Any], set[str], str]] = {
    "fleets": (figures.fleets_query(), {"pk_fleets"}, ""),
    "mappings": (figures.mappings_query(), {"pk_workflow_fleets"}, ""),
    "queued": (
        figures.queued_query(),
        # PostgreSQL chooses the smaller index
        {"ix_ai_job_dispatches_queued", "ix_ai_job_dispatches_waiting_tenant", "ix_tenants_queue_paused"},
        "ix_ai_job_dispatches_queued",
    ),
    "leased": (figures.leased_query(), {"ix_ai_job_dispatches_leased"}, "ix_ai_job_dispatches_leased"),
    "workers": (
        figures.workers_query([1, 2], seconds=300),
        {"ix_workers_fleet_id", "ix_ai_job_dispatches_leased"},
        "ix_workers_fleet_id",
    ),
    "newest": (figures.newest_query(), {"pk_worker_audit_logs"}, ""),
    "floor": (figures.floor_query(SINCE), {"pk_worker_audit_logs"}, ""),
    "ended": (
        figures.ended_query(SINCE, floor=ROWS - 600),
        {"pk_worker_audit_logs", "uq_dispatch_leases_dispatch_id_epoch", "pk_ai_job_dispatches"},
        "(dispatch_id=?)",
    ),
    "entries": (usage.entries_query(after=ROWS - 100, limit=2000), {"pk_worker_audit_logs"}, "(rowid>?)"),
    "sums": (
        usage.sums_query("2026-01-01", "2026-01-31", tables.autoscaling.usage.c.tenant_id.label("name")),
        {"pk_usage"},
        "(day>? AND day<?)",
    ),
    "machines": (
        usage.machines_query([1, 2], begins=SINCE, ends=utc_now()),
        {"ix_machines_fleet_id_ordered_at", "ix_machines_present"},
        "ix_machines_fleet_id_ordered_at",
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_postgresql_uses_indexes(central: asyncpg.Connection, name: str) -> None:
    query, allowed, _ = STATEMENTS[name]
    nodes = await explain(central, query)
    assert indexes(nodes)
    assert indexes(nodes) <= allowed
    assert not has_full_scan(nodes)


@pytest.mark.parametrize("name", [name for name, (_, _, index) in STATEMENTS.items() if index])
async def test_sqlite_uses_indexes(sqlite_central: Database, name: str) -> None:
    query, _, index = STATEMENTS[name]
    steps = await sqlite_plan(sqlite_central, query)
    assert any(index in step for step in steps)
    assert [step for step in steps if step.startswith("SCAN") and " USING " not in step and "logged" not in step] == []


async def test_ended_query_reads_only_the_newest_entries(central: asyncpg.Connection) -> None:
    nodes = await explain(central, figures.ended_query(SINCE, floor=ROWS - 600), run=True)
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if "Relation Name" in node)
    # an entry, a lease and a dispatch per finished job
    assert 0 < read <= 3 * 600


async def test_uncounted_leases_are_found_by_dispatch_and_epoch(central: asyncpg.Connection) -> None:
    query: Any = usage.uncounted_query("postgresql")
    nodes = await explain(central, query.params(rows='[{"dispatch_id": 7, "epoch": 1}]'))
    assert indexes(nodes) == {"uq_dispatch_leases_dispatch_id_epoch", "pk_ai_job_dispatches"}
    assert not has_full_scan(nodes)


async def test_fleet_of_a_deregistered_worker_is_found_by_its_last_entry(central: asyncpg.Connection) -> None:
    query: Any = members.last_entries("postgresql")
    nodes = await explain(central, query.params(rows='[{"id": "w0"}, {"id": "w200"}]'), run=True)
    assert indexes(nodes) == {"ix_worker_audit_logs_worker_id_id", "pk_worker_audit_logs"}
    assert not has_full_scan(nodes)
