"""Copy SQLite files while they are in use.

The functions block, use plain `sqlite3`, and do not depend on the schema.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from comfyrelay.errors import ConfigurationError, Conflict
from comfyrelay.store.database import BUSY_TIMEOUT_SECONDS

MAGIC = b"SQLite format 3\0"
# Suffixes of the files that SQLite creates next to an open database.
SIDE_FILES = ("-wal", "-shm", "-journal")
PAGES_AT_ONCE = 1024


def copy_databases(copies: Mapping[Path, Path], *, on_copied: Callable[[int], None] = lambda _size: None) -> None:
    """Copy these files (source → target) as of one moment.

    `on_copied` is called repeatedly with the number of bytes copied since the last call.
    """
    with ExitStack() as connections:
        sources = {path: connections.enter_context(_connection(path)) for path in copies}
        with _blocked_writers(copies):
            for path, source in sources.items():
                with _translated_errors(path):
                    # The first read fixes the snapshot of the transaction.
                    source.execute("BEGIN")
                    source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        for path, source in sources.items():
            with _translated_errors(path):
                _copy(source, copies[path], on_copied)


def revision_of(path: Path) -> str | None:
    """Return the schema revision of a file that no other process uses, if any."""
    with _translated_errors(path), closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return None if row is None else str(row[0])


def require_closed(path: Path) -> None:
    """Raise `Conflict` if another process has the file open. Otherwise merge the write-ahead log into the file."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            # Leaving WAL mode requires exclusive access.
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.DatabaseError as error:
        # Other errors mean a damaged file, which may be replaced.
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise Conflict(f"Another process uses {path}. Stop it first.") from None


def is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


@contextmanager
def _blocked_writers(paths: Iterable[Path]) -> Iterator[None]:
    """Block writers of all files. No transaction spans two files, so this cannot deadlock."""
    with ExitStack() as connections:
        for path in paths:
            connection = connections.enter_context(_connection(path))
            with _translated_errors(path):
                connection.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    with _translated_errors(path):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    with closing(connection):
        yield connection


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ConfigurationError(f"The database {path} cannot be copied: {error}.") from None


def _copy(source: sqlite3.Connection, to: Path, on_copied: Callable[[int], None]) -> None:
    # Create the file first, because SQLite would make it readable by others.
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    [page_size] = source.execute("PRAGMA page_size").fetchone()
    copied = 0

    def progress(_status: int, remaining: int, total: int) -> None:
        nonlocal copied
        on_copied((total - remaining) * page_size - copied)
        copied = (total - remaining) * page_size

    with closing(sqlite3.connect(to)) as target:
        source.backup(target, pages=PAGES_AT_ONCE, progress=progress)
        # Without WAL mode, the copy is a single file that can be read from a read-only disk.
        target.execute("PRAGMA journal_mode = DELETE").fetchone()
        [verdict] = target.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"it is damaged ({verdict})")
