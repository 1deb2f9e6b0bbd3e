"""Schema upgrades, refused databases, and the placement of tenants in shards."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection, event

from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, InvalidInput, SchemaMismatch, SchemaOutOfDate
from comfyrelay.services.databases import Databases
from comfyrelay.services.engine import Engine
from comfyrelay.store import definitions, migrate, schema_check
from comfyrelay.store.central import tenants
from comfyrelay.store.database import Database
from comfyrelay.store.notify import NotifyChannel
from tests.support.schema_differences import differences
from tests.support.world import World, execute

Empty = tuple[str, str]


@pytest.fixture(params=["sqlite", "postgresql"])
async def empty(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Empty]:
    """The URLs of two empty databases."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/central.db", f"sqlite:///{tmp_path}/tenant.db"
        return
    url: str = request.getfixturevalue("postgres_url")
    names = ["empty_central", "empty_tenant"]
    server = await asyncpg.connect(url.format("postgres"))
    try:
        for name in names:
            await server.execute(f"CREATE DATABASE {name}")
        yield url.format(names[0]), url.format(names[1])
    finally:
        for name in names:
            await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await server.close()


def databases_at(urls: Empty) -> Databases:
    return Databases(Database("central", urls[0]), {"main": Database("main", urls[1])})


@pytest.fixture
async def databases(empty: Empty) -> AsyncIterator[Databases]:
    databases = databases_at(empty)
    yield databases
    await databases.close()


class TestSchema:
    async def test_migrations_match_the_table_definitions(self, databases: Databases) -> None:
        await databases.upgrade()
        for database, schema in databases.schemas():
            assert await differences(database, schema) == []
        await execute(databases.central, "DROP TABLE payment_events")
        assert await differences(databases.central, migrate.Schema.CENTRAL) != []

    async def test_upgrading_twice_changes_nothing(self, databases: Databases) -> None:
        first = await databases.upgrade()
        assert first == {database.name: (None, migrate.head(schema)) for database, schema in databases.schemas()}
        second = await databases.upgrade()
        assert second == {name: (head, head) for name, (_, head) in first.items()}

    async def test_error_names_the_outdated_databases(self, databases: Databases) -> None:
        with pytest.raises(SchemaOutOfDate, match=r"central, main.*comfyrelay db upgrade"):
            await databases.require_current()
        await migrate.upgrade(databases.central, migrate.Schema.CENTRAL)
        with pytest.raises(SchemaOutOfDate, match="The schema of main is"):
            await databases.require_current()
        await databases.upgrade()
        await databases.require_current()

    async def test_concurrent_upgrades_both_succeed(self, empty: Empty, databases: Databases) -> None:
        other = databases_at(empty)
        both = (databases.central, other.central)
        answers = await asyncio.gather(*(migrate.upgrade(database, migrate.Schema.CENTRAL) for database in both))
        head = migrate.head(migrate.Schema.CENTRAL)
        assert sorted(answers, key=str) == sorted([(None, head), (head, head)], key=str)
        await other.close()


class TestRefusedDatabases:
    """A newer, foreign or swapped database is refused without changes."""

    async def test_newer_schema_is_refused(self, databases: Databases) -> None:
        await databases.upgrade()
        await execute(databases.central, "UPDATE alembic_version SET version_num = 'central_9999'")
        for call in (databases.upgrade, databases.require_current):
            with pytest.raises(ConfigurationError, match=r"central is central_9999, but ComfyRelay \S+ supports"):
                await call()

    async def test_shard_configured_as_central_is_refused(self, empty: Empty, databases: Databases) -> None:
        await databases.upgrade()
        swapped = databases_at((empty[1], empty[0]))
        with pytest.raises(ConfigurationError, match="COMFYRELAY_DATABASE_URL"):
            await swapped.upgrade()
        await swapped.close()

    async def test_foreign_database_is_refused(self, databases: Databases) -> None:
        await execute(databases.shards["main"], "CREATE TABLE customers (id integer)")
        with pytest.raises(ConfigurationError, match=r"tables of another program \(customers"):
            await databases.upgrade()
        assert await migrate.current(databases.shards["main"]) is None

    async def test_file_without_a_database_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "central.db").write_text("no database, but much longer than the header of one is: " * 10)
        databases = databases_at((f"sqlite:///{tmp_path}/central.db", f"sqlite:///{tmp_path}/tenant.db"))
        with pytest.raises(ConfigurationError, match="is not an SQLite database"):
            await databases.upgrade()
        await databases.close()


QUEUED = "ix_ai_job_dispatches_queued"
CHANGES = [
    ("ALTER TABLE workflows RENAME COLUMN may_burst TO bursts", "column workflows.may_burst is missing"),
    ("DROP TABLE worker_logs", "table worker_logs is missing"),
    ("DROP INDEX ix_users_admins", "index ix_users_admins of users is missing"),
    (
        "DROP INDEX ix_users_admins; CREATE INDEX ix_users_admins ON users (email) WHERE is_admin",
        r"index ix_users_admins of users is on \(email\) where is_admin, not on \(id\) where is_admin",
    ),
    (
        f"DROP INDEX {QUEUED}; CREATE INDEX {QUEUED} ON ai_job_dispatches "
        "(stage, provider, workflow_id, priority, rank, id) WHERE status = 'queued'",
        rf"index {QUEUED} of ai_job_dispatches is on \(.* priority, rank, id\) .*, not on \(.* priority DESC,",
    ),
    (
        f"DROP INDEX {QUEUED}; CREATE INDEX {QUEUED} ON ai_job_dispatches "
        "(stage, provider, workflow_id, priority DESC, rank, id) WHERE status <> 'queued'",
        rf"index {QUEUED} of .* where status <> 'queued', not .* where status = 'queued'",
    ),
    (
        "DROP INDEX uq_workflows_slug; CREATE INDEX uq_workflows_slug ON workflows (slug) WHERE deleted_at IS NULL",
        "index uq_workflows_slug of workflows is on .*, not unique on",
    ),
    ("ALTER TABLE users DROP COLUMN disabled_at; ALTER TABLE users ADD disabled_at integer", "is integer, not t"),
    (
        "DROP TABLE cursors; CREATE TABLE cursors (name text PRIMARY KEY, place bigint NOT NULL, city text NOT NULL)",
        "column cursors.city is not ours",
    ),
]
ADDITIONS = [
    ("CREATE INDEX my_index ON users (name)", ["index my_index of users is not ours"]),
    ("ALTER TABLE users ADD note text", ["column users.note is not ours"]),
    ("ALTER TABLE users ADD city text NOT NULL DEFAULT 'x'", ["column users.city is not ours"]),
    ("CREATE TABLE notes (id integer)", []),
]
# A table, its constraint, its condition, and another condition with the same columns.
CHANGED_CHECKS = [
    ("workflows", "kind", "kind IN ('graph', 'script')", "kind IN ('graph', 'program')"),
    ("fleets", "stage", "stage IN ('staging', 'production')", "stage NOT IN ('staging', 'production')"),
    ("workers", "max_concurrency", "max_concurrency >= 1", "max_concurrency >= 0"),
    (
        "ai_job_dispatches",
        "requests_only_while_leased",
        "status = 'leased' OR cancel_requested_at IS NULL AND pause_requested_at IS NULL"
        " AND release_requested_at IS NULL",
        "(status = 'leased' OR cancel_requested_at IS NULL) AND pause_requested_at IS NULL"
        " AND release_requested_at IS NULL",
    ),
]


async def replace_check(database: Database, table: str, name: str, condition: str) -> None:
    """Replace the condition of a constraint. SQLite allows this only by editing its own table of definitions."""
    if database.dialect == "postgresql":
        await execute(database, f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        await execute(database, f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition})")
        return
    (found,) = await execute(database, f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
    start = f"CONSTRAINT {name} CHECK ("
    head, _, tail = found.sql.partition(start)
    _, rest = definitions.in_parentheses(tail, 0)
    changed = f"{head}{start}{condition}){rest}".replace("'", "''")
    await execute(database, "PRAGMA writable_schema = 1")
    await execute(database, f"UPDATE sqlite_master SET sql = '{changed}' WHERE name = '{table}'")
    await execute(database, "PRAGMA writable_schema = 0")


class TestForeignSchemas:
    """A database with the newest revision may still have the schema of another version."""

    @pytest.mark.parametrize(("statements", "difference"), CHANGES)
    async def test_breaking_difference_is_refused(self, databases: Databases, statements: str, difference: str) -> None:
        await databases.upgrade()
        for statement in statements.split("; "):
            await execute(databases.central, statement)
        for call in (databases.upgrade, lambda: databases.open(0), databases.require_current):
            with pytest.raises(SchemaMismatch, match=difference) as refused:
                await call()
            assert "Run the version that created this database" in refused.value.detail
        state = (await databases.states())["central"]
        assert state.revision == state.newest
        assert not state.is_current

    @pytest.mark.parametrize(("statement", "additions"), ADDITIONS)
    async def test_addition_is_reported_and_accepted(
        self, databases: Databases, statement: str, additions: list[str]
    ) -> None:
        await databases.upgrade()
        await execute(databases.central, statement)
        await databases.upgrade()
        await databases.require_current()
        state = (await databases.states())["central"]
        assert state.is_current
        assert list(state.additions) == additions

    @pytest.mark.parametrize(("table", "constraint", "condition", "other"), CHANGED_CHECKS)
    async def test_changed_condition_of_a_constraint_is_refused(
        self, databases: Databases, table: str, constraint: str, condition: str, other: str
    ) -> None:
        await databases.upgrade()
        name = f"ck_{table}_{constraint}"
        await replace_check(databases.central, table, name, condition)
        await databases.require_current()
        await replace_check(databases.central, table, name, other)
        for call in (databases.upgrade, databases.require_current):
            with pytest.raises(SchemaMismatch, match=f"check constraint {name} of {table} is .*, not"):
                await call()

    async def test_index_that_was_not_completed_is_refused(self, databases: Databases) -> None:
        if databases.central.dialect == "sqlite":
            pytest.skip("only PostgreSQL keeps an index whose creation failed")
        await databases.upgrade()
        await execute(databases.central, f"ALTER INDEX {QUEUED} SET (fillfactor = 70)")
        await databases.require_current()
        invalid = f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{QUEUED}'::regclass"
        await execute(databases.central, invalid)
        with pytest.raises(SchemaMismatch, match=f"index {QUEUED} of ai_job_dispatches is invalid"):
            await databases.require_current()

    @pytest.mark.parametrize("changed", ["ON UPDATE CASCADE", "NOT VALID"])
    async def test_changed_foreign_key_is_refused(self, databases: Databases, changed: str) -> None:
        if databases.central.dialect == "sqlite":
            pytest.skip("SQLite cannot replace a foreign key")
        await databases.upgrade()
        (key,) = await execute(
            databases.central,
            "SELECT conname, pg_get_constraintdef(oid) AS definition FROM pg_constraint"
            " WHERE contype = 'f' AND conrelid = 'workflow_fleets'::regclass AND confrelid = 'workflows'::regclass",
        )
        await execute(databases.central, f"ALTER TABLE workflow_fleets DROP CONSTRAINT {key.conname}")
        await execute(
            databases.central, f"ALTER TABLE workflow_fleets ADD CONSTRAINT {key.conname} {key.definition} {changed}"
        )
        with pytest.raises(SchemaMismatch, match=r"foreign key .* of workflow_fleets is .*, not"):
            await databases.require_current()

    async def test_changed_migration_is_refused(self, databases: Databases) -> None:
        await databases.upgrade()
        await execute(databases.shards["main"], "UPDATE applied_migrations SET checksum = 'another'")
        for call in (databases.upgrade, databases.require_current):
            with pytest.raises(SchemaMismatch, match=r"of main .* The migration tenant_0001 has changed since it ran"):
                await call()

    async def test_database_without_checksums_is_accepted_if_the_schema_fits(self, databases: Databases) -> None:
        await databases.upgrade()
        await execute(databases.central, "DROP TABLE applied_migrations")
        await databases.require_current()
        await databases.upgrade()
        (applied,) = await execute(databases.central, "SELECT revision, checksum FROM applied_migrations")
        assert applied.checksum == migrate.checksum(migrate.Schema.CENTRAL, applied.revision)

    async def test_number_of_statements_does_not_grow_with_the_tables(self, databases: Databases) -> None:
        """Reflection of each table would take half a second at every start."""
        await databases.upgrade()
        statements = []

        def work(connection: Connection) -> None:
            event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
            schema_check.compare(connection, migrate.Schema.CENTRAL.metadata)

        async with databases.central.read() as tx:
            await tx.run_sync(work)
        assert 0 < len(statements) <= 5


async def shard_of(world: World, tenant_id: str) -> str:
    async with world.engine.databases.central.read() as tx:
        tenant = await tenants.get(tx, tenant_id)
    assert tenant is not None
    return tenant.shard


def other_process(world: World, shards: list[str]) -> Engine:
    """Return another engine on the same databases that knows only these shards."""
    urls = {name: url for name, url in world.engine.settings.shards.items() if name in shards}
    clock = world.clock
    settings = world.engine.settings.model_copy(update={"shards": urls})
    return Engine(settings, clock=lambda: clock.now, notify_channel=NotifyChannel())


class TestShards:
    async def test_tenants_are_placed_in_the_emptiest_shard(self, world: World) -> None:
        await world.user(shard="a")
        users = [await world.user() for _ in range(5)]
        found = [await shard_of(world, user.tenant_id) for user in users]
        assert found == ["b", "a", "b", "a", "b"]

    async def test_rows_of_a_tenant_are_only_in_its_shard(self, world: World) -> None:
        desk = await world.desk()
        await desk.submit()
        home = await shard_of(world, desk.user.tenant_id)
        counts = {
            name: (await execute(shard, "SELECT count(*) AS n FROM ai_jobs"))[0].n
            for name, shard in world.engine.databases.shards.items()
        }
        assert counts == {name: int(name == home) for name in ("a", "b")}

    async def test_other_server_finds_the_shard_of_a_tenant(self, world: World) -> None:
        user = await world.user(shard="b")
        async with other_process(world, ["a", "b"]) as other:
            assert (await other.databases.shard_of(user.tenant_id)).name == "b"
            assert await other.accounts.ledger.balance(user.tenant_id) == 1000

    async def test_added_shard_gets_new_tenants_and_moves_none(self, world: World) -> None:
        async with other_process(world, ["a"]) as before:
            old = [await before.accounts.tenancy.create_user(email=f"old{n}@example.org") for n in range(3)]
        new = [await world.user() for _ in range(3)]
        assert [await shard_of(world, user.tenant_id) for user in old] == ["a", "a", "a"]
        assert [await shard_of(world, user.tenant_id) for user in new] == ["b", "b", "b"]

    async def test_unconfigured_shard_is_unavailable(self, world: World) -> None:
        user = await world.user(shard="b")
        async with other_process(world, ["a"]) as other:
            with pytest.raises(DatabaseUnavailable):
                await other.accounts.ledger.balance(user.tenant_id)

    async def test_tenant_in_an_unknown_shard_is_refused(self, world: World) -> None:
        with pytest.raises(InvalidInput):
            await world.user(shard="nowhere")
