"""Gallery queries use indexes, so the cost of a page is independent of the number of outputs."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Select
from sqlalchemy.dialects import sqlite

from comfyrelay.domain.gallery import GalleryFilter, GallerySort, MarkFilter, OutputKind, SearchTerm
from comfyrelay.store import migrate
from comfyrelay.store.database import Database
from comfyrelay.store.tenant.library import gallery
from comfyrelay.store.tenant.tables import outputs
from tests.integration.store.test_query_plans import explain, has_full_scan, indexes
from tests.support.world import PostgresBackend

OUTPUTS = 20_000
AT = datetime(2026, 1, 1, tzinfo=UTC)
AFTER = (AT, "0000010000")
# Two tenants with as many outputs each: four of each job, one in a thousand starred, and a hundred of each batch.
FILL = """
INSERT INTO ai_jobs (id, tenant_id, user_id, workflow_id, workflow_hash, provider, stage, status, priority,
                     max_attempts, idempotency_key, request_digest, input_payload, reserved_tokens, available_at,
                     created_at, completed_at)
SELECT {id}, 't' || (n % 2), 'u', 1, 'h', 'self_hosted', 'production', 'completed', 0, 3, 'k' || n, 'd',
       '{{"values": {{"PROMPT": "a cat"}}}}', 1, {now}, {now}, {now} FROM {numbers};
INSERT INTO files (id, tenant_id, user_id, disk, path, mime_type, size, created_at, used_at)
SELECT {id}, 't' || (n % 2), 'u', 'objects', 'p' || n, 'image/png', 1, {now}, {now} FROM {numbers};
INSERT INTO outputs (id, tenant_id, job_id, number, batch_id, item_no, workflow_id, kind, label, texts, mark,
                     created_at)
SELECT {id}, 't' || (n % 2), {job_id}, n % 8 / 2 + 1, 'b' || (n / 100), n % 100, n % 7, 'image', 'label ' || n,
       'a cat in the rain, painted with a broad brush', CASE WHEN n % 1000 = 0 THEN 'starred' END, {time}
  FROM {numbers};
"""


def fill(path: Path, outputs: int) -> sqlite3.Connection:
    async def migrate_schema() -> None:
        async with Database("main", f"sqlite:///{path}") as database:
            await migrate.upgrade(database, migrate.Schema.TENANT)

    asyncio.run(migrate_schema())
    connection = sqlite3.connect(path)
    numbers = (
        f"(WITH RECURSIVE c(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM c WHERE n < {2 * outputs}) SELECT n FROM c)"
    )
    now = "'2026-01-01 00:00:00.000000'"
    time = "strftime('%Y-%m-%d %H:%M:%f', '2025-01-01', n || ' minutes') || '000'"
    ids = {"id": "printf('%010d', n)", "job_id": "printf('%010d', n - n % 8 + n % 2)"}
    connection.executescript(FILL.format(**ids, numbers=numbers, now=now, time=time))
    return connection


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    with closing(fill(tmp_path_factory.mktemp("large") / "tenant.db", OUTPUTS)) as connection:
        yield connection


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    with closing(fill(tmp_path_factory.mktemp("small") / "tenant.db", OUTPUTS // 10)) as connection:
        yield connection


def sql_of(query: Select[Any]) -> str:
    return str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))


def page(filter_: GalleryFilter | None = None, **options: Any) -> Select[Any]:
    return gallery.list_query("t0", filter_ or GalleryFilter(), **{"limit": 200, **options}, dialect="sqlite")


def plan(connection: sqlite3.Connection, query: Select[Any]) -> list[str]:
    return [str(row[3]) for row in connection.execute("EXPLAIN QUERY PLAN " + sql_of(query))]


def steps(connection: sqlite3.Connection, query: Select[Any]) -> tuple[int, int]:
    """Return the number of rows, and of SQLite's virtual machine steps in thousands."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    connection.set_progress_handler(count, 1000)
    try:
        return len(connection.execute(sql_of(query)).fetchall()), counted
    finally:
        connection.set_progress_handler(None, 0)


@pytest.mark.parametrize(
    ("filter_", "options", "index"),
    [
        (GalleryFilter(), {}, "ix_outputs_newest (tenant_id=?)"),
        (GalleryFilter(), {"sort": GallerySort.OLDEST}, "ix_outputs_newest (tenant_id=?)"),
        (GalleryFilter(), {"after": AFTER}, "ix_outputs_newest (tenant_id=? AND (created_at,id)<(?,?))"),
        (GalleryFilter(kind=OutputKind.IMAGE), {}, "ix_outputs_newest (tenant_id=?)"),
        (GalleryFilter(batch_id="b7"), {}, "ix_outputs_newest (tenant_id=?)"),
        (GalleryFilter(since=AT), {}, "ix_outputs_newest (tenant_id=? AND created_at>?)"),
        (GalleryFilter(mark=MarkFilter.STARRED), {}, "ix_outputs_marked (tenant_id=? AND mark=?)"),
        (GalleryFilter(terms=(SearchTerm(text="cat"),)), {}, "ix_outputs_newest (tenant_id=?)"),
    ],
)
def test_page_is_read_in_the_order_of_an_index(
    large: sqlite3.Connection, filter_: GalleryFilter, options: dict[str, Any], index: str
) -> None:
    found = plan(large, page(filter_, **options))
    assert found[0] == f"SEARCH outputs USING INDEX {index}"
    assert [step for step in found if "TEMP B-TREE" in step or step.startswith("SCAN outputs")] == []


@pytest.mark.parametrize(
    "filter_", [GalleryFilter(), GalleryFilter(workflow_ids=frozenset({3})), GalleryFilter(batch_id="b7")]
)
def test_gallery_count_uses_a_covering_index(large: sqlite3.Connection, filter_: GalleryFilter) -> None:
    found = plan(large, gallery.count_query("t0", filter_, dialect="sqlite"))
    assert found[0] == "SEARCH outputs USING COVERING INDEX ix_outputs_newest (tenant_id=?)"


def of_jobs(job_ids: list[str]) -> Select[Any]:
    return gallery.of_jobs_query("t0", job_ids, outputs.c.job_id, outputs.c.id)


def test_outputs_of_jobs_are_looked_up_by_job(large: sqlite3.Connection) -> None:
    found = plan(large, of_jobs([f"{number:010}" for number in (16, 24)]))
    assert found[0].startswith("SEARCH outputs USING INDEX")
    assert "(job_id=?)" in found[0]
    assert len(large.execute(sql_of(of_jobs([f"{number:010}" for number in (16, 24)]))).fetchall()) == 8


def test_page_costs_the_same_with_ten_times_as_many_outputs(
    small: sqlite3.Connection, large: sqlite3.Connection
) -> None:
    for filter_ in (
        GalleryFilter(),
        GalleryFilter(kind=OutputKind.IMAGE),
        GalleryFilter(terms=(SearchTerm(text="rain"),)),
    ):
        (small_rows, small_steps), (large_rows, large_steps) = steps(small, page(filter_)), steps(large, page(filter_))
        assert small_rows == large_rows == 200
        assert 0 < large_steps <= small_steps + 2


def test_full_search_runs_few_steps(large: sqlite3.Connection) -> None:
    """At most fifty steps per output: every index is read once, and no JSON is parsed."""
    no_match = GalleryFilter(terms=(SearchTerm(text="whale"), SearchTerm(text="rain")))
    queries = [
        page(no_match),
        page(GalleryFilter(batch_id="none")),
        gallery.count_query("t0", no_match, dialect="sqlite"),
        gallery.count_query("t0", GalleryFilter(), dialect="sqlite"),
        gallery.slots_query("t0", GalleryFilter(), dialect="sqlite"),
    ]
    assert [query for query in queries if not 0 < steps(large, query)[1] <= 50 * OUTPUTS // 1000] == []


@pytest.fixture(scope="module")
def filled_shard(postgres_url: str) -> Iterator[str]:
    """Yield the URL of a shard with the same number of outputs."""
    backend = PostgresBackend(postgres_url, real_clock=True)
    script = FILL.format(
        id="lpad(n::text, 10, '0')",
        job_id="lpad((n - n % 8 + n % 2)::text, 10, '0')",
        numbers=f"generate_series(1, {2 * OUTPUTS}) AS n",
        now="now()",
        time="now() + make_interval(mins => n)",
    )

    async def fill_shard(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(script)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()

    with asyncio.Runner() as runner:
        context = backend.databases(["a"])
        _, shards, _ = runner.run(context.__aenter__())
        runner.run(fill_shard(shards["a"]))
        yield shards["a"]
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
async def shard(filled_shard: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled_shard)
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    ("filter_", "index"),
    [
        (GalleryFilter(), "ix_outputs_newest"),
        (GalleryFilter(kind=OutputKind.IMAGE), "ix_outputs_newest"),
        (GalleryFilter(mark=MarkFilter.STARRED), "ix_outputs_marked"),
    ],
)
async def test_page_on_postgresql_reads_few_rows(shard: asyncpg.Connection, filter_: GalleryFilter, index: str) -> None:
    nodes = await explain(shard, gallery.list_query("t0", filter_, limit=20), run=True)
    assert index in indexes(nodes)
    # the table of batches is empty
    assert not has_full_scan([node for node in nodes if node.get("Relation Name") != "batches"])
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if node.get("Relation Name") == "outputs")
    assert 0 < read <= 40


async def test_outputs_of_jobs_on_postgresql_are_looked_up_by_job(shard: asyncpg.Connection) -> None:
    nodes = await explain(shard, of_jobs([f"{number:010}" for number in (16, 24)]), run=True)
    assert "uq_outputs_job_id_number" in indexes(nodes)
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if node.get("Relation Name") == "outputs")
    assert read == 8
