"""One database: its connections, transactions and errors.

SQLite has one write connection, so writers queue in the process instead of failing on a lock, and several read
connections. PostgreSQL has one connection pool.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncpg
import orjson
import structlog
from sqlalchemy import NullPool, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comfyrelay.clock import utc_now
from comfyrelay.errors import ConfigurationError, Conflict, DatabaseUnavailable, NotWritable
from comfyrelay.retry import Backoff, Retries
from comfyrelay.store.transaction import Tx
from comfyrelay.store.types import time_text
from comfyrelay.store.versions import process_name
from comfyrelay.system.permissions import FOLDER_MODE, create_private_file

__all__ = ["Boundary", "Database", "Tx", "async_url", "conflict_on_violation"]

T = TypeVar("T")

log = structlog.get_logger(__name__)

# SQLAlchemy's asynchronous driver for each database.
DRIVERS = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}

BUSY_TIMEOUT_SECONDS = 30
CONNECT_TIMEOUT_SECONDS = 5
ATTEMPTS = 5
BACKOFF = Backoff(first_seconds=0.008, max_seconds=0.1, jitter=0.5)

# Deadlocks and serialization failures: the transaction was rolled back and can be run again.
_RETRYABLE = {"40P01", "40001", "55P03"}
# The connection is lost, or the server is starting, stopping, out of memory or out of connections.
_UNREACHABLE = {"57P01", "57P02", "57P03", "53000", "53200", "53300", "3D000"}
# Missing role, wrong password, missing permission, or a database that allows no connections.
_REFUSED = {"28000", "28P01", "42501", "55000"}
# Messages for a database that is not writable, by SQLSTATE and by the first byte of SQLite's code.
_NOT_WRITABLE: dict[str | int | None, str] = {
    "25006": "is read-only",
    "53100": "is not writable: its disk is full",
    "58030": "is not writable: its disk fails",
    sqlite3.SQLITE_READONLY: "is read-only",
    sqlite3.SQLITE_FULL: "is not writable: its disk is full",
    sqlite3.SQLITE_IOERR: "is not writable: its disk is full or fails",
}
# A database counts as not writable for this long after a failed write, unless a later write succeeds.
NOT_WRITABLE_SECONDS = 10.0
# The step name of a write that is so small that its success proves nothing about other writes.
PROBE = "probe"

# Two servers leased a job for the same request. The second gets a conflict.
REQUEST_CONSTRAINT = "uq_dispatch_leases_request"


class Boundary(StrEnum):
    """Points at which tests inject a crash. `AFTER_COMMIT` means "commit, then report failure"."""

    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


Crash = Callable[[str, Boundary], Awaitable[None]]
Work = Callable[[Tx], Awaitable[Any]]
# Called with a function that runs work in the transaction, and with the work.
Around = Callable[[Callable[[Work], Awaitable[Any]], Work], Awaitable[Any]]


class Database:
    """The central database or a shard. SQLite's `relay_now()` reads `clock`; PostgreSQL uses its own clock."""

    def __init__(self, name: str, url: str, *, pool_size: int = 10, clock: Callable[[], datetime] = utc_now) -> None:
        self.name = name
        self.url = async_url(url)
        self.dialect = self.url.get_backend_name()
        self.crash: Crash | None = None
        # If set, runs the work of each transaction. Services use it to record people's changes.
        self.around: Around | None = None
        # The last write error, and the time on the event loop's clock until which it counts.
        self._write_error: tuple[float, NotWritable] | None = None
        if self.dialect == "sqlite":
            self._writer = _sqlite_engine(self.url, clock, begin="BEGIN IMMEDIATE")
            self._reader = _sqlite_engine(self.url, clock, begin="BEGIN")
        else:
            self._writer = self._reader = _postgres_engine(self.url)
        # Not SQLAlchemy's connection pool, which costs 0.3 ms of CPU time per transaction: more than most transactions
        # need for their work.
        self._pools = {self._writer: _Connections(self._writer, 1 if self.dialect == "sqlite" else pool_size)}
        self._pools.setdefault(self._reader, _Connections(self._reader, 4))

    @property
    def path(self) -> Path | None:
        """Return the file of an SQLite database."""
        return Path(self.url.database or "").absolute() if self.dialect == "sqlite" else None

    @property
    def dsn(self) -> str:
        """Return the URL without SQLAlchemy's driver name."""
        return self.url.set(drivername=self.dialect).render_as_string(hide_password=False)

    async def close(self) -> None:
        for engine, pool in self._pools.items():
            await pool.close()
            await engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Tx]:
        with _ErrorTranslation(self):
            async with self._pools[self._reader].one() as tx:
                yield tx

    async def run(self, step: str, work: Callable[[Tx], Awaitable[T]], *, is_single: bool = False) -> T:
        """Run `work` in one transaction, and retry it after a conflict. `step` names it in logs and crash tests.

        `is_single` promises that `work` runs one statement, which is then sent without BEGIN and COMMIT.
        """
        if self.around is None:
            return await self._run(step, work, is_single=is_single)

        def run(given: Work) -> Awaitable[Any]:
            return self._run(step, given, is_single=is_single and given is work)

        result: T = await self.around(run, work)
        return result

    async def _run(self, step: str, work: Callable[[Tx], Awaitable[T]], *, is_single: bool) -> T:
        retries = Retries(BACKOFF)
        while True:
            try:
                return await self._run_once(step, work, is_single=is_single)
            except NotWritable as error:
                # Nothing was written, and the connection may be from before the database became writable.
                if retries.failures or not _is_read_only(error.__cause__):
                    raise
                retries.failures += 1
            except (exc.DBAPIError, asyncpg.PostgresError) as error:
                is_retryable = _sqlstate(error) in _RETRYABLE or "database is locked" in str(error)
                if retries.failures + 1 == ATTEMPTS or not is_retryable:
                    raise
                log.info("transaction.retried", step=step, database=self.name, attempt=retries.failures + 1)
                await retries.wait()

    async def _run_once(self, step: str, work: Callable[[Tx], Awaitable[T]], *, is_single: bool) -> T:
        # A crash before the commit must undo the statement.
        is_single = is_single and self.crash is None
        with _ErrorTranslation(self):
            async with self._pools[self._writer].one() as tx, tx.transaction(is_single=is_single):
                result = await work(tx)
                if self.crash is not None:
                    await self.crash(step, Boundary.BEFORE_COMMIT)
        if step != PROBE:
            self._write_error = None
        if self.crash is not None:
            await self.crash(step, Boundary.AFTER_COMMIT)
        return result

    def require_writable(self) -> None:
        """Re-raise the last write error, if it is recent."""
        if self._write_error is not None and self._write_error[0] > asyncio.get_running_loop().time():
            raise self._write_error[1]

    def record_write_error(self, error: NotWritable) -> None:
        self._write_error = (asyncio.get_running_loop().time() + NOT_WRITABLE_SECONDS, error)


class _Connections:
    """A pool of connections, each used by one transaction at a time."""

    def __init__(self, engine: AsyncEngine, size: int) -> None:
        self._engine = engine
        self._free = asyncio.Semaphore(size)
        self._idle: list[Tx] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Tx]:
        async with self._free:
            tx = await self._take()
            is_sound = True
            try:
                yield tx
            except BaseException as error:
                # The driver learns that the server has terminated a connection before it sees it closed. A canceled
                # caller leaves behind a request for which the next user of the connection would have to wait.
                is_sound = not isinstance(error, asyncpg.InternalClientError) and not _was_canceled(error)
                if _why_not_writable(error) is not None:
                    is_sound = False
                    # Connections from a read-only period would stay read-only.
                    await self.close()
                raise
            finally:
                if is_sound and await tx.is_reusable():
                    self._idle.append(tx)
                else:
                    await tx.discard()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().discard()

    async def _take(self) -> Tx:
        while self._idle:
            tx = self._idle.pop()
            # The server may have restarted while the connection was idle.
            if await tx.is_reusable():
                return tx
            await tx.discard()
        connection = await self._engine.connect()
        if connection.dialect.name == "sqlite":
            return Tx(connection, None)
        return Tx(connection, (await connection.get_raw_connection()).driver_connection)


class _ErrorTranslation:
    """Translates driver errors that callers handle. Others pass through, without row values."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        _hide_values(error)
        if _is_rollback_after_cancel(error):
            raise asyncio.CancelledError from error
        if (why := _why_not_writable(error)) is not None:
            not_writable = NotWritable(name=self._database.name, why=why)
            self._database.record_write_error(not_writable)
            raise not_writable from error
        if _sqlstate(error) in _REFUSED:
            raise DatabaseUnavailable(name=self._database.name, why="refuses the connections of this server") from error
        if _is_unreachable(error):
            raise DatabaseUnavailable(name=self._database.name) from error
        if "file is not a database" in str(error):
            raise ConfigurationError(
                f"The file of {self._database.name} is not an SQLite database. Choose another file or restore a backup."
            ) from error
        if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == REQUEST_CONSTRAINT:
            raise Conflict("This request id has a lease already.") from error


@contextmanager
def conflict_on_violation(message: str) -> Iterator[None]:
    """Raise `Conflict` with this message if the statement violates a constraint."""
    try:
        yield
    except exc.IntegrityError as error:
        raise Conflict(message) from error


def async_url(url: str) -> URL:
    """Return the URL with its async driver. Users write `sqlite:///…` or `postgresql://…`."""
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise ConfigurationError(f"{url!r} is not a database URL.") from error
    match parsed.get_backend_name():
        case "sqlite":
            if parsed.database in {None, "", ":memory:"}:
                raise ConfigurationError("An in-memory SQLite database cannot be shared. Use a file.")
            return parsed.set(drivername=f"sqlite+{DRIVERS['sqlite']}")
        case "postgresql" | "postgres":
            return parsed.set(drivername=f"postgresql+{DRIVERS['postgresql']}")
        case other:
            raise ConfigurationError(f"{other!r} databases are not supported; use sqlite:/// or postgresql://.")


def _postgres_engine(url: URL) -> AsyncEngine:
    return create_async_engine(
        url,
        json_deserializer=orjson.loads,
        hide_parameters=True,
        # Transactions begin and end on the driver's connection; see `Tx.transaction`.
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={
            "timeout": CONNECT_TIMEOUT_SECONDS,
            "command_timeout": 60,
            "server_settings": {
                "application_name": process_name(),
                "timezone": "UTC",
                # Every statement has an index, for tables of any size. The planner assumes that each list of rows has a
                # hundred entries, and may decide to scan whole tables or to plan each call again. The queue would then
                # suddenly become slow when a table grows.
                "plan_cache_mode": "force_generic_plan",
                "enable_seqscan": "off",
                "enable_hashjoin": "off",
                "enable_mergejoin": "off",
                "jit": "off",
                # Starting parallel workers takes longer than these statements.
                "max_parallel_workers_per_gather": "0",
                # A process that hangs in a transaction must not hold its locks forever.
                "idle_in_transaction_session_timeout": "30000",
            },
        },
    )


def _sqlite_engine(url: URL, clock: Callable[[], datetime], *, begin: str) -> AsyncEngine:
    engine = create_async_engine(
        url, poolclass=NullPool, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_SECONDS}
    )

    def relay_now(seconds: float) -> str:
        return time_text(clock() + timedelta(seconds=seconds))

    @event.listens_for(engine.sync_engine, "do_connect")
    def create_file(*_about: object) -> None:
        path = Path(url.database or "")
        # Connecting reports the error.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        # SQLite creates its other files with the same permissions.
        create_private_file(path)

    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        # The driver must not begin transactions itself. BEGIN IMMEDIATE takes the write lock first, so a transaction
        # that reads before it writes cannot fail halfway because of another writer.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        # FULL, not NORMAL: what was confirmed must survive a power failure.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()
        # Deterministic: as in PostgreSQL, the time is the same within a statement, and SQLite calls it once.
        connection.create_function("relay_now", 1, relay_now, deterministic=True)

    @event.listens_for(engine.sync_engine, "begin")
    def begin_transaction(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _is_rollback_after_cancel(error: BaseException | None) -> bool:
    """Return whether the driver failed only because a canceled task could not roll back. That error would report a
    healthy database as unreachable and swallow the cancellation."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        # A timeout also cancels, and has already been converted.
        return False
    return _was_canceled(error)


def _was_canceled(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, asyncio.CancelledError):
        error = error.__context__
    return error is not None


def _sqlstate(error: BaseException) -> str | None:
    original = getattr(error, "orig", None)
    return getattr(original, "sqlstate", None) or getattr(error, "sqlstate", None)


def _why_not_writable(error: BaseException) -> str | None:
    sqlite = getattr(error, "orig", None) or error
    if isinstance(sqlite, sqlite3.Error):
        return _NOT_WRITABLE.get(getattr(sqlite, "sqlite_errorcode", 0) & 0xFF)
    return _NOT_WRITABLE.get(_sqlstate(error))


def _is_read_only(error: BaseException | None) -> bool:
    return error is not None and _why_not_writable(error) == _NOT_WRITABLE["25006"]


def _hide_values(error: BaseException | None) -> None:
    """Remove row values from an unexpected error before it is logged: its details, and messages about invalid values.
    They may contain secrets."""
    seen: set[int] = set()
    pending = [error]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        state = _sqlstate(error)
        if isinstance(error, exc.DBAPIError | asyncpg.PostgresError) or state is not None:
            text = str(error.args[0] if error.args else "").partition("\n")[0]
            error.args = (f"{type(error).__name__} {state}",) if (state or "").startswith("22") else (text,)
        if isinstance(error, asyncpg.PostgresError):
            error.detail = None
        pending += [error.__cause__, error.__context__, getattr(error, "orig", None)]


def _is_unreachable(error: BaseException) -> bool:
    state = _sqlstate(error) or ""
    # Class 08 contains connection errors, including failed attempts.
    if state in _UNREACHABLE or state.startswith("08"):
        return True
    if isinstance(error, exc.DBAPIError):
        return (
            error.connection_invalidated
            or isinstance(error.orig, OSError)
            or "unable to open database file" in str(error.orig)
        )
    lost = OSError | exc.TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError | TimeoutError
    return isinstance(error, lost)
