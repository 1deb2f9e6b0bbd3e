"""Schema upgrades: one Alembic history for the central schema, one for the tenant schema.

Alembic is imported only for an upgrade, because the import takes a tenth of the startup time.

The revision in the database names the migrations that ran, but not their content. A checksum of each one is stored, and
the schema is compared with the table definitions.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path

import structlog
from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select, text

from comfyrelay import __version__
from comfyrelay.domain.records.operations import SchemaState
from comfyrelay.errors import ConfigurationError, SchemaMismatch
from comfyrelay.store import checksums, schema_check
from comfyrelay.store.central.tables import metadata as central_metadata
from comfyrelay.store.database import PROBE, Database, Tx
from comfyrelay.store.schema_check import SchemaDifferences
from comfyrelay.store.tenant.tables import metadata as tenant_metadata

log = structlog.get_logger(__name__)

_FOLDER = Path(__file__).parent / "migrations"
_APPLIED = Table(
    "applied_migrations",
    MetaData(),
    Column("revision", Text, primary_key=True),
    Column("checksum", Text, nullable=False),
)


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


def checksum(schema: Schema, revision: str) -> str:
    """Return the checksum of a migration. It is computed only for a migration that is still being written."""
    return checksums.CHECKSUMS.get(revision) or checksums.checksum(path_of(schema, revision))


def path_of(schema: Schema, revision: str) -> Path:
    (path,) = (_FOLDER / schema / "versions").glob(f"{revision.removeprefix(f'{schema}_')}_*.py")
    return path


@cache
def head(schema: Schema) -> str:
    return revisions(schema)[-1]


async def upgrade(database: Database, schema: Schema, *, to: str | None = None) -> tuple[str | None, str]:
    """Upgrade the schema to the newest revision, or to `to`, in one transaction. Returns the old and new revision.

    Raises `SchemaMismatch`, without a change, if the schema is not what its migrations create.
    """
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
        state = await tx.run_sync(_state, schema, database.name)
        if state.problem is None and before is not None and before > target:
            raise ConfigurationError(f"The schema of {database.name} is {before} and cannot be downgraded to {target}.")
        if state.problem is None and before != target:
            await tx.run_sync(_upgrade, schema, target)
            state = await tx.run_sync(_state, schema, database.name)
        if state.problem is not None:
            raise SchemaMismatch(state.problem)
        if state.additions:
            log.warning("database.additions", database=database.name, additions=state.additions)
        await tx.run_sync(_record, schema, target)
        return before

    return await database.run("migrate", work), target


async def current(database: Database) -> str | None:
    async with database.read() as tx:
        return await tx.run_sync(_current)


def later_revisions(revision: str | None, schema: Schema) -> list[str]:
    """Return the migrations that an upgrade from this revision runs, oldest first."""
    return [found for found in revisions(schema) if revision is None or found > revision]


async def is_usable(database: Database, schema: Schema) -> bool:
    """Whether a running process can use the schema, even if a newer version has added to it."""

    def work(connection: Connection) -> bool:
        found = schema_check.compare(connection, schema.metadata)
        return not found.breaking and not _changed_migrations(connection, schema)

    async with database.read() as tx:
        return await tx.run_sync(work)


async def state(database: Database, schema: Schema) -> SchemaState:
    """Compare the schema with the table definitions of this version. A missing SQLite file is not created."""
    if database.path is not None and not database.path.exists():
        return SchemaState(revision=None, newest=head(schema))
    async with database.read() as tx:
        return await tx.run_sync(_state, schema, database.name)


def is_newer(revision: str | None, schema: Schema) -> bool:
    """Whether a newer version of ComfyRelay has upgraded the database."""
    return revision is not None and revision.startswith(f"{schema}_") and revision > head(schema)


def require_known(revision: str | None, schema: Schema, name: str) -> None:
    """Raise `ConfigurationError` if the revision is from a newer version or another schema."""
    if revision is None or revision in revisions(schema):
        return
    if is_newer(revision, schema):
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


def _state(connection: Connection, schema: Schema, name: str) -> SchemaState:
    revision, newest = _current(connection), head(schema)
    try:
        require_known(revision, schema, name)
    except ConfigurationError as error:
        return SchemaState(revision=revision, newest=newest, problem=error.detail)
    changed = _changed_migrations(connection, schema)
    # Older schemas have no definitions to compare with.
    found = schema_check.compare(connection, schema.metadata) if revision == newest else SchemaDifferences()
    problem = _mismatch(name, changed, found.breaking) if changed or found.breaking else None
    return SchemaState(revision=revision, newest=newest, problem=problem, additions=found.harmless)


def _mismatch(name: str, changed: list[str], differences: tuple[str, ...]) -> str:
    reasons = []
    if differences:
        reasons.append(f"{schema_check.listed(differences)}.")
    if changed:
        reasons.append(f"The migration {', '.join(changed)} has changed since it ran on this database.")
    return (
        f"The schema of {name} is not the one of ComfyRelay {__version__}: {' '.join(reasons)} "
        "Nothing was changed. Run the version that created this database, restore a backup of this version, or use an "
        "empty database."
    )


def _changed_migrations(connection: Connection, schema: Schema) -> list[str]:
    """Return the migrations that ran with different content. Databases of early versions have no checksums."""
    if not inspect(connection).has_table(_APPLIED.name):
        return []
    known = revisions(schema)
    rows = connection.execute(select(_APPLIED.c.revision, _APPLIED.c.checksum))
    return sorted(name for name, stored in rows if name in known and stored != checksum(schema, name))


def _record(connection: Connection, schema: Schema, newest: str) -> None:
    """Store the checksums of migrations that ran, unless they are stored already. Create the table if needed."""
    _APPLIED.create(connection, checkfirst=True)
    stored = set(connection.execute(select(_APPLIED.c.revision)).scalars())
    ran = [revision for revision in revisions(schema) if revision <= newest and revision not in stored]
    for revision in ran:
        connection.execute(_APPLIED.insert().values(revision=revision, checksum=checksum(schema, revision)))


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
