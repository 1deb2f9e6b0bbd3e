"""An engine over fresh databases, with a clock that the test sets."""

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from sqlalchemy import text

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.states import Provider, Stage
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.domain.records.jobs import JobRecord, VideoRecord
from comfyrelay.services.databases import Databases
from comfyrelay.services.engine import Engine
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.jobs.batches import BatchRequest, BatchState
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import SettledOutput
from comfyrelay.settings import Settings
from comfyrelay.store import outbox
from comfyrelay.store.central import audit
from comfyrelay.store.central import tables as central
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.database import Boundary, Database, Tx
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.store.tenant import history, jobs, ledger
from comfyrelay.store.tenant.history import Position
from comfyrelay.store.tenant.library import media

# The timeout of every wait, far longer than a busy machine needs: only failures reach it.
PATIENCE_SECONDS = float(os.environ.get("TESTS_PATIENCE_SECONDS", "120"))
START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
OUTPUT = SettledOutput(size=3, mime_type="video/mp4", extension="mp4", sha256="abc")
GRAPH = {
    "1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": "model.safetensors"}},
    "2": {"class_type": "Prompt", "inputs": {"text": "{{PROMPT}}", "model": ["1", 0]}},
    "3": {"class_type": "SaveVideo", "inputs": {"video": ["2", 0], "file": "{{INPUT}}"}},
}
# Users may add their own workflows and run them for free.
FREE_WORKFLOWS: dict[str, Any] = {"own_workflows": "everyone", "own_workflow_tokens_per_second": 0}
PROMPT = {
    "key": "prompt",
    "type": "text",
    "placeholder": "{{PROMPT}}",
    "default_value": "a cat",
    "user_configurable": True,
}


class Crash(BaseException):
    """A crash of the process, which no `except Exception` may catch."""


class Clock(Protocol):
    @property
    def now(self) -> datetime: ...

    async def set(self, now: datetime) -> None: ...


class Backend(Protocol):
    """Create the databases of a world."""

    name: str

    @asynccontextmanager
    def databases(self, shards: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, str], Clock]]: ...


@dataclass
class PythonClock:
    """A clock for SQLite, whose clock is a Python function."""

    now: datetime = START

    async def set(self, now: datetime) -> None:
        self.now = now


@dataclass
class PostgresClock:
    """A clock for PostgreSQL, whose `relay_now()` reads a table in tests."""

    connections: list[asyncpg.Connection]
    now: datetime = START

    async def set(self, now: datetime) -> None:
        self.now = now
        for connection in self.connections:
            await connection.execute("UPDATE test_clock SET now = $1", now)


TEST_CLOCK = """
CREATE TABLE test_clock (now timestamptz NOT NULL);
INSERT INTO test_clock VALUES ('2026-01-01T12:00:00Z');
CREATE OR REPLACE FUNCTION relay_now(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT now + make_interval(secs => seconds) FROM test_clock $$;
"""


# A database with a changed schema cannot be used again.
WATCHED_SCHEMA = """
CREATE TABLE test_revision AS TABLE alembic_version;
CREATE TABLE test_applied AS TABLE applied_migrations;
CREATE TABLE test_changes (tag text);
CREATE FUNCTION test_change() RETURNS event_trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO test_changes VALUES (tg_tag); END $$;
CREATE EVENT TRIGGER test_changes ON ddl_command_end EXECUTE FUNCTION test_change();
"""
TERMINATE_CONNECTIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
IS_CLEANABLE = """
SELECT NOT EXISTS (SELECT FROM test_changes) AND pg_database_size(current_database()) < 20000000
"""
CLEAN = """
DO $$
DECLARE
    command text;
BEGIN
    -- bypass the triggers that make histories append-only
    SET LOCAL session_replication_role = replica;
    FOR command IN
        SELECT format('DELETE FROM %s', oid::regclass) FROM pg_class
         WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
           AND relname NOT LIKE 'test_%'
        UNION ALL
        SELECT format('SELECT setval(%L, %s, false)', seqrelid::regclass, seqstart) FROM pg_sequence
    LOOP
        EXECUTE command;
    END LOOP;
    INSERT INTO alembic_version TABLE test_revision;
    INSERT INTO applied_migrations TABLE test_applied;
    IF to_regclass('test_clock') IS NOT NULL THEN
        UPDATE test_clock SET now = '2026-01-01T12:00:00Z';
    END IF;
END $$;
"""


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Return a folder in memory if the system has one, so that tests do not wait for the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="comfyrelay-tests-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class SqliteBackend:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates: Path | None = None

    @asynccontextmanager
    async def databases(self, shards: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, str], Clock]]:
        if self._templates is None:
            templates = self._folder / f"templates-{uuid.uuid4().hex}"
            await _upgrade(f"sqlite:///{templates}/central.db", f"sqlite:///{templates}/tenant.db")
            self._templates = templates
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir(parents=True)
        shutil.copy(self._templates / "central.db", folder / "central.db")
        for shard in shards:
            shutil.copy(self._templates / "tenant.db", folder / f"{shard}.db")
        try:
            urls = {shard: f"sqlite:///{folder}/{shard}.db" for shard in shards}
            yield f"sqlite:///{folder}/central.db", urls, PythonClock()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class PostgresBackend:
    """PostgreSQL databases that are copies of templates.

    A used database is cleaned and reused, which is far faster than copying, unless its schema changed or it has much
    data.
    """

    name = "postgresql"

    def __init__(self, url: str, *, real_clock: bool = False) -> None:
        """Create the backend; `url` has `{}` in place of the database name."""
        self._url = url
        self._real_clock = real_clock
        self._has_templates = False
        self._prefix = f"t{uuid.uuid4().hex[:8]}"
        self._clean: dict[str, list[str]] = {"central": [], "tenant": []}

    @asynccontextmanager
    async def databases(self, shards: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, str], Clock]]:
        if not self._has_templates:
            await self._make_templates()
            self._has_templates = True
        async with AsyncExitStack() as stack:
            central, *tenants = [
                await stack.enter_async_context(self._database(template))
                for template in ("central", *("tenant" for _ in shards))
            ]
            connections = [connection for _, connection in (central, *tenants)]
            urls = {shard: url for shard, (url, _) in zip(shards, tenants, strict=True)}
            yield central[0], urls, PostgresClock([] if self._real_clock else connections)

    @asynccontextmanager
    async def _database(self, template: str) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
        clean = self._clean[template]
        name = clean.pop() if clean else await self._copy(template)
        connection = await asyncpg.connect(self._url.format(name))
        is_clean = False
        try:
            yield self._url.format(name), connection
            is_clean = await _clean(connection)
        finally:
            await connection.close()
            if is_clean:
                clean.append(name)
            else:
                await self._run("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    async def _copy(self, template: str) -> str:
        name = f"{self._prefix}_{uuid.uuid4().hex[:12]}"
        await self._run("postgres", f"CREATE DATABASE {name} TEMPLATE {self._prefix}_{template}")
        return name

    async def _make_templates(self) -> None:
        names = [f"{self._prefix}_central", f"{self._prefix}_tenant"]
        for name in names:
            await self._run("postgres", f"CREATE DATABASE {name}")
        await _upgrade(*(self._url.format(name) for name in names))
        for name in names:
            await self._run(name, WATCHED_SCHEMA if self._real_clock else TEST_CLOCK + WATCHED_SCHEMA)

    async def _run(self, database: str, script: str) -> None:
        connection = await asyncpg.connect(self._url.format(database))
        await connection.execute(script)
        await connection.close()


async def _clean(connection: asyncpg.Connection) -> bool:
    """Reset a database to its template; return whether that was possible."""
    # terminate leftover connections, which may hold locks
    while await connection.fetchval(TERMINATE_CONNECTIONS):  # noqa: ASYNC110  (the server sends no signal)
        await asyncio.sleep(0.001)
    if not await connection.fetchval(IS_CLEANABLE):
        return False
    await connection.execute(CLEAN)
    return True


async def _upgrade(central_url: str, tenant_url: str) -> None:
    databases = Databases(Database("central", central_url), {"main": Database("main", tenant_url)})
    await databases.upgrade()
    await databases.close()


@dataclass
class World:
    engine: Engine
    clock: Clock
    backend: str
    users: list[User] = field(default_factory=list)
    _numbers: int = 0

    # create records

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def user(self, *, tokens: int = 1000, shard: str | None = None) -> User:
        user = await self.engine.accounts.tenancy.create_user(email=f"user{self.number()}@example.org", shard=shard)
        if tokens:
            await self.engine.accounts.ledger.credit(user.tenant_id, tokens, reference="first")
        self.users.append(user)
        return user

    async def workflow(self, slug: str | None = None, **values: Any) -> WorkflowRecord:
        values.setdefault("graph", GRAPH)
        values.setdefault("properties", [PROMPT])
        return await self.engine.catalogue.workflows.create(slug=slug or f"workflow-{self.number()}", **values)

    async def effect(self, workflow: WorkflowRecord | None = None, *, cost: int = 10, **values: Any) -> EffectRecord:
        workflow = workflow or await self.workflow()
        return await self.engine.catalogue.effects.create(
            slug=f"effect-{self.number()}", workflow_slug=workflow.slug, credits_cost=cost, **values
        )

    async def fleet(self, *workflows: WorkflowRecord, stage: Stage = Stage.PRODUCTION) -> str:
        slug = f"fleet-{self.number()}"
        await self.engine.workers.fleets.create(
            slug=slug, stage=stage, workflow_slugs=[workflow.slug for workflow in workflows], max_workers=10_000
        )
        return slug

    async def worker(
        self, fleet: str, *, concurrency: int = 1, stage: Stage = Stage.PRODUCTION, name: str | None = None
    ) -> str:
        worker_id = name or f"worker-{self.number()}"
        await self.engine.workers.workers.register(
            worker_id=worker_id, fleet_slug=fleet, stage=stage, max_concurrency=concurrency
        )
        return worker_id

    async def desk(
        self, *, concurrency: int = 1, tokens: int = 1000, cost: int = 10, workflow: WorkflowRecord | None = None
    ) -> "Desk":
        """Create a user, an effect and a worker that may run it."""
        workflow = workflow or await self.workflow()
        effect = await self.effect(workflow, cost=cost)
        fleet = await self.fleet(workflow)
        worker = await self.worker(fleet, concurrency=concurrency)
        return Desk(
            world=self,
            user=await self.user(tokens=tokens),
            workflow=workflow,
            effect=effect,
            fleet=fleet,
            worker=worker,
        )

    # actions

    async def submit(self, user: User, effect: EffectRecord, *, key: str | None = None, **values: Any) -> JobRecord:
        item = ItemRequest(
            input_payload=values.pop("input_payload", {}),
            input_file_id=values.pop("input_file_id", None),
            video_id=values.pop("video_id", None),
            label=values.pop("label", None),
        )
        request = JobRequest(
            tenant_id=user.tenant_id,
            user_id=user.id,
            idempotency_key=key or f"key-{self.number()}",
            effect_id=effect.id,
            item=item,
            **values,
        )
        return await self.engine.jobs.submit.submit(request)

    async def lease(self, worker: str, **values: Any) -> LeasedDispatch | None:
        leased = await self.leases(worker, 1, **values)
        return leased[0] if leased else None

    async def leases(self, worker: str, limit: int, **values: Any) -> list[LeasedDispatch]:
        values.setdefault("providers", [Provider.SELF_HOSTED])
        found = await self.engine.queue.leasing.lease(LeaseRequest(worker_id=worker, limit=limit, **values))
        await self.wait_for_deliveries()
        return found

    async def complete(self, leased: LeasedDispatch, **values: Any) -> str:
        values.setdefault("output", OUTPUT)
        return (await self.engine.queue.settle.complete(leased.dispatch_id, leased.lease_token, **values)).status

    async def fail(self, leased: LeasedDispatch, error: str = "it broke", **values: Any) -> str:
        answer = await self.engine.queue.settle.fail(leased.dispatch_id, leased.lease_token, error=error, **values)
        return answer.status

    async def requeue(self, leased: LeasedDispatch, reason: str = "spot_interruption") -> str:
        answer = await self.engine.queue.settle.requeue(leased.dispatch_id, leased.lease_token, reason=reason)
        return answer.status

    async def advance(self, seconds: float) -> None:
        await self.clock.set(self.clock.now + timedelta(seconds=seconds))

    async def expire(self) -> int:
        """Expire every lease and run the reaper; return the number of dispatches that changed."""
        settings = self.engine.settings
        await self.advance(settings.lease_ttl_seconds + settings.late_seconds)
        return await self.engine.queue.reaper.run_once()

    async def wait_for_deliveries(self) -> None:
        await self.engine.outbox.delivery.idle()

    async def relay(self) -> None:
        """Deliver everything in the outbox."""
        await self.wait_for_deliveries()
        await self.engine.outbox.recovery.run_once(grace_seconds=0)

    def crash_on(self, step: str, boundary: Boundary) -> list[str]:
        """Crash once at this boundary of this step; the returned list is empty until then."""
        crashed: list[str] = []

        async def crash(at: str, where: Boundary) -> None:
            if at == step and where is boundary and not crashed:
                crashed.append(at)
                raise Crash(f"{step} {boundary}")

        self.on_boundary(crash)
        return crashed

    def on_boundary(self, crash: Any) -> None:
        for database in (self.engine.databases.central, *self.engine.databases.shards.values()):
            database.crash = crash

    async def restart(self, hooks: Hooks | None = None) -> Engine:
        """Start a new engine, as after a crash, so everything in memory is lost."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.engine.databases.close()
        clock = self.clock
        self.engine = Engine(self.engine.settings, clock=lambda: clock.now, notify_channel=NotifyChannel(), hooks=hooks)
        return self.engine

    # read records

    async def job(self, job: JobRecord) -> JobRecord:
        async with (await self.engine.databases.shard_of(job.tenant_id)).read() as tx:
            found = await jobs.get(tx, job.tenant_id, job.id)
        assert found is not None
        return found

    async def dispatch(self, job: JobRecord) -> Dispatch:
        async with self.engine.databases.central.read() as tx:
            return (await dispatches.by_job(tx, job.tenant_id, [job.id]))[job.id]

    async def balance(self, user: User) -> int:
        return await self.engine.accounts.ledger.balance(user.tenant_id)

    async def transactions(self, job: JobRecord) -> dict[str, int]:
        async with (await self.engine.databases.shard_of(job.tenant_id)).read() as tx:
            return {entry.type: entry.amount for entry in (await ledger.of_jobs(tx, [job.id])).get(job.id, [])}

    async def attempts(self, job: JobRecord) -> list[Any]:
        async with (await self.engine.databases.shard_of(job.tenant_id)).read() as tx:
            return await jobs.attempts_of(tx, [job.id])

    async def events(self, job: JobRecord) -> list[str]:
        async with (await self.engine.databases.shard_of(job.tenant_id)).read() as tx:
            return [event.type for event in await history.events_after(tx, [Position(job.tenant_id, job.id, 0)])]

    async def video(self, user: User, video_id: str) -> VideoRecord:
        async with (await self.engine.databases.shard_of(user.tenant_id)).read() as tx:
            found = await media.video(tx, user.tenant_id, video_id)
        assert found is not None
        return found

    async def audit(self, worker: str) -> list[str]:
        async with self.engine.databases.central.read() as tx:
            return [entry.event for entry in reversed((await audit.page(tx, worker_id=worker, limit=100))[0])]

    async def entries(self) -> list[JobUpdate]:
        async with self.engine.databases.central.read() as tx:
            return [
                update
                for shard in self.engine.databases.shards
                for entry in await outbox.entries(tx, shard, limit=1000)
                for update in entry.updates
            ]

    async def count(self, table: Any = central.queue.ai_job_dispatches) -> int:
        async with self.engine.databases.central.read() as tx:
            return len((await tx.execute(table.select())).all())


@dataclass
class Desk:
    world: World
    user: User
    workflow: WorkflowRecord
    effect: EffectRecord
    fleet: str
    worker: str

    async def submit(self, **values: Any) -> JobRecord:
        return await self.world.submit(self.user, self.effect, **values)

    async def submit_and_lease(self, **values: Any) -> tuple[JobRecord, LeasedDispatch]:
        job = await self.submit(**values)
        leased = await self.world.lease(self.worker)
        assert leased is not None
        assert leased.dispatch.tenant_job_id == job.id
        return job, leased

    async def file(self, mime_type: str = "video/mp4") -> str:
        path = f"uploads/{self.world.number()}"
        return await self.world.engine.accounts.tenancy.add_file(self.user, path=path, mime_type=mime_type, size=1)

    async def balance(self) -> int:
        return await self.world.balance(self.user)


@asynccontextmanager
async def open_world(
    backend: SqliteBackend | PostgresBackend,
    folder: Path,
    *,
    shards: Sequence[str] = ("a", "b"),
    **settings: Any,
) -> AsyncIterator[World]:
    async with backend.databases(shards) as (central_url, shard_urls, clock):
        values: dict[str, Any] = {
            "data_dir": folder,
            "database_url": central_url,
            "shards": shard_urls,
            "database_pool_size": 5,
            # webhook receivers listen on this machine
            "webhook_allow_private": True,
            **FREE_WORKFLOWS,
            **settings,
        }
        engine = Engine(Settings(**values), clock=lambda: clock.now, notify_channel=NotifyChannel())
        world = World(engine=engine, clock=clock, backend=backend.name)
        try:
            yield world
        finally:
            # stop the current engine, because the world may have been restarted
            await world.engine.stop()


def graph_of(model: str) -> dict[str, Any]:
    """Return the graph with another model and therefore another workflow hash."""
    return {**GRAPH, "1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": f"{model}.safetensors"}}}


async def execute(database: Database, statement: str, **values: Any) -> list[Any]:
    """Run any statement."""

    async def work(tx: Tx) -> list[Any]:
        result = await tx.execute(text(statement), values)
        return list(result.all()) if result.returns_rows else []

    return await database.run("test", work)


async def submit_many(
    world: World, user: User, effect: EffectRecord, count: int, *, priority: int = 0
) -> list[JobRecord]:
    """Submit a batch, which counts as one active job; return its jobs in queue order."""
    request = BatchRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        idempotency_key=f"batch-{world.number()}",
        items=[ItemRequest()] * count,
        effect_id=effect.id,
        priority=priority,
    )
    batch = await world.engine.jobs.batches.submit(request)
    async with (await world.engine.databases.shard_of(user.tenant_id)).read() as tx:
        return await jobs.newest_in_batch(tx, user.tenant_id, batch.id)


@asynccontextmanager
async def shard_down(world: World, name: str) -> AsyncIterator[None]:
    """Make a shard unreachable until the block ends."""
    shards = world.engine.databases.shards
    reachable = shards[name]
    folder = str(Path(reachable.url.database or "").parent)
    url = reachable.url.set(database=folder if reachable.dialect == "sqlite" else "missing")
    shards[name] = Database(name, url.render_as_string(hide_password=False))
    try:
        yield
    finally:
        await shards[name].close()
        shards[name] = reachable


async def submit_batch(
    world: World,
    user: User,
    effect: EffectRecord,
    items: int | Sequence[ItemRequest] = 3,
    *,
    key: str | None = None,
    **values: Any,
) -> BatchState:
    """Submit a batch of these items, or of this many items with different prompts."""
    requests = (
        [ItemRequest(input_payload={"prompt": f"item {n}"}) for n in range(items)] if isinstance(items, int) else items
    )
    request = BatchRequest(
        tenant_id=user.tenant_id,
        user_id=user.id,
        idempotency_key=key or f"key-{world.number()}",
        effect_id=effect.id,
        items=requests,
        **values,
    )
    return await world.engine.jobs.batches.submit(request)


def queued_dispatch(**values: Any) -> Dispatch:
    """Return a queued dispatch that is in no database."""
    dispatch = Dispatch(
        id=1,
        tenant_id="t",
        tenant_job_id="j",
        shard="a",
        workflow_id=1,
        workflow_hash="h",
        effect_id=1,
        provider="self_hosted",
        stage="production",
        status="queued",
        priority=0,
        rank=0,
        attempts=0,
        max_attempts=3,
        epoch=0,
        version=0,
        deferrals=0,
        batch_id=None,
        worker_id=None,
        lease_token=None,
        lease_request_id=None,
        leased_at=None,
        lease_expires_at=None,
        is_prefetch=False,
        cancel_requested_at=None,
        pause_requested_at=None,
        pause_mode=None,
        release_requested_at=None,
        available_at=START,
        created_at=START,
        finished_at=None,
        duration_seconds=None,
        last_error=None,
    )
    return dispatch._replace(**values)
