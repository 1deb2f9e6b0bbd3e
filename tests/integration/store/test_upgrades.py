"""Every upgrade from every revision: the rows are still there, and the schema is the one that the code defines.

Migrations are found, not listed: a new one is tested by being added.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from _pytest.mark import ParameterSet
from sqlalchemy import Boolean, Column, Connection, Float, Integer, MetaData, Table, Text, inspect, select

from comfyrelay.store import migrate
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.migrate import Schema
from tests.support.schema_differences import differences

Rows = dict[str, dict[str, Any]]

AT = datetime(2026, 1, 1, tzinfo=UTC)
# What a constraint wants in a column; all other columns take any value of their type.
WORDS = {
    "status": "queued",
    "stage": "production",
    "provider": "self_hosted",
    "kind": "graph",
    "registration_source": "fleet",
    "type": "ADJUSTMENT",
}
WORDS_OF_TABLE: dict[str, dict[str, Any]] = {
    "account_links": {"kind": "reset"},
    "webhook_deliveries": {"status": "pending", "due_at": AT},
}


def _starts() -> list[ParameterSet]:
    """With every change from the first revision, and from the newest two, which have all tables; in `make long` from
    any."""
    found = []
    for schema in Schema:
        first, *others = migrate.revisions(schema)
        now = {first, *others[-2:]}
        # the step from the version before is the one that a change adds
        marks = {each: [] if each in now else [pytest.mark.long] for each in (first, *others)}
        marks[others[-2]] = [pytest.mark.everyday]
        found += [pytest.param(schema, each, marks=those) for each, those in marks.items()]
    return found


STEPS = _starts()


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Where PostgreSQL is, if the test is about it."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else None


@pytest.fixture
async def database(server: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty one."""
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
    return [table for table in found.sorted_tables if table.name != "alembic_version"]


def value_of(column: Column[Any], words: dict[str, Any], dialect: str) -> Any:
    if column.name in words or column.name.endswith("_at"):
        value = words.get(column.name, AT)
        is_text_time = value is AT and dialect == "sqlite"
        return f"{AT:%Y-%m-%d %H:%M:%S.%f}" if is_text_time else value
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, Float):
        return 1.5
    if isinstance(column.type, Integer):
        return 1
    return "x" if isinstance(column.type, Text) else {"x": 1}


def row_for(table: Table, dialect: str) -> dict[str, Any]:
    """Every key is the same, so that each row refers to those of other tables."""
    words = {**WORDS, **WORDS_OF_TABLE.get(table.name, {})}
    wanted = [each for each in table.columns if not each.nullable or each.name in WORDS_OF_TABLE.get(table.name, {})]
    return {column.name: value_of(column, words, dialect) for column in wanted}


async def fill(database: Database) -> Rows:
    """One row in every table."""

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


async def lost(database: Database, before: Rows) -> list[str]:
    """What is not as it was: tables and values that are gone or different. Columns may come and go."""

    def work(connection: Connection) -> list[str]:
        after = read_rows(connection)
        columns = {name: {each["name"] for each in inspect(connection).get_columns(name)} for name in after}
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
async def test_rows_of_any_revision_survive_every_step_up_to_the_newest(
    database: Database, schema: Schema, start: str
) -> None:
    await migrate.upgrade(database, schema, to=start)
    rows = await fill(database)
    assert rows
    assert all(rows.values())
    found = migrate.revisions(schema)
    for revision in found[found.index(start) :]:
        await migrate.upgrade(database, schema, to=revision)
        assert await migrate.current(database) == revision
        assert await lost(database, rows) == []
    assert await differences(database, schema) == []


@pytest.mark.parametrize(("schema", "start"), STEPS)
async def test_one_upgrade_leads_from_any_revision_to_the_newest(
    database: Database, schema: Schema, start: str
) -> None:
    await migrate.upgrade(database, schema, to=start)
    assert await migrate.upgrade(database, schema) == (start, migrate.head(schema))
    assert await differences(database, schema) == []


class TestTheTestItself:
    """It would notice a migration that loses something, and one that makes something else than is defined."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        folder = tmp_path / "migrations"
        shutil.copytree(migrate._FOLDER, folder)
        monkeypatch.setattr(migrate, "_FOLDER", folder)
        migrate.head.cache_clear()
        yield folder
        migrate.head.cache_clear()

    def add(self, folder: Path, upgrade: str) -> str:
        """A migration after the newest."""
        newest = migrate.revisions(Schema.CENTRAL)[-1]
        (folder / "central" / "versions" / "9999_another.py").write_text(
            f"from alembic import op\n\nrevision = 'central_9999'\ndown_revision = {newest!r}\n\n\n"
            f"def upgrade() -> None:\n    {upgrade}\n"
        )
        return newest

    async def test_rows_that_a_migration_removes(self, database: Database, folder: Path) -> None:
        newest = self.add(folder, "op.execute('DELETE FROM payment_events')")
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        rows = await fill(database)
        assert await migrate.upgrade(database, Schema.CENTRAL) == (newest, "central_9999")
        assert {each.partition(".")[0] for each in await lost(database, rows)} == {"payment_events"}

    async def test_a_value_that_a_migration_changes(self, database: Database, folder: Path) -> None:
        newest = self.add(folder, "op.execute('UPDATE fleets SET max_workers = 7')")
        await migrate.upgrade(database, Schema.CENTRAL, to=newest)
        rows = await fill(database)
        await migrate.upgrade(database, Schema.CENTRAL)
        assert await lost(database, rows) == ["fleets.max_workers"]

    async def test_a_table_that_nobody_defined(self, database: Database, folder: Path) -> None:
        self.add(folder, "op.execute('CREATE TABLE another (id integer)')")
        await migrate.upgrade(database, Schema.CENTRAL)
        assert await differences(database, Schema.CENTRAL) != []
