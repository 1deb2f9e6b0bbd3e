"""Database drivers that make tests cheaper.

Both drivers share compiled statements between engines: compiling takes most of the time of a short test. The SQLite
driver runs statements on the event loop, without a thread per connection. Processes that tests start use the normal
drivers.
"""

import asyncio
import gc
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import await_only

from comfyrelay.store.database import BUSY_TIMEOUT_SECONDS, DRIVERS

DRIVER = "tests"
RETRY_SECONDS = 0.001
# The keys are dialects and statements.
_compiled: dict[Any, Any] = {}


class SharedPostgres(PGDialect_asyncpg):
    """All engines use the same options, so their dialects are interchangeable as keys of the cache."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=_compiled)


class Cursor(sqlite3.Cursor):
    async def _async_soft_close(self) -> None:
        """Do nothing: SQLAlchemy awaits this on cursors of asynchronous drivers, and there is nothing to release."""


class Connection(sqlite3.Connection):
    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or Cursor)


class InlineSqlite(SQLiteDialect_pysqlite):
    """Run each statement at once, and yield to the event loop before returning."""

    supports_statement_cache = True
    is_async = True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=_compiled)

    def connect(self, *args: Any, **options: Any) -> Any:
        # SQLite must not wait for a lock, because its holder may need this event loop to release the lock.
        return sqlite3.connect(*args, **{**options, "timeout": 0, "factory": Connection})

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        _run(lambda: cursor.execute(statement, parameters))

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:
        _run(lambda: cursor.execute(statement))

    def do_executemany(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        _run(lambda: cursor.executemany(statement, parameters))

    def do_commit(self, dbapi_connection: Any) -> None:
        _run(dbapi_connection.commit)


def _run(call: Callable[[], object]) -> None:
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            call()
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            # a crashed engine may still hold a transaction in a connection that is not yet garbage-collected
            gc.collect()
        await_only(asyncio.sleep(RETRY_SECONDS))
    await_only(asyncio.sleep(0))


registry.register(f"sqlite.{DRIVER}", __name__, InlineSqlite.__name__)
registry.register(f"postgresql.{DRIVER}", __name__, SharedPostgres.__name__)


@contextmanager
def cheap_engines() -> Iterator[None]:
    """Use the cheap drivers in this process."""
    with patch.dict(DRIVERS, sqlite=DRIVER, postgresql=DRIVER):
        yield
