"""The central database and the shards, with their known health."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.domain.records.operations import SchemaState
from comfyrelay.errors import ConfigurationError, DatabaseUnavailable, NotFound, SchemaMismatch, SchemaOutOfDate
from comfyrelay.services.backup.before_upgrade import copy_before_upgrade
from comfyrelay.settings import Settings
from comfyrelay.store import migrate, warm_up
from comfyrelay.store.central import tenants
from comfyrelay.store.database import Database
from comfyrelay.store.migrate import Schema

log = structlog.get_logger(__name__)

# A shard counts as down for this long after a failed connection.
DOWN_SECONDS = 5.0
POSTGRES_ADVICE = (
    "PostgreSQL databases are not copied. Back them up as in docs/howto/backup.md, then run `comfyrelay upgrade "
    "--no-backup`, or set COMFYRELAY_BACKUP_BEFORE_UPGRADE=false."
)
# Retry interval for databases that were unreachable at startup.
RETRY_SECONDS = 1.0


class Databases:
    def __init__(self, central: Database, shards: Mapping[str, Database], *, copies: Path | None = None) -> None:
        """With `copies`, SQLite databases are copied into this folder before an upgrade, and PostgreSQL databases with
        data are not upgraded."""
        self.central = central
        self.shards = dict(shards)
        self.copies = copies
        # The folder of the copies that this process has made.
        self.copied_to: Path | None = None
        self._down_until: dict[str, float] = {}
        # Shards that were unreachable at startup, and why; their schema version is unknown.
        self._pending: dict[str, str] = {}
        # Cached permanently, because a tenant never moves to another shard.
        self._shard_of: dict[str, str] = {}

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Callable[[], datetime] = utc_now) -> "Databases":
        size = settings.database_pool_size
        if not settings.shard_urls:
            raise ConfigurationError("No shard is configured. Set COMFYRELAY_SHARDS.")
        if "central" in settings.shard_urls:
            raise ConfigurationError("A shard cannot be named 'central': that name is the central database.")
        return cls(
            Database("central", settings.central_url, pool_size=size, clock=clock),
            {name: Database(name, url, pool_size=size, clock=clock) for name, url in settings.shard_urls.items()},
            copies=settings.data_dir if settings.backup_before_upgrade else None,
        )

    async def close(self) -> None:
        for database in (self.central, *self.shards.values()):
            await database.close()

    def shard(self, name: str) -> Database:
        if name in self._pending:
            raise DatabaseUnavailable(name=name, why="has not been reached since this server started")
        try:
            return self.shards[name]
        except KeyError:
            # Another process may know this shard, so its jobs wait instead of failing.
            raise DatabaseUnavailable(name=name) from None

    async def shard_of(self, tenant_id: str) -> Database:
        return self.shard(await self.shard_name_of(tenant_id))

    async def shard_name_of(self, tenant_id: str) -> str:
        if tenant_id not in self._shard_of:
            async with self.central.read() as tx:
                tenant = await tenants.get(tx, tenant_id)
            if tenant is None:
                raise NotFound(f"There is no tenant {tenant_id!r}.")
            self._shard_of[tenant_id] = tenant.shard
        return self._shard_of[tenant_id]

    def down(self) -> list[str]:
        """Return the shards that are known to be down. Their jobs are not leased."""
        now = asyncio.get_running_loop().time()
        return sorted({*self._pending, *(name for name, until in self._down_until.items() if until > now)})

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Mark the shard as down or up, depending on whether the block raises `DatabaseUnavailable`."""
        try:
            yield
        except DatabaseUnavailable as error:
            if name not in self._down_until:
                log.warning("shard.down", shard=name, why=error.detail, cause=str(error.__cause__ or ""))
            self._down_until[name] = asyncio.get_running_loop().time() + DOWN_SECONDS
            raise
        if self._down_until.pop(name, None) is not None:
            log.info("shard.up", shard=name)

    def compile_statements(self) -> None:
        """Compile the frequent statements, so that the first job does not wait for it."""
        for dialect in {database.dialect for database in (self.central, *self.shards.values())}:
            warm_up.compile_statements(dialect)

    def schemas(self) -> list[tuple[Database, Schema]]:
        return [(self.central, Schema.CENTRAL), *((shard, Schema.TENANT) for shard in self.shards.values())]

    async def upgrade(self) -> dict[str, tuple[str | None, str]]:
        """Upgrade every schema; return the revisions before and after by database."""
        await self._prepare_upgrade()
        return {database.name: await migrate.upgrade(database, schema) for database, schema in self.schemas()}

    async def open(self, seconds: float) -> None:
        """Upgrade the schemas when a server starts.

        Waits up to `seconds` for the central database, then raises `DatabaseUnavailable`. An unreachable shard affects
        only its own tenants, so it is left to `open_pending`.
        """
        await self._wait_for_central(seconds)
        await self._prepare_upgrade()
        await migrate.upgrade(self.central, Schema.CENTRAL)
        await asyncio.gather(*(self._open(name) for name in self.shards))

    async def _prepare_upgrade(self) -> None:
        """Before any database is changed, refuse databases of newer versions, and copy SQLite files that the upgrade
        changes."""
        outdated = []
        for database, schema in self.schemas():
            with suppress(DatabaseUnavailable):
                revision = await migrate.current(database)
                if migrate.is_newer(revision, schema):
                    raise SchemaMismatch((await migrate.state(database, schema)).problem or "")
                if _is_outdated(revision, schema):
                    outdated.append(database)
        if self.copies is not None and outdated:
            _require_backup(outdated)
            await self._copy_files(self.copies)

    async def _copy_files(self, folder: Path) -> None:
        # All files, because only copies of the same moment fit together.
        files = {database.name: database.path for database, _ in self.schemas() if database.path is not None}
        self.copied_to = await asyncio.to_thread(copy_before_upgrade, folder, files)
        log.info("database.copied", databases=[*files], folder=str(self.copied_to))

    async def open_pending(self) -> None:
        """Upgrade the shards that were unreachable at startup and are reachable now."""
        await asyncio.gather(*(self._open(name) for name in list(self._pending)))

    async def _open(self, name: str) -> None:
        before, shard = self._pending.get(name), self.shards[name]
        try:
            if self.copies is not None and _is_outdated(await migrate.current(shard), Schema.TENANT):
                _require_backup([shard])
            await migrate.upgrade(shard, Schema.TENANT)
        except (DatabaseUnavailable, ConfigurationError) as error:
            if before is None and isinstance(error, ConfigurationError):
                raise
            if before != error.detail:
                log.warning("database.waiting", database=name, why=error.detail)
            self._pending[name] = error.detail
        else:
            if self._pending.pop(name, None) is not None:
                log.info("database.up", database=name)

    async def _wait_for_central(self, seconds: float) -> None:
        """Wait for the central database, which may be recovering from a crash."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        is_waiting = False
        while True:
            try:
                await migrate.current(self.central)
            except DatabaseUnavailable as error:
                if clock() >= deadline:
                    raise
                if not is_waiting:
                    left = round(deadline - clock(), 1)
                    log.warning("database.waiting", database=self.central.name, why=error.detail, at_most_seconds=left)
                is_waiting = True
                await asyncio.sleep(min(RETRY_SECONDS, max(0.0, deadline - clock())))
            else:
                break
        if is_waiting:
            log.info("database.up", database=self.central.name)

    async def states(self) -> dict[str, SchemaState]:
        """Return the state of the schema by database, without shards that are still unreachable."""
        return {
            database.name: await migrate.state(database, schema)
            for database, schema in self.schemas()
            if database.name not in self._pending
        }

    async def require_current(self) -> None:
        found = await self.states()
        for state in found.values():
            if state.problem is not None:
                raise SchemaMismatch(state.problem)
        behind = [name for name, state in found.items() if not state.is_current]
        if behind:
            raise SchemaOutOfDate(f"The schema of {', '.join(behind)} is out of date. Run `comfyrelay db upgrade`.")


def _is_outdated(revision: str | None, schema: Schema) -> bool:
    """Whether an upgrade changes a database that has data."""
    return revision is not None and bool(migrate.later_revisions(revision, schema))


def _require_backup(outdated: Sequence[Database]) -> None:
    if not_copied := [database.name for database in outdated if database.path is None]:
        raise ConfigurationError(f"Not upgraded: {', '.join(not_copied)}. {POSTGRES_ADVICE}")
