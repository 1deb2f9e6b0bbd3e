"""An SQLite connection in its own thread with group commits, so that the event loop never waits for a disk."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from comfyrelay.group_commit import GroupCommit

T = TypeVar("T")
# An SQL statement and its parameters.
Statement = tuple[str, Sequence[Any]]


class Writer:
    """Execute writes in order. Writes that arrive during a commit share the next commit."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="comfyrelay-queue")
        self._group: GroupCommit[Sequence[Statement], None] = GroupCommit(self._write_all)
        self._is_closed = False

    async def open(self, prepare: Callable[[sqlite3.Connection], T]) -> T:
        """Connect, and return the result of `prepare`."""

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
        """Execute statements in one transaction, and return after its commit."""
        await self._group.call(statements)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._group.idle()
        await self._in_thread(self._disconnect)
        self._thread.shutdown(wait=False)

    async def _write_all(self, writes: Sequence[Sequence[Statement]]) -> Sequence[Exception | None]:
        error = await self._in_thread(partial(self._commit, writes))
        if error is None or len(writes) == 1:
            return [error] * len(writes)
        # At least one write failed, so execute each separately.
        return [await self._in_thread(partial(self._commit, [statements])) for statements in writes]

    def _commit(self, writes: Sequence[Sequence[Statement]]) -> Exception | None:
        assert self._connection is not None
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                for statements in writes:
                    for sql, parameters in statements:
                        self._connection.execute(sql, parameters)
        except Exception as error:
            # The callers of `write` get the exception.
            return error
        return None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
