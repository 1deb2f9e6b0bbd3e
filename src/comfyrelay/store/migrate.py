"""Bringing a database's schema up: one Alembic history for the central schema, one for the tenant schema."""

from enum import StrEnum
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, text

from comfyrelay.store import central, tenant
from comfyrelay.store.database import Database, Tx

_FOLDER = Path(__file__).parent / "migrations"


class Schema(StrEnum):
    CENTRAL = "central"
    TENANT = "tenant"

    @property
    def metadata(self) -> MetaData:
        return central.metadata if self is Schema.CENTRAL else tenant.metadata


def head(schema: Schema) -> str:
    revision = ScriptDirectory.from_config(_config(schema)).get_current_head()
    assert revision is not None, f"the {schema} schema has no migration"
    return revision


async def upgrade(database: Database, schema: Schema) -> tuple[str | None, str]:
    """Bring the schema to its head, in one transaction; returns the revisions before and after."""

    async def work(tx: Tx) -> str | None:
        if database.dialect == "postgresql":
            # Several servers may start at once; the second waits and finds nothing left to do.
            await tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('comfyrelay.migrate'))"))
        before = await tx.run_sync(_current)
        await tx.run_sync(_upgrade, schema)
        return before

    return await database.run("migrate", work), head(schema)


async def current(database: Database) -> str | None:
    async with database.read() as tx:
        return await tx.run_sync(_current)


async def differences(database: Database, schema: Schema) -> list[object]:
    """Where the database's tables and the definitions in the code disagree; for tests."""
    async with database.read() as tx:
        return await tx.run_sync(_differences, schema)


def _config(schema: Schema) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.set_main_option("version_locations", str(_FOLDER / schema / "versions"))
    config.set_main_option("path_separator", "newline")
    return config


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection, schema: Schema) -> None:
    config = _config(schema)
    config.attributes.update(connection=connection, metadata=schema.metadata)
    command.upgrade(config, "head")


def _differences(connection: Connection, schema: Schema) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, schema.metadata))
