"""Databases that cannot be reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comfyrelay.services.databases import Databases
from comfyrelay.store.database import Database


@contextmanager
def database_down(databases: Databases, name: str) -> Iterator[None]:
    """Make a database unreachable until the block ends."""
    reachable = databases.central if name == "central" else databases.shards[name]
    missing = str(Path(reachable.url.database or "").parent) if reachable.dialect == "sqlite" else "missing"
    unreachable = Database(name, reachable.url.set(database=missing).render_as_string(hide_password=False))
    _replace(databases, name, unreachable)
    try:
        yield
    finally:
        _replace(databases, name, reachable)


def _replace(databases: Databases, name: str, database: Database) -> None:
    if name == "central":
        databases.central = database
    else:
        databases.shards[name] = database
