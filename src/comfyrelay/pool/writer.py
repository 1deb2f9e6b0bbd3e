"""One SQLite connection in a thread of its own, with grouped commits: the event loop never waits for a disk."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

__all__ = ["Statement", "Writer"]

T = TypeVar("T")
# SQL and its parameters
Statement = tuple[str, Sequence[Any]]


class Writer:
    """Writes in the order in which they were asked for; those that come during one commit share the next."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="comfyrelay-queue")
        self._waiting: list[tuple[Sequence[Statement], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, prepare: Callable[[sqlite3.Connection], T]) -> T:
        """Connect, and return what `prepare` makes of the connection."""

        def work() -> T:
            connection = self._connect()
            try:
                prepared = prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            return prepared

        return await self._in_thread(work)

    async def write(self, *statements: Statement) -> None:
        """Return when all of these are on the disk; they are there together or not at all."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((statements, done))
        if self._task is None:
            self._task = asyncio.create_task(self._write_all())
        await done

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._task is not None:
            await self._task
        await self._in_thread(self._disconnect)
        self._thread.shutdown(wait=False)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                error = await self._in_thread(partial(self._commit, [statements for statements, _ in group]))
                for statements, done in group:
                    if error is not None and len(group) > 1:
                        # one of them cannot be written: the others are not to blame
                        own = await self._in_thread(partial(self._commit, [statements]))
                    else:
                        own = error
                    _answer(done, own)
        finally:
            self._task = None

    def _commit(self, group: Sequence[Sequence[Statement]]) -> Exception | None:
        assert self._connection is not None
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                for statements in group:
                    for sql, parameters in statements:
                        self._connection.execute(sql, parameters)
        except Exception as error:
            # whatever it is, those who wait must hear of it
            return error
        return None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _answer(done: "asyncio.Future[None]", error: Exception | None) -> None:
    # whoever asked may have been cancelled meanwhile
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
