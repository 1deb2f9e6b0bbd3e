"""A database of any earlier revision with a row in every table upgrades without losing a value.

Migrations are found by their file names, so a new one is tested as soon as it exists.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Boolean, Column, Connection, Float, Integer, LargeBinary, MetaData, Table, Text, inspect, select

from comfyrelay.errors import ConfigurationError, SchemaMismatch
from comfyrelay.store import checksums, migrate
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.migrate import Schema
from comfyrelay.store.schema_check import OWN_TABLES
from tests.support.full import full_only
from tests.support.schema_differences import differences

Rows = dict[str, dict[str, Any]]

AT = datetime(2026, 1, 1, tzinfo=UTC)
# Values that constraints require. All other columns take any value of their type.
VALUES = {
    "status": "queued",
    "stage": "production",
    "provider": "self_hosted",
    "kind": "graph",
    "registration_source": "fleet",
    "type": "ADJUSTMENT",
}
VALUES_OF_TABLE: dict[str, dict[str, Any]] = {
    "account_links": {"kind": "reset"},
    "webhook_deliveries": {"status": "pending", "due_at": AT},
}


def _starts() -> list[tuple[Schema, str]]:
    """Return the first and the newest two revisions of both schemas, or all revisions with `--full`."""
    found = []
    for schema in Schema:
        revisions = migrate.revisions(schema)
        chosen = {revisions[0], *revisions[-2:], *full_only(*revisions)}
        found += [(schema, revision) for revision in revisions if revision in chosen]
    return found


STEPS = _starts()


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> str | None:
    """The URL of the PostgreSQL server, or None for SQLite."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else None


@pytest.fixture
async def database(server: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database."""
    if server is None:
        found = Database("upgraded", f"sqlite:///{tmp_path}/upgraded.db")
        yield found
        await found.close()
        return
    connection = await asyncpg.connect(server.format("postgres"))
    await connection.execute("CREATE DATABASE upgraded")
    found = Database("upgraded", server.format("upgraded"))
    try:
        yield found
    finally:
        await found.close()
        await connection.execute("DROP DATABASE upgraded WITH (FORCE)")
        await connection.close()


def tables_of(connection: Connection) -> list[Table]:
    found = MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name not in OWN_TABLES]


def value_of(column: Column[Any], values: dict[str, Any], dialect: str) -> Any:
    if column.name in values or column.name.endswith("_at"):
        value = values.get(column.name, AT)
        is_text_time = value is AT and dialect == "sqlite"
        return f"{AT:%Y-%m-%d %H:%M:%S.%f}" if is_text_time else value
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, Float):
        return 1.5
    if isinstance(column.type, Integer):
        return 1
    if isinstance(column.type, LargeBinary):
        return b"x"
    return "x" if isinstance(column.type, Text) else {"x": 1}


def row_for(table: Table, dialect: str) -> dict[str, Any]:
    """Return a row in which all keys have the same value, so that foreign keys match."""
    values = {**VALUES, **VALUES_OF_TABLE.get(table.name, {})}
    special = VALUES_OF_TABLE.get(table.name, {})
    columns = [column for column in table.columns if not column.nullable or column.name in special]
    return {column.name: value_of(column, values, dialect) for column in columns}


async def fill(database: Database) -> Rows:
    """Insert one row into each table."""

    def work(connection: Connection) -> Rows:
        tables = tables_of(connection)
        for table in tables:
            connection.execute(table.insert().values(row_for(table, connection.dialect.name)))
        return read_rows(connection)

    return await database.run("fill", lambda tx: tx.run_sync(work))


def read_rows(connection: Connection) -> Rows:
    found = {}
    for table in tables_of(connection):
        rows = connection.execute(select(table)).mappings().all()
        assert len(rows) <= 1
        found[table.name] = dict(rows[0]) if rows else {}
    return found


async def find_lost_values(database: Database, before: Rows) -> list[str]:
    """Return the tables and values that are missing or differ. Columns may be added and removed."""

    def work(connection: Connection) -> list[str]:
        after = read_rows(connection)
        columns = {name: {column["name"] for column in inspect(connection).get_columns(name)} for name in after}
        return [
            f"{table}.{column}"
            for table, row in before.items()
            for column, value in row.items()
            if table not in after or (column in columns[table] and after[table].get(column) != value)
        ]

    async def read(tx: Tx) -> list[str]:
        return await tx.run_sync(work)

    return await database.run("lost", read)


@pytest.mark.parametrize(("schema", "start"), STEPS)
async def test_rows_survive_every_migration(database: Database, schema: Schema, start: str) -> None:
    await migrate.upgrade(database, schema, to=start)
    rows = await fill(database)
    assert rows
    assert all(rows.values())
    found = migrate.revisions(schema)
    for revision in found[found.index(start) :]:
        await migrate.upgrade(database, schema, to=revision)
        assert await migrate.current(database) == revision
        assert await find_lost_values(database, rows) == []
    assert await differences(database, schema) == []


@pytest.mark.parametrize(("schema", "start"), STEPS)
async def test_every_revision_upgrades_to_the_newest_at_once(database: Database, schema: Schema, start: str) -> None:
    await migrate.upgrade(database, schema, to=start)
    assert await migrate.upgrade(database, schema) == (start, migrate.head(schema))
    assert await differences(database, schema) == []


class TestNextMigration:
    """The checks above detect a migration that loses data or does not match the table definitions."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        folder = tmp_path / "migrations"
        shutil.copytree(migrate._FOLDER, folder)
        monkeypatch.setattr(migrate, "_FOLDER", folder)
        # so that they are computed
        monkeypatch.setattr(checksums, "CHECKSUMS", {})
        migrate.head.cache_clear()
        yield folder
        migrate.head.cache_clear()

    def add(self, folder: Path, upgrade: str) -> str:
        """Add a migration after the newest one; returns the revision before it."""
        newest = migrate.revisions(Schema.CENTRAL)[-1]
        number = int(newest.rpartition("_")[2]) + 1
        (folder / "central" / "versions" / f"{number:04}_next.py").write_text(
            f"from alembic import op\n\nrevision = 'central_{number:04}'\ndown_revision = {newest!r}\n\n\n"
            f"def upgrade() -> None:\n    {upgrade}\n"
        )
        return newest

    async def test_filled_database_is_upgraded(self, database: Database, folder: Path) -> None:
        newest = self.add(folder, "op.execute('UPDATE alembic_version SET version_num = version_num')")
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        rows = await fill(database)
        assert await migrate.upgrade(database, Schema.CENTRAL) == (newest, migrate.revisions(Schema.CENTRAL)[-1])
        assert await find_lost_values(database, rows) == []
        assert await differences(database, Schema.CENTRAL) == []

    async def test_downgrade_is_refused(self, database: Database, folder: Path) -> None:
        newest = self.add(folder, "op.execute('UPDATE alembic_version SET version_num = version_num')")
        await migrate.upgrade(database, Schema.CENTRAL)
        with pytest.raises(ConfigurationError, match=f"cannot be downgraded to {newest}"):
            await migrate.upgrade(database, Schema.CENTRAL, to=newest)

    async def test_deleted_row_and_changed_value_are_detected(self, database: Database, folder: Path) -> None:
        statements = "op.execute('DELETE FROM payment_events'); op.execute('UPDATE fleets SET max_workers = 7')"
        newest = self.add(folder, statements)
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        rows = await fill(database)
        await migrate.upgrade(database, Schema.CENTRAL)
        lost = await find_lost_values(database, rows)
        assert {name for name in lost if not name.startswith("payment_events.")} == {"fleets.max_workers"}
        assert len(lost) > 1

    @pytest.mark.parametrize(
        ("upgrade", "difference"),
        [
            ("op.drop_index('ix_users_admins', 'users')", "index ix_users_admins of users is missing"),
            (
                "with op.batch_alter_table('effects') as t: t.drop_constraint(op.f('ck_effects_credits_cost'))",
                "check constraint ck_effects_credits_cost of effects is missing",
            ),
        ],
        ids=["index", "check constraint"],
    )
    async def test_undefined_change_is_refused(
        self, database: Database, folder: Path, upgrade: str, difference: str
    ) -> None:
        newest = self.add(folder, upgrade)
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        with pytest.raises(SchemaMismatch, match=difference):
            await migrate.upgrade(database, Schema.CENTRAL)
        assert await migrate.current(database) == newest

    async def test_undefined_table_is_detected(self, database: Database, folder: Path) -> None:
        self.add(folder, "op.execute('CREATE TABLE another (id integer)')")
        await migrate.upgrade(database, Schema.CENTRAL)
        assert await differences(database, Schema.CENTRAL) != []

    async def test_migration_is_refused_after_a_changed_one(self, database: Database, folder: Path) -> None:
        """The next migration would run on a schema that it was not written for."""
        newest = self.add(folder, "op.execute('UPDATE alembic_version SET version_num = version_num')")
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        (first,) = (folder / "central" / "versions").glob("0001_*.py")
        source = first.read_text(encoding="utf-8")
        first.write_text(f"# A comment.\nimport sys\n\n{source}", encoding="utf-8")
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        first.write_text(source.replace('"max_wait_seconds"', '"max_wait"'), encoding="utf-8")
        with pytest.raises(SchemaMismatch, match="The migration central_0001 has changed since it ran"):
            await migrate.upgrade(database, Schema.CENTRAL)
        assert await migrate.current(database) == newest
