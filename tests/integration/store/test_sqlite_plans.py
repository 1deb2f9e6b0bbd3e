"""Queries of the desk page use SQLite's indexes, because the page repeats them every second."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from sqlalchemy import Select, Update
from sqlalchemy.dialects import sqlite

from comfyrelay.store.central.queue import positions
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import job_list, jobs, overview, units
from comfyrelay.store.tenant.library import gallery, posters
from comfyrelay.store.tenant.tables import ai_jobs
from tests.support.world import SqliteBackend, execute


@pytest.fixture
async def shard(sqlite_backend: SqliteBackend) -> AsyncIterator[Database]:
    async with sqlite_backend.databases(["main"]) as (_, urls, _clock), Database("main", urls["main"]) as database:
        yield database


async def plan(shard: Database, **filters: Any) -> list[str]:
    query = job_list.list_query("t", **filters, dialect="sqlite")
    statement = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    # escape colons: SQLAlchemy parses them as parameters
    return [str(step.detail) for step in await execute(shard, "EXPLAIN QUERY PLAN " + statement.replace(":", "\\:"))]


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "ix_ai_jobs_tenant_newest (tenant_id=?)"),
        ({"no_batch": True}, "ix_ai_jobs_tenant_newest (tenant_id=?)"),
        ({"after_id": "x"}, "ix_ai_jobs_tenant_newest (tenant_id=? AND id<?)"),
        ({"status": "failed"}, "ix_ai_jobs_status (tenant_id=? AND status=?)"),
        ({"status": "failed", "no_batch": True}, "ix_ai_jobs_status (tenant_id=? AND status=?)"),
        ({"status": "failed", "after_id": "x"}, "ix_ai_jobs_status (tenant_id=? AND status=? AND id<?)"),
        ({"batch_id": "b"}, "ix_ai_jobs_batch (batch_id=?)"),
        ({"batch_id": "b", "after_id": "x"}, "ix_ai_jobs_batch (batch_id=? AND id<?)"),
        ({"batch_id": "b", "status": "failed"}, "ix_ai_jobs_status (tenant_id=? AND status=?)"),
    ],
)
async def test_list_is_read_in_the_order_of_an_index(shard: Database, filters: dict[str, Any], index: str) -> None:
    # one step: nothing is sorted
    assert await plan(shard, **filters) == [f"SEARCH ai_jobs USING INDEX {index}"]


async def test_search_looks_up_matching_batches_once(shard: Database) -> None:
    # uncorrelated subqueries run once, not for every job
    *once, values, _ = await plan(shard, search="boats")
    assert once == [
        "SEARCH ai_jobs USING INDEX ix_ai_jobs_tenant_newest (tenant_id=?)",
        "LIST SUBQUERY 1",
        "SEARCH batches USING INDEX ix_batches_tenant_id_id (tenant_id=?)",
        "SCALAR SUBQUERY 2",
        "SEARCH newest USING COVERING INDEX ix_ai_jobs_tenant_newest (tenant_id=?)",
    ]
    assert values == "CORRELATED SCALAR SUBQUERY 3"


async def test_job_counts_use_a_covering_index(shard: Database) -> None:
    query = "SELECT status, count(*) FROM ai_jobs WHERE tenant_id = 't' GROUP BY status"
    [step] = await execute(shard, f"EXPLAIN QUERY PLAN {query}")
    assert step.detail == "SEARCH ai_jobs USING COVERING INDEX ix_ai_jobs_status (tenant_id=?)"


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (units._items("t").where(ai_jobs.c.batch_id == "b", ai_jobs.c.item_no > 1), "INDEX ix_ai_jobs_items"),
        (units.summaries_query("t", ["b"]), "COVERING INDEX ix_ai_jobs_items"),
    ],
)
async def test_batch_queries_use_the_index_of_items(shard: Database, query: Select[Any], index: str) -> None:
    assert (await _plan_of(shard, query))[0].startswith(f"SEARCH ai_jobs USING {index} (batch_id=?")


async def test_counts_of_batches_read_only_their_items(shard: Database) -> None:
    # nothing is sorted
    assert await _plan_of(shard, jobs.batch_counts_query("t", ["b"])) == [
        "SEARCH ai_jobs USING COVERING INDEX ix_ai_jobs_items (batch_id=?)",
        "SEARCH retry USING INDEX uq_ai_jobs_retry_of (retry_of=?) LEFT-JOIN",
    ]


async def test_retried_jobs_are_counted_without_reading_all_jobs(shard: Database) -> None:
    read = [step for step in await _plan_of(shard, overview.retried_query(["t"])) if "ai_jobs" in step]
    assert read == [
        "SEARCH ai_jobs USING INDEX sqlite_autoindex_ai_jobs_1 (id=?)",
        "SEARCH retry USING INDEX uq_ai_jobs_retry_of (retry_of>?)",
    ]


async def test_mean_duration_reads_the_newest_dispatches_first(sqlite_backend: SqliteBackend) -> None:
    async with sqlite_backend.databases(["main"]) as (url, _, _clock), Database("central", url) as central:
        steps = await _plan_of(central, positions.mean_duration_query([1], of_last=50))
    # the order of the primary key: nothing is sorted, and reading ends with the last of them
    assert "SEARCH ai_job_dispatches USING INTEGER PRIMARY KEY (rowid>?)" in steps
    assert not [step for step in steps if "TEMP B-TREE" in step]


async def test_outputs_are_found_by_their_ids(shard: Database) -> None:
    query = cast("Select[Any]", gallery._by_ids("sqlite"))
    steps = await _plan_of(shard, query)
    assert "SEARCH outputs USING INDEX sqlite_autoindex_outputs_1 (id=?)" in steps
    assert not [step for step in steps if "tenant_id" in step]


async def _plan_of(shard: Database, query: Select[Any]) -> list[str]:
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    statement = str(compiled).replace("?", "'[]'").replace(":", "\\:")
    return [str(step.detail) for step in await execute(shard, f"EXPLAIN QUERY PLAN {statement}")]


async def test_files_without_a_poster_are_found_by_an_index(shard: Database) -> None:
    claim = cast("Update", posters._claim("sqlite"))
    statement = str(claim.compile(dialect=sqlite.dialect()))
    # any numbers for the limit and the duration of the claim
    steps = await execute(shard, "EXPLAIN QUERY PLAN " + statement.replace("?", "1"))
    read = [str(step.detail) for step in steps if "files" in step.detail]
    assert read == [
        "SEARCH files USING INDEX ix_files_poster_due (poster_due_at<?)",
        "SEARCH files USING COVERING INDEX sqlite_autoindex_files_1 (id=?)",
    ]
