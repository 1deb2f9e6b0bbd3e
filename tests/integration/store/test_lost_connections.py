"""A lost PostgreSQL server is distinguished from one that refused a statement."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.store.database import Database
from tests.support.world import PATIENCE_SECONDS, execute


class HalfOpenProxy:
    """Forwards the last message of PostgreSQL, but not the end of the connection."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.closed = asyncio.Event()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket_path)
        with contextlib.closing(server_writer), contextlib.closing(writer):
            answers = asyncio.create_task(self._forward(server_reader, writer))
            await self._forward(reader, server_writer)
            server_writer.close()
            await answers

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
        self.closed.set()


class DelayingProxy:
    """Delays answers of PostgreSQL until the test releases them."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.begun = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket_path)
        answers = asyncio.create_task(self._answer(server_reader, writer))
        with contextlib.closing(server_writer), contextlib.suppress(OSError):
            while request := await reader.read(1 << 16):
                server_writer.write(request)
                if not self.answers.is_set() and b"BEGIN" in request:
                    self.begun.set()
        await answers

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                await self.answers.wait()
                writer.write(chunk)


Proxy = TypeVar("Proxy", HalfOpenProxy, DelayingProxy)


@asynccontextmanager
async def open_proxy(make_proxy: Callable[[str], Proxy], postgres_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Start a proxy to the server. Yield the proxy and its URL."""
    folder = make_url(postgres_url.format("postgres")).query["host"]
    proxy = make_proxy(f"{folder}/.s.PGSQL.5432")
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    try:
        yield proxy, f"postgresql://postgres@127.0.0.1:{server.sockets[0].getsockname()[1]}/postgres?ssl=disable"
    finally:
        server.close()


async def test_terminated_but_unclosed_connection_means_database_unavailable(postgres_url: str) -> None:
    async with open_proxy(HalfOpenProxy, postgres_url) as (proxy, url), Database("main", url) as database:
        [(pid,)] = await execute(database, "SELECT pg_backend_pid()")
        other = await asyncpg.connect(postgres_url.format("postgres"))
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await proxy.closed.wait()
        # after this answer, everything sent before it has been read
        await other.execute("SELECT 1")
        await other.close()
        with pytest.raises(DatabaseUnavailable):
            await execute(database, "SELECT 1")
        # another connection works
        assert [tuple(row) for row in await execute(database, "SELECT 1")] == [(1,)]


async def test_server_lost_during_connect_means_database_unavailable() -> None:
    async def die(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.close()

    server = await asyncio.start_server(die, "127.0.0.1", 0)
    url = f"postgresql://postgres@127.0.0.1:{server.sockets[0].getsockname()[1]}/postgres?ssl=disable"
    async with server, Database("main", url) as database:
        with pytest.raises(DatabaseUnavailable):
            await execute(database, "SELECT 1")


async def test_canceled_statement_does_not_mean_database_unavailable(postgres_url: str) -> None:
    async with Database("main", postgres_url.format("postgres")) as database:
        [(pid,)] = await execute(database, "SELECT pg_backend_pid()")
        statement = asyncio.create_task(execute(database, "SELECT pg_sleep(600)"))
        async with asyncio.timeout(PATIENCE_SECONDS), _connect(postgres_url) as other:
            while not await other.fetchval("SELECT query LIKE '%pg_sleep%' FROM pg_stat_activity WHERE pid = $1", pid):
                pass
        statement.cancel()
        with pytest.raises(asyncio.CancelledError):
            await statement
        assert [tuple(row) for row in await execute(database, "SELECT 1")] == [(1,)]


async def test_write_after_a_cancel_during_begin_is_committed(postgres_url: str) -> None:
    """The driver would treat the next transaction as part of the canceled one."""
    async with (
        open_proxy(DelayingProxy, postgres_url) as (proxy, url),
        Database("main", url) as database,
        _connect(postgres_url) as other,
    ):
        await other.execute("CREATE TABLE written (word text)")
        await execute(database, "SELECT 1")
        proxy.answers.clear()
        canceled = asyncio.create_task(execute(database, "SELECT 1"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await proxy.begun.wait()
        canceled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await canceled
        proxy.answers.set()
        await execute(database, "INSERT INTO written VALUES ('a word')")
        assert await other.fetchval("SELECT word FROM written") == "a word"
        await other.execute("DROP TABLE written")


@asynccontextmanager
async def _connect(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    try:
        yield connection
    finally:
        await connection.close()
