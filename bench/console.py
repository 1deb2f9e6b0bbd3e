"""Administrator pages of a large service: the time to fetch all data of a page over HTTP."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import aiohttp
import asyncpg

from bench.figure import Figure
from bench.http import Site, site
from bench.postgres import Server, postgres_server

WORKERS = 1_000
DISPATCHES = 1_000_000
CALLS = 40
GOAL_MS = 100.0
# Number of tenants and of their rows.
TENANTS = 2_000
MOVED = 100_000

# Of the jobs of a week, most have completed, some have failed or are waiting, and each worker is running one.
CENTRAL = (
    """
    INSERT INTO workers (worker_id, display_name, fleet_id, stage, capabilities, devices, warm_hashes, max_concurrency,
                         version, protocol, last_seen_at, created_at)
    SELECT 'crowd-' || lpad(n::text, 5, '0'), 'GPU ' || n, (SELECT id FROM fleets LIMIT 1), 'production',
           json_build_object('node_types', (SELECT json_agg('NodeOfSomePack' || m) FROM generate_series(1, 1000) AS m)),
           json_build_array(json_build_object('server', 'http://127.0.0.1:8188', 'name', 'RTX 4090', 'slots', 1,
                                              'memory_total', 25757220864, 'memory_used', 9000000000, 'load', 0.9)),
           json_build_array('hash-' || n % 20), 1, '0.1.0', 2, now() + interval '1 day', now()
      FROM generate_series(1, $1::bigint) AS n
    """,
    """
    INSERT INTO worker_workflows
    SELECT worker_id, (SELECT id FROM workflows LIMIT 1) FROM workers WHERE worker_id LIKE 'crowd-%'
    """,
    """
    INSERT INTO ai_job_dispatches
           (tenant_id, tenant_job_id, shard, workflow_id, workflow_hash, provider, stage, status, priority, rank,
            max_attempts, attempts, available_at, created_at, finished_at, duration_seconds, last_error,
            worker_id, lease_token, leased_at, lease_expires_at, progress)
    SELECT 'crowd-' || n % $3::bigint, 'crowd-' || n, 'main', (SELECT id FROM workflows LIMIT 1), 'hash-' || n % 20,
           'self_hosted', 'production', status, 0, n, 3, 1, now(),
           now() - make_interval(secs => ($1::bigint - n) * 0.6),
           CASE WHEN status IN ('completed', 'failed') THEN now() - make_interval(secs => ($1::bigint - n) * 0.6) END,
           12.5,
           CASE status WHEN 'failed' THEN 'CUDA out of memory' END,
           CASE status WHEN 'leased' THEN 'crowd-' || lpad((n - $1::bigint + $2::bigint)::text, 5, '0') END,
           CASE status WHEN 'leased' THEN 'token-' || n END,
           CASE status WHEN 'leased' THEN now() END,
           CASE status WHEN 'leased' THEN now() + interval '1 day' END,
           CASE status WHEN 'leased' THEN '{"value": 0.5, "phase": "running"}'::json END
      FROM (SELECT n, CASE WHEN n > $1::bigint - $2::bigint THEN 'leased' WHEN n % 100 = 0 THEN 'failed'
                           WHEN n > $1::bigint - 10 * $2::bigint THEN 'queued' ELSE 'completed' END AS status
              FROM generate_series(1, $1::bigint) AS n) AS rows
    """,
    """
    INSERT INTO dispatch_leases (lease_token, dispatch_id, epoch, attempt, worker_id, leased_at, ended_at, outcome,
                                 status_after)
    SELECT 'lease-' || n, n, 1, 1, 'crowd-' || lpad((1 + n % $2::bigint)::text, 5, '0'), now(), now(), 'completed',
           'completed'
      FROM generate_series(1, $1::bigint) AS n
    """,
    """
    INSERT INTO worker_audit_logs (created_at, dispatch_id, worker_id, event)
    SELECT now() - make_interval(secs => ($1::bigint - n) * 0.6), n,
           'crowd-' || lpad((1 + n % $2::bigint)::text, 5, '0'),
           CASE WHEN n % 2 = 0 THEN 'lease' ELSE 'complete' END
      FROM generate_series(1, $1::bigint) AS n
    """,
    # usage is counted incrementally, as in production
    """
    INSERT INTO cursors (name, position)
    SELECT 'usage', max(id) FROM worker_audit_logs WHERE created_at < now() - interval '10 minutes'
        ON CONFLICT (name) DO UPDATE SET position = excluded.position
    """,
    """
    INSERT INTO tenants (id, name, shard, created_at)
    SELECT 'crowd-' || n, 'Tenant ' || n, 'main', now() FROM generate_series(0, $1::bigint - 1) AS n
    """,
    """
    INSERT INTO users (id, tenant_id, email, name, created_at)
    SELECT 'crowd-' || n, 'crowd-' || n, 'user-' || n || '@example.org', 'User ' || n, now()
      FROM generate_series(0, $1::bigint - 1) AS n
    """,
    """
    INSERT INTO samples (minute, waiting, oldest_wait_seconds, busy, slots, workers, begun, waited_seconds, done,
                         tokens)
    SELECT extract(epoch FROM now())::bigint / 60 - n, n % 500, n % 60, n % 1000, 1000, 1000, 100, 900, 95, 700
      FROM generate_series(0, 8 * 24 * 60) AS n
    ON CONFLICT DO NOTHING
    """,
)
SHARD = (
    "INSERT INTO token_wallets SELECT 'crowd-' || n, 500, now() FROM generate_series(0, $1::bigint - 1) AS n",
    """
    INSERT INTO token_transactions (tenant_id, type, amount, description, created_at)
    SELECT 'crowd-' || n % 20, 'ADJUSTMENT', 1, 'x', now() FROM generate_series(1, $1::bigint) AS n
    """,
    """
    INSERT INTO ai_jobs (id, tenant_id, user_id, workflow_id, workflow_hash, provider, stage, status, priority,
                         max_attempts, idempotency_key, request_digest, input_payload, reserved_tokens, available_at,
                         created_at, completed_at)
    SELECT 'crowd-' || lpad(n::text, 8, '0'), 'crowd-' || n % 2000, 'crowd-' || n % 2000, 1, 'h', 'self_hosted',
           'production', 'completed', 0, 3, 'k' || n, 'd', '{}', 1, now(), now(), now()
      FROM generate_series(1, $1::bigint) AS n
    """,
    # settled as in production, so that nothing is repaired again and again
    """
    INSERT INTO token_transactions (tenant_id, job_id, type, amount, created_at)
    SELECT tenant_id, id, type, amount, now()
      FROM ai_jobs, (VALUES ('JOB_RESERVE', -1), ('JOB_CONSUME', 0)) AS moved (type, amount) WHERE id LIKE 'crowd-%'
    """,
    """
    INSERT INTO webhook_deliveries (id, tenant_id, job_id, url, status, attempts, created_at, delivered_at)
    SELECT id, tenant_id, id, 'https://example.org/hook',
           CASE WHEN row_number() OVER () % 200 = 0 THEN 'given_up' ELSE 'delivered' END, 1, now(), now()
      FROM ai_jobs WHERE id LIKE 'crowd-%'
    """,
)
# The calls of each page. The calls of a step run in parallel, and the next step starts after their answers.
Steps = Sequence[Sequence[str]]
FLEETS, WORKFLOWS, EFFECTS = "/fleets?limit=200", "/workflows?limit=200", "/effects?limit=200"
FLEET, WORKER = "/fleets/production/bench", "/workers/crowd-00500"
LAST_30_DAYS = f"from={date.today() - timedelta(days=29)}&to={date.today()}"
DEAD = "/webhooks/deliveries?status=dead"
VALIDATE = "POST /workflows/bench/validate?limit=200"
PAGES: Mapping[str, Steps] = {
    f"overview, {range_}": [
        [
            f"/overview?range={range_}",
            "/workers?state=busy&limit=8",
            "/webhooks/counts",
            FLEETS,
        ],
        ["/workers?state=revoked&limit=1", "/workers?state=offline&limit=1", f"{FLEET}/autoscaling"],
    ]
    for range_ in ("hour", "day", "week")
} | {
    "workers": [["/workers?limit=50", FLEETS]],
    "workers, next page": [["/workers?limit=50&cursor=500/crowd-00500"]],
    "workers, by GPU": [["/workers?limit=50&sort=-gpu", FLEETS]],
    "workers, busy": [["/workers?limit=50&state=busy", FLEETS]],
    "workers, search": [["/workers?limit=50&search=0099", FLEETS]],
    "workers, search without matches": [["/workers?limit=50&search=nowhere", FLEETS]],
    "add a worker": [
        ["/workers?limit=50", FLEETS],
        [f"{FLEET}/join-command", "/audit-logs?event=register&limit=20"],
    ],
    "worker": [[WORKER], [f"{WORKER}/audit-logs?limit=50"]],
    "log of a worker": [[f"{WORKER}/logs"]],
    "fleets": [[FLEETS, f"/usage?by=fleet&{LAST_30_DAYS}"], [f"{FLEET}/autoscaling"]],
    "fleet": [[FLEET, f"{FLEET}/autoscaling"], [f"{FLEET}/metrics"]],
    "workflows of a fleet": [[FLEET, f"{FLEET}/autoscaling"], [WORKFLOWS]],
    "decisions of a fleet": [[FLEET, f"{FLEET}/autoscaling"], [f"{FLEET}/decisions?limit=50"]],
    "costs of a fleet": [
        [FLEET, f"{FLEET}/autoscaling"],
        [f"/usage?by=fleet&{LAST_30_DAYS}", f"/usage?by=workflow&{LAST_30_DAYS}"],
    ],
    "dispatches": [["/dispatches?limit=100", WORKFLOWS]],
    "dispatches, queued": [["/dispatches?limit=100&status=queued", WORKFLOWS]],
    "dispatches, leased": [["/dispatches?limit=100&status=leased", WORKFLOWS]],
    "dispatches, failed": [["/dispatches?limit=100&status=failed", WORKFLOWS]],
    "dispatches, completed": [["/dispatches?limit=100&status=completed", WORKFLOWS]],
    "dispatches of a workflow": [["/dispatches?limit=100&workflow=bench", WORKFLOWS]],
    "dispatches of a tenant": [["/dispatches?limit=100&tenant=crowd-7", WORKFLOWS]],
    "dispatches of a worker": [["/dispatches?limit=100&worker=crowd-00500", WORKFLOWS]],
    "dispatches of an empty stage": [["/dispatches?limit=100&stage=staging", WORKFLOWS]],
    "dispatches, search": [["/dispatches?limit=100&search=memory", WORKFLOWS]],
    "dispatches, search without matches": [["/dispatches?limit=100&search=nowhere", WORKFLOWS]],
    "completed dispatch": [
        ["/dispatches?limit=100", WORKFLOWS, "/dispatches/500001"],
        [f"{WORKER}/audit-logs?limit=200"],
    ],
    "queued dispatch": [
        ["/dispatches?limit=100&status=queued", WORKFLOWS, "/dispatches/995001"],
        ["/dispatches/995001/waiting"],
    ],
    "workflows": [[WORKFLOWS, EFFECTS, FLEETS]],
    "workflow": [["/workflows/bench"]],
    "workers of a workflow": [["/workflows/bench"], [VALIDATE, FLEETS]],
    "versions of a workflow": [["/workflows/bench"], ["/workflows/bench/versions?limit=200"]],
    "effects": [[EFFECTS, WORKFLOWS]],
    "effect": [["/effects/bench"], [WORKFLOWS, FLEETS]],
    "tenants": [["/tenants?limit=50"]],
    "tenants, search": [["/tenants?limit=50&search=user-19"]],
    "tenants, search without matches": [["/tenants?limit=50&search=nobody"]],
    "tenant": [["/tenants/crowd-7"], ["/tenants/crowd-7/transactions?limit=50"]],
    "webhooks": [["/webhooks/deliveries?limit=50", "/outbox/dead"]],
    "webhooks, dead": [[f"{DEAD}&limit=50", "/outbox/dead"]],
    "reconcile": [["/reconcile/findings"]],
    "settings": [["/settings"]],
}


async def fill(here: Site, shard: str, scale: float) -> None:
    """Insert rows by the million, bypassing the services."""
    workers, rows = max(10, int(WORKERS * scale)), max(1_000, int(DISPATCHES * scale))
    parameters: Sequence[tuple[int, ...]] = (
        (workers,),
        (),
        (rows, workers, TENANTS),
        (rows, workers),
        (rows, workers),
        (),
        (TENANTS,),
        (TENANTS,),
        (),
    )
    await _execute(here.central, CENTRAL, parameters)
    moved = int(MOVED * scale)
    await _execute(shard, SHARD, ((TENANTS,), (moved,), (moved,), (), ()))


async def _execute(url: str, statements: Sequence[str], parameters: Sequence[tuple[int, ...]]) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET synchronous_commit = off")
        for statement, values in zip(statements, parameters, strict=True):
            await connection.execute(statement, *values, timeout=600)
        await connection.execute("VACUUM ANALYZE", timeout=600)
    finally:
        await connection.close()


async def page_figures(here: Site, token: str, scale: float) -> list[Figure]:
    return await figures_of(here.urls[0], token, scale, PAGES)


async def figures_of(url: str, token: str, scale: float, pages: Mapping[str, Steps]) -> list[Figure]:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        return [await _page(session, name, _scaled(steps, scale)) for name, steps in pages.items()]


def _scaled(steps: Steps, scale: float) -> Steps:
    """Replace the ids of rows that do not exist at a smaller scale."""
    if scale >= 1:
        return steps
    last = int(DISPATCHES * scale)
    moved = {"crowd-00500": "crowd-00005", "500/": "5/", "/500001": "/501", "/995001": f"/{last - last // 200 + 1}"}
    return [[_replaced(call, moved) for call in step] for step in steps]


def _replaced(text: str, moved: Mapping[str, str]) -> str:
    for before, after in moved.items():
        text = text.replace(before, after)
    return text


async def _page(session: aiohttp.ClientSession, name: str, steps: Steps) -> Figure:
    times_ms = []
    for _ in range(CALLS + 3):
        began = time.perf_counter()
        for step in steps:
            await asyncio.gather(*(_call(session, call) for call in step))
        times_ms.append(1000 * (time.perf_counter() - began))
    # the first calls warm up connections and plans
    times_ms = sorted(times_ms[3:])
    p50, p95 = statistics.median(times_ms), times_ms[int(0.95 * len(times_ms))]
    print(f"{name:<34} p50 {p50:>7.1f} ms  p95 {p95:>7.1f} ms  least {times_ms[0]:>7.1f} ms", flush=True)
    goal = f"< {GOAL_MS:g} ms"
    comparison = f"p50 {p50:.1f} ms, best {times_ms[0]:.1f} ms"
    return Figure(f"console: {name}, p95", p95, "ms", comparison, None, goal, p95 < GOAL_MS)


async def _call(session: aiohttp.ClientSession, call: str) -> None:
    method, _, path = call.rpartition(" ")
    async with session.request(method or "GET", f"/api/admin{path}") as answer:
        body = await answer.read()
    if answer.status >= 400:
        raise RuntimeError(f"{call}: {answer.status} {body[:300]!r}")


async def measure(scale: float) -> list[Figure]:
    """Measure with 1,000 workers and 1,000,000 dispatches."""
    async with postgres_server() as server:
        return await _measure(server, scale)


async def _measure(server: Server, scale: float) -> list[Figure]:
    async with site(server, "console", 1) as here:
        began = time.perf_counter()
        await fill(here, server.url("console_main"), scale)
        print(f"filled in {time.perf_counter() - began:.0f} s", flush=True)
        filled = Figure("console: insert test data", time.perf_counter() - began, "s")
        accounts = here.engine.accounts
        admin = await accounts.tenancy.create_user(email="root@example.org", is_admin=True)
        token = (await accounts.sign_in.issue(admin, name="bench")).secret
        return [filled, *await page_figures(here, token, scale)]
