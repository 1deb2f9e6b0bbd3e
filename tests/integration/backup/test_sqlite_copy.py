"""SQLite files in use are copied consistently, as of one moment."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from comfyrelay.errors import ConfigurationError, Conflict
from comfyrelay.store import sqlite_copy
from comfyrelay.store.sqlite_copy import copy_databases, require_closed


def create_database(path: Path, *, rows: int = 2000) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE n (n INTEGER, text TEXT)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO n VALUES (?, ?)", [(number, "x" * 1000) for number in range(rows)])
    connection.execute("COMMIT")
    return connection


def count_rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [count] = connection.execute("SELECT count(*) FROM n").fetchone()
    return int(count)


def test_no_copy_contains_writes_during_the_first_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_copy, "PAGES_AT_ONCE", 50)
    with closing(create_database(tmp_path / "a.db")) as a, closing(create_database(tmp_path / "b.db")) as b:
        written = 0

        def write(_size: int) -> None:
            nonlocal written
            written += 1
            for connection in (a, b):
                connection.execute("INSERT INTO n VALUES (-1, 'later')")

        copies = {tmp_path / name: tmp_path / f"copy-{name}" for name in ("a.db", "b.db")}
        copy_databases(copies, on_copied=write)
        assert written > 2
    assert [count_rows(copy) for copy in copies.values()] == [2000, 2000]
    assert count_rows(tmp_path / "b.db") == 2000 + written
    # every copy is one private file
    assert sorted(path.name for path in tmp_path.glob("copy-*")) == ["copy-a.db", "copy-b.db"]
    assert {copy.stat().st_mode & 0o777 for copy in copies.values()} == {0o600}


def test_second_copy_has_no_write_that_the_first_copy_lacks(tmp_path: Path) -> None:
    """Steps that span databases write the first database before the second."""
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in paths:
        create_database(path, rows=0).close()
    is_over = threading.Event()

    def write() -> None:
        a, b = (sqlite3.connect(path, isolation_level=None) for path in paths)
        with closing(a), closing(b):
            while not is_over.is_set():
                for connection in (a, b):
                    connection.execute("INSERT INTO n VALUES (1, 'x')")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            copies = {path: tmp_path / f"{path.stem}-{number}.copy" for path in paths}
            copy_databases(copies)
            first, second = (count_rows(copy) for copy in copies.values())
            assert first - second in (0, 1)
    finally:
        is_over.set()
        writer.join()


def test_damaged_database_is_not_copied(tmp_path: Path) -> None:
    create_database(tmp_path / "a.db").close()
    with (tmp_path / "a.db").open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 5)
    with pytest.raises(ConfigurationError, match=r"a\.db cannot be copied"):
        copy_databases({tmp_path / "a.db": tmp_path / "copy.db"})


def test_open_database_is_in_use(tmp_path: Path) -> None:
    with closing(create_database(tmp_path / "a.db")), pytest.raises(Conflict, match="Stop it first"):
        require_closed(tmp_path / "a.db")
    require_closed(tmp_path / "a.db")
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
