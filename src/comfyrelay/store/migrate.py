"""Schema upgrades: one Alembic history for the central schema, one for the tenant schema.

Alembic is imported only for an upgrade, because the import takes a tenth of the startup time.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, MetaData, inspect, text

from comfyrelay import __version__
from comfyrelay.errors import ConfigurationError
from comfyrelay.store.central.tables import metadata as central_metadata
from comfyrelay.store.database import PROBE, Database, Tx
from comfyrelay.store.tenant.tables import metadata as tenant_metadata

_FOLDER = Path(__file__).parent / "migrations"


class Schema(StrEnum):
    CENTRAL = "central"
    TENANT = "tenant"

    @property
    def metadata(self) -> MetaData:
        return central_metadata if self is Schema.CENTRAL else tenant_metadata


def revisions(schema: Schema) -> list[str]:
    """Return all revisions, oldest first. File names of migrations begin with the number."""
    names = sorted(file.name for file in (_FOLDER / schema / "versions").glob("[0-9]*.py"))
    return [f"{schema}_{name.partition('_')[0]}" for name in names]


@cache
def head(schema: Schema) -> str:
    return revisions(schema)[-1]


async def upgrade(database: Database, schema: Schema, *, to: str | None = None) -> tuple[str | None, str]:
    """Upgrade the schema to the newest revision, or to `to`, in one transaction. Returns the old and new revision."""
    target = to or head(schema)

    async def work(tx: Tx) -> str | None:
        if database.dialect == "postgresql":
            # Several servers may start at the same time; the second waits and finds the schema up to date.
            await tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('comfyrelay.migrate'))"))
        before = await tx.run_sync(_current)
        if before is None and (others := await tx.run_sync(_tables)):
            raise ConfigurationError(
                f"The database of {database.name} has tables of another program ({', '.join(others[:3])}). "
                "Use an empty database, or one of ComfyRelay."
            )
        require_known(before, schema, database.name)
        if before is not None and before > target:
            raise ConfigurationError(f"The schema of {database.name} is {before} and cannot be downgraded to {target}.")
        if before != target:
            await tx.run_sync(_upgrade, schema, target)
        return before

    return await database.run("migrate", work), target


async def current(database: Database) -> str | None:
    async with database.read() as tx:
        return await tx.run_sync(_current)


def require_known(revision: str | None, schema: Schema, name: str) -> None:
    """Raise `ConfigurationError` if the revision is from a newer version or another schema."""
    if revision is None or revision in revisions(schema):
        return
    if revision.startswith(f"{schema}_"):
        raise ConfigurationError(
            f"The schema of {name} is {revision}, but ComfyRelay {__version__} supports at most {head(schema)}. "
            "A newer version has upgraded this database. Install that version, or restore an older backup."
        )
    raise ConfigurationError(
        f"The database of {name} has a wrong schema ({revision}). Check COMFYRELAY_DATABASE_URL and COMFYRELAY_SHARDS."
    )


async def check_writable(database: Database) -> None:
    """Raise `NotWritable` if the database cannot be written. The probe updates a row with its own value."""
    # Skip the row if a migration has locked it, instead of waiting.
    skip = " FOR UPDATE SKIP LOCKED" if database.dialect == "postgresql" else ""
    row = f"SELECT version_num FROM alembic_version{skip}"
    probe = text(f"UPDATE alembic_version SET version_num = version_num WHERE version_num IN ({row})")
    await database.run(PROBE, lambda tx: tx.execute(probe))
    database.require_writable()


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return found


def _tables(connection: Connection) -> list[str]:
    return sorted(inspect(connection).get_table_names())


def _upgrade(connection: Connection, schema: Schema, revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.set_main_option("version_locations", str(_FOLDER / schema / "versions"))
    config.set_main_option("path_separator", "newline")
    config.attributes.update(connection=connection, metadata=schema.metadata)
    command.upgrade(config, revision)
