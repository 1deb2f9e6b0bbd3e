"""The most frequent statements use indexes, so their cost is independent of the length of the queue."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Self, cast

import asyncpg
import pytest
from sqlalchemy import Select, TextualSelect
from sqlalchemy.engine import make_url

from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.records.jobs import DispatchFilter
from comfyrelay.store.central import audit
from comfyrelay.store.central.autoscaling import bursts, decisions, durations, history, machines, observations
from comfyrelay.store.central.queue import (
    claims,
    demand,
    dispatch_list,
    dispatches,
    missing_requirements,
    positions,
    reaping,
)
from comfyrelay.store.central.tables.workers import worker_audit_logs
from comfyrelay.store.central.workers import fleets, worker_list, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import MAX_SCANNED, newest
from comfyrelay.store.tenant import changes, job_list, units
from tests.support.world import PostgresBackend, queued_dispatch

ROWS = 100_000

# The index of the tenants whose queue is paused.
PAUSED_TENANTS = "ix_tenants_queue_paused"
FILL_CENTRAL = f"""
INSERT INTO workflows (id, slug, name, graph_path, properties, output_extension, output_mime_type,
                       created_at, updated_at)
SELECT n, 'w' || n, 'w', 'g', '[]', 'mp4', 'video/mp4', now(), now() FROM generate_series(1, 20) AS n;

INSERT INTO tenants (id, name, shard, created_at, queue_paused_at)
SELECT 't' || n, 't', 'a', now(), CASE WHEN n % 500 = 7 THEN now() END FROM generate_series(1, 5000) AS n;

INSERT INTO ai_job_dispatches (workflow_id, rank, available_at, created_at, priority, attempts, max_attempts, status,
                               stage, provider, tenant_id, tenant_job_id, shard, workflow_hash,
                               lease_token, lease_expires_at, worker_id, leased_at, finished_at)
SELECT 1 + n % 20, n, now(), now(), n % 3, 0, 3, status, 'production', 'self_hosted', 't' || n % 500, 'j' || n, 'a',
       'h' || n % 20,
       CASE status WHEN 'leased' THEN 'token' || n END,
       CASE status WHEN 'leased' THEN now() + make_interval(secs => n % 900 - 100) END,
       CASE status WHEN 'leased' THEN 'w' || n % 50 END,
       CASE status WHEN 'leased' THEN now() END,
       CASE WHEN status IN ('completed', 'failed', 'canceled') THEN now() END
  FROM (SELECT n, CASE WHEN n % 500 = 499 THEN 'leased' WHEN n % 10 < 3 THEN 'queued' WHEN n % 100 = 55 THEN 'failed'
                       WHEN n % 100 = 56 THEN 'canceled' WHEN n % 100 = 57 THEN 'paused' ELSE 'completed' END AS status
          FROM generate_series(1, {ROWS}) AS n) AS rows;

INSERT INTO fleets (id, slug, stage, name, created_at)
SELECT n, 'f' || n, 'production', 'f', now() FROM generate_series(1, 50) AS n;

INSERT INTO workers (worker_id, fleet_id, stage, capabilities, max_concurrency, last_seen_at, created_at)
SELECT 'w' || n, 1 + n % 50, 'production', '{{}}', 1, now(), now() FROM generate_series(1, 2000) AS n;

INSERT INTO worker_workflows (worker_id, workflow_id)
SELECT 'w' || n, 2 + n % 19 FROM generate_series(1, 2000) AS n;

INSERT INTO worker_audit_logs (created_at, dispatch_id, worker_id, event)
SELECT now(), n, 'w' || n % 2000, CASE WHEN n % 2 = 0 THEN 'lease' ELSE 'complete' END
  FROM generate_series(1, {ROWS}) AS n;

INSERT INTO machines (key, fleet_id, worker_id, ordered_at, ended_at)
SELECT 'm' || n, 1 + n % 5, 'w' || n, now() - make_interval(secs => n), CASE WHEN n % 100 > 0 THEN now() END
  FROM generate_series(1, 20000) AS n;

INSERT INTO autoscaling_decisions (fleet_id, created_at, policy, desired, launch, "end", outcome, reason, seen)
SELECT 1 + n % 50, now(), 'fast', 1, '[]', '[]', '{{}}', 'x', '{{}}' FROM generate_series(1, 20000) AS n;

INSERT INTO bursts (dispatch_id, workflow_id, stage, created_at, ended_at, expected_cost_micros, reason, seen)
SELECT n, 1 + n % 20, 'production', now(), CASE WHEN n % 100 > 0 THEN now() - make_interval(secs => 10 * n) END, 1, 'x',
       '{{}}' FROM generate_series(1, 20000) AS n;

INSERT INTO workflow_durations (workflow_id, effect_id, jobs, mean_seconds, updated_at)
SELECT 1 + n % 20, n, 1, 1, now() FROM generate_series(1, 2000) AS n;
"""

FILL_TENANT = f"""
INSERT INTO batches (id, tenant_id, user_id, idempotency_key, request_digest, created_at)
SELECT lpad(n::text, 10, 'b'), 't' || n % 50, 'u', 'b' || n, 'd', now() FROM generate_series(1, 5000) AS n;

INSERT INTO changes (tenant_id, txid, ids, created_at)
SELECT 't' || n % 500, n, '[]', now() FROM generate_series(1, {ROWS}) AS n;

INSERT INTO ai_jobs (id, tenant_id, user_id, workflow_id, workflow_hash, provider, stage, status, priority,
                     max_attempts, idempotency_key, request_digest, input_payload, reserved_tokens, available_at,
                     created_at, completed_at)
SELECT lpad(n::text, 10, '0'), 't' || n % 500, 'u' || n % 500, 1, 'h', 'self_hosted', 'production',
       CASE WHEN n % 20 = 0 THEN 'queued' ELSE 'completed' END, 0, 3, 'k' || n, 'd', '{{}}', 1, now(), now(),
       CASE WHEN n % 20 = 0 THEN NULL ELSE now() END
  FROM generate_series(1, {ROWS}) AS n;
"""


@pytest.fixture(scope="module")
def filled(postgres_url: str) -> Iterator[tuple[str, str]]:
    """Yield the URLs of a central database and a shard with 100,000 rows each."""
    backend = PostgresBackend(postgres_url, real_clock=True)
    with asyncio.Runner() as runner:
        context = backend.databases(["a"])
        central, shards, _ = runner.run(context.__aenter__())
        runner.run(_fill(central, FILL_CENTRAL))
        runner.run(_fill(shards["a"], FILL_TENANT))
        yield central, shards["a"]
        runner.run(context.__aexit__(None, None, None))


async def _fill(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(script)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


@pytest.fixture
async def central(filled: tuple[str, str]) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled[0])
    yield connection
    await connection.close()


@pytest.fixture
async def planned(central: asyncpg.Connection) -> asyncpg.Connection:
    """Yield a connection with the planner settings of the server."""
    await _set_planner(central)
    return central


async def _set_planner(connection: asyncpg.Connection) -> None:
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
        await connection.execute(f"SET {name} = off")


@pytest.fixture
async def tenant(filled: tuple[str, str]) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled[1])
    yield connection
    await connection.close()


def sql_of(query: Select[Any] | TextualSelect) -> str:
    dialect = make_url("postgresql+asyncpg://").get_dialect()()
    return str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


async def explain(
    connection: asyncpg.Connection, query: Select[Any] | TextualSelect, *, run: bool = False
) -> list[dict[str, Any]]:
    """Return the nodes of the plan, with actual row counts if it is run."""
    options = "ANALYZE, FORMAT JSON" if run else "FORMAT JSON"
    plan = json.loads(await connection.fetchval(f"EXPLAIN ({options}) {sql_of(query)}"))
    return list(_nodes(plan[0]["Plan"]))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def indexes(nodes: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in nodes if "Index Name" in node}


def has_full_scan(nodes: list[dict[str, Any]]) -> bool:
    return any(node["Node Type"] == "Seq Scan" and "Relation Name" in node for node in nodes)


class Recorder:
    """A transaction that records statements and returns no rows."""

    def __init__(self) -> None:
        self.statements: list[Select[Any]] = []

    async def execute(self, statement: Select[Any]) -> Self:
        self.statements.append(statement)
        return self

    def all(self) -> list[Any]:
        return []


async def page_query(filter_: DispatchFilter) -> Select[Any]:
    """Return the query for a page of the operators' list."""
    recorder = Recorder()
    await dispatch_list.page(cast(Tx, recorder), filter_, before_id=None, limit=50)
    (statement,) = recorder.statements
    return statement


def pick_query(**values: Any) -> TextualSelect:
    excluded = {"blocked": ["h3"], "unmet": ["h4"], "oversized": ["1 h5"]}
    group = {"no": 0, "stage": "production", "providers": ["self_hosted"], **excluded, "slots": 4, **values}
    return claims.PICK_POSTGRES.bindparams(groups=json.dumps([group]), down_shards="[]", slack=16)


@pytest.mark.parametrize("workflow_ids", [[1], list(range(1, 21))])
async def test_lease_scans_the_queue_index_once_per_workflow(
    central: asyncpg.Connection, workflow_ids: list[int]
) -> None:
    nodes = await explain(central, pick_query(workflow_ids=workflow_ids))
    assert "ix_ai_job_dispatches_queued" in indexes(nodes)
    assert not has_full_scan(nodes)
    scan = next(node for node in nodes if node.get("Index Name") == "ix_ai_job_dispatches_queued")
    assert "workflow_id" in scan["Index Cond"]
    # In index order: nothing below the limit is sorted, so the scan stops at the last row it needs.
    assert scan["Node Type"] in {"Index Scan", "Index Only Scan"}


async def test_lease_reads_few_rows(central: asyncpg.Connection) -> None:
    nodes = await explain(central, pick_query(workflow_ids=list(range(1, 21))), run=True)
    read = sum(
        node["Actual Rows"] * node["Actual Loops"] for node in nodes if node.get("Relation Name") == "ai_job_dispatches"
    )
    # per workflow the slots plus the slack, then the locked rows
    assert 0 < read <= 20 * (4 + 16) + 4


async def test_lease_locks_only_the_rows_it_leases(central: asyncpg.Connection, filled: tuple[str, str]) -> None:
    unlocked = "SELECT id FROM ai_job_dispatches WHERE status = 'queued' FOR UPDATE SKIP LOCKED"
    other = await asyncpg.connect(filled[0])
    before = {row["id"] for row in await other.fetch(unlocked)}
    async with central.transaction():
        picked = {row["id"] for row in await central.fetch(sql_of(pick_query(workflow_ids=list(range(1, 21)))))}
        assert len(picked) == 4
        assert before - {row["id"] for row in await other.fetch(unlocked)} == picked
    await other.close()


async def test_demand_reads_only_the_first_queued_jobs(central: asyncpg.Connection) -> None:
    nodes = await explain(central, demand.POSTGRES.bindparams(limit=8, down_shards="[]"), run=True)
    assert indexes(nodes) == {"ix_ai_job_dispatches_queued", "ix_ai_job_dispatches_only_worker", PAUSED_TENANTS}
    assert not has_full_scan(nodes)
    read = sum(
        node["Actual Rows"] * node["Actual Loops"] for node in nodes if node.get("Relation Name") == "ai_job_dispatches"
    )
    # per workflow with jobs one row to find it, and the limit
    assert 0 < read <= 20 * (1 + 8)


async def test_last_ended_items_of_a_batch_are_read_from_the_end_of_its_index(planned: asyncpg.Connection) -> None:
    failed = queued_dispatch(tenant_id="t1", batch_id="b", workflow_hash="h1", created_at=utc_now() - timedelta(days=1))
    transaction = planned.transaction()
    await transaction.start()
    try:
        await planned.execute(
            """
            UPDATE ai_job_dispatches SET batch_id = 'b', tenant_id = 't1', workflow_hash = 'h1',
                   finished_at = finished_at + make_interval(secs => id)
             WHERE status IN ('completed', 'failed') AND id <= 5000;
            ANALYZE ai_job_dispatches;
            """
        )
        nodes = await explain(planned, dispatches.last_ended_query(failed, limit=2), run=True)
    finally:
        await transaction.rollback()
    assert indexes(nodes) == {"ix_ai_job_dispatches_batch"}
    assert max(node["Actual Rows"] for node in nodes) <= dispatches.MAX_ENDED_READ + 1


async def test_prefetched_query_uses_its_own_index(central: asyncpg.Connection) -> None:
    nodes = await explain(central, demand.prefetched_query().params(for_seconds=-5.0, limit=8))
    assert indexes(nodes) == {"ix_ai_job_dispatches_prefetched"}
    assert not has_full_scan(nodes)


async def test_submission_reads_no_worker_if_no_requirement_is_missing(central: asyncpg.Connection) -> None:
    query = missing_requirements.coverage_query("postgresql").params(
        rows='[{"id": "h1"}]', workflow_id=1, stage="production", recent_seconds=-600.0
    )
    transaction = central.transaction()
    await transaction.start()
    try:
        await central.execute(
            """
            INSERT INTO worker_workflows (worker_id, workflow_id) SELECT worker_id, 1 FROM workers;
            INSERT INTO workflow_requirements (workflow_hash, node_types, models, used_at)
            VALUES ('h1', '[]', '[]', now());
            """
        )
        nodes = await explain(central, query, run=True)
    finally:
        await transaction.rollback()
    names = {node.get("Relation Name") for node in nodes if node["Actual Loops"]}
    assert "workflow_requirements" in names
    assert names.isdisjoint({"workers", "worker_workflows"})


async def test_search_for_expired_leases_reads_only_leased_rows(central: asyncpg.Connection) -> None:
    nodes = await explain(central, reaping.expired_query().params(grace=-900.0, limit=500))
    assert indexes(nodes) == {"ix_ai_job_dispatches_leased"}
    assert not has_full_scan(nodes)


async def test_reaper_checks_for_work_with_indexes(central: asyncpg.Connection) -> None:
    nodes = await explain(central, reaping.work_query("postgresql").params(silence=-120.0, waited=-600.0))
    assert indexes(nodes) == {
        "ix_ai_job_dispatches_leased",
        "ix_ai_job_dispatches_exhausted",
        "ix_ai_job_dispatches_ran_out",
        "pk_workers",
    }
    assert not has_full_scan(nodes)


async def test_late_query_reads_only_leased_rows(central: asyncpg.Connection) -> None:
    nodes = await explain(central, demand.late_query())
    assert indexes(nodes) == {"ix_ai_job_dispatches_leased", PAUSED_TENANTS}
    assert not has_full_scan(nodes)


async def test_newest_dispatches_use_the_primary_key(central: asyncpg.Connection) -> None:
    nodes = await explain(central, await page_query(DispatchFilter()))
    assert indexes(nodes) == {"pk_ai_job_dispatches"}
    assert not has_full_scan(nodes)


@pytest.mark.parametrize("status", [DispatchStatus.FAILED, DispatchStatus.CANCELED, DispatchStatus.PAUSED])
async def test_stopped_dispatches_use_their_own_index(central: asyncpg.Connection, status: DispatchStatus) -> None:
    nodes = await explain(central, await page_query(DispatchFilter(status=status)))
    assert indexes(nodes) == {"ix_ai_job_dispatches_stopped"}
    assert not has_full_scan(nodes)


async def test_audit_log_of_a_dispatch_uses_its_own_index(central: asyncpg.Connection) -> None:
    for before in (None, ROWS):
        query = newest(audit.dispatch_query(7), worker_audit_logs.c.id, before=before, limit=51)
        nodes = await explain(central, query)
        assert indexes(nodes) == {"ix_worker_audit_logs_dispatch"}
        assert not has_full_scan(nodes)


async def test_decision_query_uses_the_index_of_decisions(central: asyncpg.Connection) -> None:
    nodes = await explain(central, audit.decision_query("w7"))
    assert indexes(nodes) == {"ix_worker_audit_logs_decisions"}
    assert not has_full_scan(nodes)


async def test_dispatches_of_a_tenant_use_an_index(central: asyncpg.Connection) -> None:
    nodes = await explain(central, await page_query(DispatchFilter(tenant_id="t7")))
    assert indexes(nodes) == {"uq_ai_job_dispatches_tenant_id_tenant_job_id"}
    assert not has_full_scan(nodes)


async def test_past_leases_of_a_worker_use_an_index(central: asyncpg.Connection) -> None:
    transaction = central.transaction()
    await transaction.start()
    await central.execute(
        "INSERT INTO dispatch_leases (lease_token, dispatch_id, epoch, attempt, worker_id, leased_at)"
        " SELECT 'lease-' || n, n, 1, 1, 'w' || n % 100, now() FROM generate_series(1, 20000) AS n"
    )
    await central.execute("ANALYZE dispatch_leases")
    nodes = await explain(central, await page_query(DispatchFilter(worker_id="w7")))
    await transaction.rollback()
    assert indexes(nodes) == {"ix_dispatch_leases_worker_id_dispatch_id", "pk_ai_job_dispatches"}
    assert not has_full_scan(nodes)


def ids(*values: int | str) -> str:
    return json.dumps([{"id": value} for value in values])


burst_queue: Any = bursts.queue_query("postgresql")
# By name: the statement, its indexes, and the maximum number of rows that it may read.
AUTOSCALING: dict[str, tuple[Any, set[str], int]] = {
    "waiting jobs": (
        observations.waiting_query("production", [1, 2], down_shards=["b"]),
        {"ix_ai_job_dispatches_queued", PAUSED_TENANTS},
        10_000 + 10,
    ),
    "arrivals": (
        observations.arrivals_query().params(after=ROWS - 100, limit=5000),
        {"pk_ai_job_dispatches", PAUSED_TENANTS},
        100 + 10,
    ),
    "newest arrivals": (
        observations.newest_arrivals_query().params(limit=500),
        {"pk_ai_job_dispatches", PAUSED_TENANTS},
        500 + 10,
    ),
    # the audit log is read only for workers without one of the 200 leases
    "workers": (
        observations.workers_query("postgresql").params(rows=ids(1, 50), offline_seconds=-300),
        {"ix_workers_fleet_id", "ix_worker_audit_logs_worker_id_id", "ix_ai_job_dispatches_leased"},
        2 * 80 - 1 + 200,
    ),
    "leases": (
        observations.leases_query("postgresql").params(rows=ids(1)),
        {"ix_ai_job_dispatches_leased", "pk_workers"},
        500,
    ),
    "mean duration without jobs": (
        positions.mean_duration_query([21], of_last=50),
        {"pk_ai_job_dispatches"},
        MAX_SCANNED,
    ),
    "recent failures": (
        fleets.failed_query(utc_now() + timedelta(hours=1), stage="production", workflow_ids=[1, 2]),
        {"ix_ai_job_dispatches_failed"},
        0,
    ),
    "workers of a workflow": (
        workers.serving_query().params(workflow_id=2, stage="production", offline_seconds=-300),
        {"ix_worker_workflows_workflow_id", "pk_workers", "pk_workflows", "ix_ai_job_dispatches_leased"},
        1 + 2 * 106,
    ),
    "workflows of workers": (
        workers.workflows_of_query("postgresql").params(rows=ids("w1", "w2")),
        {"pk_worker_workflows"},
        2,
    ),
    "page of workers": (
        worker_list.listed_query("postgresql").params(rows=ids("w1", "w2"), offline_seconds=300),
        {"pk_workers", "pk_fleets", "ix_ai_job_dispatches_leased", "pk_workflow_blocks"},
        2 * 4,
    ),
    "jobs of a page of workers": (
        worker_list.jobs_query("postgresql").params(rows=ids("w49", "w48")),
        {"ix_ai_job_dispatches_leased", "pk_workflows"},
        2 * 200,
    ),
    "machines": (machines.present_query([1, 2]), {"ix_machines_present"}, 200),
    "orders": (machines.newest_query().params(fleet_id=1, limit=200), {"ix_machines_fleet_id_ordered_at"}, 200),
    "types": (machines.by_worker_query(["w1", "w2"]), {"ix_machines_worker"}, 2),
    "decisions": (
        decisions.newest_query(1, before_id=None, limit=51),
        {"ix_autoscaling_decisions_fleet_id_id"},
        51,
    ),
    "completed jobs": (
        durations.completed_query().params(after=ROWS - 1000, limit=1000),
        {"pk_worker_audit_logs", "pk_ai_job_dispatches"},
        2000,
    ),
    "reserved costs": (bursts.open_query(), {"ix_bursts_ended_at"}, 200),
    "costs of the last hour": (bursts.ended_query(), {"ix_bursts_ended_at"}, 360),
    "jobs that may burst": (
        burst_queue.params(
            rows=json.dumps([{"id": 1}, {"id": 2}]), stage="production", provider="self_hosted", limit=50
        ),
        {"ix_ai_job_dispatches_queued", "pk_ai_job_dispatches", "pk_effects", "pk_tenants", PAUSED_TENANTS},
        2 * 50 * 3 + 10,
    ),
    "history of a fleet": (
        history.completed_query("production", [1, 2], before=ROWS, limit=50),
        {"pk_ai_job_dispatches", "pk_workflows"},
        5000,
    ),
    "durations": (durations.known_query([1, 2]), {"pk_workflow_durations"}, 200),
}


@pytest.mark.parametrize("name", AUTOSCALING)
async def test_autoscaling_queries_use_indexes(planned: asyncpg.Connection, name: str) -> None:
    query, expected, max_rows = AUTOSCALING[name]
    nodes = await explain(planned, query, run=True)
    assert indexes(nodes) == expected
    assert not has_full_scan(nodes)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if "Relation Name" in node) <= max_rows


async def test_newest_jobs_of_a_tenant_are_read_in_order(tenant: asyncpg.Connection) -> None:
    for query in (job_list.list_query("t7"), job_list.list_query("t7", after_id="0000050000")):
        nodes = await explain(tenant, query)
        assert indexes(nodes) == {"ix_ai_jobs_tenant_newest"}
        assert not has_full_scan(nodes)
        assert "Sort" not in {node["Node Type"] for node in nodes}


async def test_single_jobs_are_separated_from_batch_items_in_the_index(tenant: asyncpg.Connection) -> None:
    nodes = await explain(tenant, job_list.list_query("t7", no_batch=True))
    [scan] = [node for node in nodes if "Index Name" in node]
    assert scan["Index Name"] == "ix_ai_jobs_tenant_newest"
    assert "batch_id IS NULL" in scan["Index Cond"]
    assert "Sort" not in {node["Node Type"] for node in nodes}


async def test_items_of_a_batch_are_read_in_order(tenant: asyncpg.Connection) -> None:
    nodes = await explain(tenant, job_list.list_query("t7", batch_id="b", after_id="0000050000"))
    assert indexes(nodes) == {"ix_ai_jobs_batch"}
    assert "Sort" not in {node["Node Type"] for node in nodes}


async def test_search_is_ordered_and_looks_up_matching_batches_once(tenant: asyncpg.Connection) -> None:
    nodes = await explain(tenant, job_list.list_query("t7", search="boats"), run=True)
    # read in order; the subqueries run at most once
    [listed] = [node for node in nodes if node.get("Alias") == "ai_jobs"]
    assert (listed["Node Type"], listed["Index Name"]) == ("Index Scan", "ix_ai_jobs_tenant_newest")
    [newest] = [node for node in nodes if node.get("Alias") == "newest"]
    assert newest["Actual Loops"] <= 1
    [batches] = [node for node in nodes if node.get("Relation Name") == "batches"]
    assert batches["Actual Loops"] <= 1


async def test_tenant_changes_are_found_by_the_read_position(tenant: asyncpg.Connection) -> None:
    await _set_planner(tenant)
    rows = [{"tenant_id": f"t{n}", "txid": ROWS - 1000} for n in range(3)]
    query: Any = changes.since_query("postgresql").params(rows=json.dumps(rows), limit=10_001)
    nodes = await explain(tenant, query, run=True)
    assert indexes(nodes) == {"ix_changes_tenant_id_txid"}
    assert not has_full_scan(nodes)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if "Relation Name" in node) <= 3 * 3


@pytest.mark.parametrize("oldest_first", [False, True])
async def test_units_of_a_tenant_are_read_in_order(tenant: asyncpg.Connection, oldest_first: bool) -> None:
    for after_id in (None, "0000050000"):
        # a small page: for half of a small tenant, PostgreSQL would rather sort
        queries = units.page_queries("t7", after_id=after_id, oldest_first=oldest_first, only_ended=True, limit=10)
        # either index of batches is in order
        allowed = ({"ix_batches_tenant_id_id", "pk_batches"}, {"ix_ai_jobs_tenant_newest"})
        for query, known in zip(queries, allowed, strict=True):
            nodes = await explain(tenant, query, run=True)
            assert indexes(nodes) <= known
            assert not has_full_scan(nodes)
            assert "Sort" not in {node["Node Type"] for node in nodes}


async def test_active_jobs_use_their_own_index(tenant: asyncpg.Connection) -> None:
    nodes = await explain(tenant, units.active_query("t0"), run=True)
    assert indexes(nodes) == {"ix_ai_jobs_active"}
    assert not has_full_scan(nodes)


async def test_oldest_jobs_of_a_tenant_are_read_in_order(tenant: asyncpg.Connection) -> None:
    nodes = await explain(tenant, job_list.list_query("t7", oldest_first=True, after_id="0000050000"))
    assert indexes(nodes) == {"ix_ai_jobs_tenant_newest"}
    assert "Sort" not in {node["Node Type"] for node in nodes}


async def test_waiting_jobs_of_a_tenant_are_read_from_the_waiting_index(planned: asyncpg.Connection) -> None:
    nodes = await explain(planned, units.waiting_query("t7"), run=True)
    assert not has_full_scan(nodes)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if "Relation Name" in node) <= 200
