"""Queries that the desk page sends every second use SQLite's indexes, however long the history is."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Select, Update
from sqlalchemy.dialects import sqlite

from comfyrelay.store import migrate
from comfyrelay.store.database import Database
from comfyrelay.store.tenant import job_list, units
from comfyrelay.store.tenant.library import gallery, posters
from comfyrelay.store.tenant.tables import ai_jobs
from tests.support.world import execute


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Database]:
    async with Database("main", f"sqlite:///{tmp_path}/tenant.db") as database:
        await migrate.upgrade(database, migrate.Schema.TENANT)
        yield database


async def plan(shard: Database, **filters: Any) -> list[str]:
    query = job_list.list_query("t", **filters, dialect="sqlite")
    statement = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    # a colon would be a parameter
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
async def test_list_comes_in_the_order_of_an_index(shard: Database, filters: dict[str, Any], index: str) -> None:
    # one step: nothing is sorted
    assert await plan(shard, **filters) == [f"SEARCH ai_jobs USING INDEX {index}"]


async def test_search_looks_once_for_batches_of_that_name(shard: Database) -> None:
    # not correlated: neither it nor the start of the newest is computed again for each job
    *once, values, _each = await plan(shard, search="boats")
    assert once == [
        "SEARCH ai_jobs USING INDEX ix_ai_jobs_tenant_newest (tenant_id=?)",
        "LIST SUBQUERY 1",
        "SEARCH batches USING INDEX ix_batches_tenant_id_id (tenant_id=?)",
        "SCALAR SUBQUERY 2",
        "SEARCH newest USING COVERING INDEX ix_ai_jobs_tenant_newest (tenant_id=?)",
    ]
    assert values == "CORRELATED SCALAR SUBQUERY 3"


async def test_jobs_are_counted_in_an_index(shard: Database) -> None:
    counted = "SELECT status, count(*) FROM ai_jobs WHERE tenant_id = 't' GROUP BY status"
    [step] = await execute(shard, f"EXPLAIN QUERY PLAN {counted}")
    assert step.detail == "SEARCH ai_jobs USING COVERING INDEX ix_ai_jobs_status (tenant_id=?)"


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (units._items("t").where(ai_jobs.c.batch_id == "b", ai_jobs.c.item_no > 1), "INDEX ix_ai_jobs_items"),
        (units.summaries_query("t", ["b"]), "COVERING INDEX ix_ai_jobs_items"),
    ],
)
async def test_batch_is_shown_by_an_index_of_its_items(shard: Database, query: Select[Any], index: str) -> None:
    # the rows of a large batch are not read for its first items, nor for their common values
    assert (await _plan_of(shard, query))[0].startswith(f"SEARCH ai_jobs USING {index} (batch_id=?")


async def test_outputs_that_are_named_are_found_by_their_ids(shard: Database) -> None:
    query = cast("Select[Any]", gallery._by_ids("sqlite"))
    steps = await _plan_of(shard, query)
    assert "SEARCH outputs USING INDEX sqlite_autoindex_outputs_1 (id=?)" in steps
    assert not [step for step in steps if "tenant_id" in step]


async def _plan_of(shard: Database, query: Select[Any]) -> list[str]:
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    statement = str(compiled).replace("?", "'[]'").replace(":", "\\:")
    return [str(step.detail) for step in await execute(shard, f"EXPLAIN QUERY PLAN {statement}")]


async def test_files_that_are_to_be_drawn_are_found_through_an_index(shard: Database) -> None:
    claim = cast("Update", posters._claim("sqlite"))
    statement = str(claim.compile(dialect=sqlite.dialect()))
    # the limit, and the duration of the claim
    steps = await execute(shard, "EXPLAIN QUERY PLAN " + statement.replace("?", "1"))
    read = [str(step.detail) for step in steps if "files" in step.detail]
    assert read == [
        "SEARCH files USING INDEX ix_files_poster_due (poster_due_at<?)",
        "SEARCH files USING COVERING INDEX sqlite_autoindex_files_1 (id=?)",
    ]
