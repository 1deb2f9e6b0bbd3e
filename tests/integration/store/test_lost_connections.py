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


class HalfOpen:
    """A proxy to PostgreSQL: the last message arrives, the hang-up does not."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.hung_up = asyncio.Event()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_unix_connection(self._socket_path)
        with contextlib.closing(their_writer), contextlib.closing(writer):
            answering = asyncio.create_task(self._pass_on(their_reader, writer))
            await self._pass_on(reader, their_writer)
            their_writer.close()
            await answering

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        self.hung_up.set()


class HeldBack:
    """A proxy to PostgreSQL that delays answers until the test releases them."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.begun = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_unix_connection(self._socket_path)
        answering = asyncio.create_task(self._answer(their_reader, writer))
        with contextlib.closing(their_writer), contextlib.suppress(OSError):
            while asked := await reader.read(1 << 16):
                their_writer.write(asked)
                if not self.answers.is_set() and b"BEGIN" in asked:
                    self.begun.set()
        await answering

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                await self.answers.wait()
                writer.write(piece)


Way = TypeVar("Way", HalfOpen, HeldBack)


@asynccontextmanager
async def reached_by(make: Callable[[str], Way], postgres_url: str) -> AsyncIterator[tuple[Way, str]]:
    """A proxy to the server, and its URL."""
    folder = make_url(postgres_url.format("postgres")).query["host"]
    way = make(f"{folder}/.s.PGSQL.5432")
    server = await asyncio.start_server(way.accept, "127.0.0.1", 0)
    try:
        yield way, f"postgresql://postgres@127.0.0.1:{server.sockets[0].getsockname()[1]}/postgres?ssl=disable"
    finally:
        server.close()


async def test_terminated_but_unclosed_connection_means_database_unavailable(
    postgres_url: str,
) -> None:
    async with reached_by(HalfOpen, postgres_url) as (way, url), Database("main", url) as database:
        [(pid,)] = await execute(database, "SELECT pg_backend_pid()")
        other = await asyncpg.connect(postgres_url.format("postgres"))
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await way.hung_up.wait()
        # once this is answered, everything before it was read
        await other.execute("SELECT 1")
        await other.close()
        with pytest.raises(DatabaseUnavailable):
            await execute(database, "SELECT 1")
        # by another connection
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


async def test_cancelled_statement_does_not_mean_database_unavailable(
    postgres_url: str,
) -> None:
    async with Database("main", postgres_url.format("postgres")) as database:
        [(pid,)] = await execute(database, "SELECT pg_backend_pid()")
        asking = asyncio.create_task(execute(database, "SELECT pg_sleep(600)"))
        async with asyncio.timeout(PATIENCE_SECONDS), _connected(postgres_url) as other:
            while not await other.fetchval("SELECT query LIKE '%pg_sleep%' FROM pg_stat_activity WHERE pid = $1", pid):
                pass
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [tuple(row) for row in await execute(database, "SELECT 1")] == [(1,)]


async def test_write_after_a_connection_lost_at_begin_is_kept(
    postgres_url: str,
) -> None:
    """The driver treats the interrupted transaction as still open, and ours as a part of it."""
    async with (
        reached_by(HeldBack, postgres_url) as (way, url),
        Database("main", url) as database,
        _connected(postgres_url) as other,
    ):
        await other.execute("CREATE TABLE kept (word text)")
        await execute(database, "SELECT 1")
        way.answers.clear()
        cut_off = asyncio.create_task(execute(database, "SELECT 1"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await way.begun.wait()
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        way.answers.set()
        await execute(database, "INSERT INTO kept VALUES ('a word')")
        assert await other.fetchval("SELECT word FROM kept") == "a word"
        await other.execute("DROP TABLE kept")


@asynccontextmanager
async def _connected(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url.format("postgres"))
    try:
        yield connection
    finally:
        await connection.close()
