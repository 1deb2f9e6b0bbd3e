"""Plan an upgrade of the databases without changing anything."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from comfyrelay.domain.records.operations import ConnectedProcess, SchemaState, WorkerVersion
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol.worker import MIN_PROTOCOL
from comfyrelay.services.databases import POSTGRES_ADVICE, Databases
from comfyrelay.store import migrate, versions
from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema
from comfyrelay.system.folder_lock import FolderLock


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabasePlan:
    """`migrations` will be run. `problem` is the reason why the database cannot be upgraded."""

    revision: str | None
    newest: str
    migrations: Sequence[str] = ()
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UpgradePlan:
    databases: dict[str, DatabasePlan]
    # Says which databases are copied before the upgrade, or what to do instead; `None` if nothing changes.
    backup: str | None
    # Servers and commands that use PostgreSQL, and the process that holds the data folder.
    processes: Sequence[ConnectedProcess]
    workers: Sequence[WorkerVersion]
    # Workers that would get no jobs from this version.
    refused_workers: Sequence[WorkerVersion]

    @property
    def is_possible(self) -> bool:
        return not self.refused_workers and all(found.problem is None for found in self.databases.values())


async def plan_upgrade(data_dir: Path, databases: Databases) -> UpgradePlan:
    """Return what an upgrade to this version would do, without changing anything."""
    plans = {database.name: await _plan(database, schema) for database, schema in databases.schemas()}
    central = plans[databases.central.name]
    processes: list[ConnectedProcess] = []
    workers: list[WorkerVersion] = []
    if central.revision is not None and central.problem is None:
        with suppress(DatabaseUnavailable):
            async with databases.central.read() as tx:
                workers = await versions.worker_versions(tx)
                if databases.central.dialect == "postgresql":
                    processes = await versions.connected_processes(tx)
    if (holder := FolderLock(data_dir).holder()) is not None:
        processes.append(ConnectedProcess(name=holder, version="unknown"))
    return UpgradePlan(
        databases=plans,
        backup=_backup(databases, plans),
        processes=processes,
        workers=workers,
        refused_workers=[found for found in workers if found.protocol < MIN_PROTOCOL],
    )


async def _plan(database: Database, schema: Schema) -> DatabasePlan:
    try:
        state: SchemaState = await migrate.state(database, schema)
    except DatabaseUnavailable as error:
        return DatabasePlan(revision=None, newest=migrate.head(schema), problem=error.detail)
    if state.problem is not None:
        return DatabasePlan(revision=state.revision, newest=state.newest, problem=state.problem)
    pending = migrate.later_revisions(state.revision, schema)
    return DatabasePlan(revision=state.revision, newest=state.newest, migrations=pending)


def _backup(databases: Databases, plans: dict[str, DatabasePlan]) -> str | None:
    """Return a text that says how databases with data are backed up."""
    changed = [
        database
        for database, _ in databases.schemas()
        if plans[database.name].migrations and plans[database.name].revision is not None
    ]
    if not changed:
        return None
    texts = []
    if any(database.path is not None for database in changed):
        texts.append(_copies(databases.copies))
    if any(database.path is None for database in changed):
        texts.append(POSTGRES_ADVICE)
    return " ".join(texts)


def _copies(folder: Path | None) -> str:
    if folder is None:
        return "SQLite databases are not copied."
    return f"SQLite databases are copied to a new folder in {folder}."
