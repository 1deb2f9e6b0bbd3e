"""Database engines that cost a test less: they share what they compile, and SQLite needs no thread.

Processes that tests start, and benches, have engines as they are.
"""

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import aiosqlite
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comfyrelay.store.database import BUSY_TIMEOUT_SECONDS

RETRY_SECONDS = 0.001


class _CompiledStatements(dict[Any, Any]):
    """SQLAlchemy's cache of compiled statements, whose keys begin with the dialect of one engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


class _NoThread:
    """Stands where aiosqlite has its thread and the queue to it: a call is made at once, and answered at the loop's
    next turn, so that others get theirs in between as before."""

    def start(self) -> None:
        """There is nothing to start."""

    def put_nowait(self, asked: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, call = asked
        if future is None:
            call()
        else:
            self._make(future, call, future.get_loop().time() + BUSY_TIMEOUT_SECONDS)

    def _make(self, future: asyncio.Future[Any], call: Callable[[], Any], deadline: float) -> None:
        loop = future.get_loop()
        try:
            loop.call_soon(_resolve, future, call())
        except sqlite3.OperationalError as error:
            # Who has the lock may need this very loop to let go of it.
            if "locked" in str(error) and loop.time() < deadline:
                if not future.done():
                    loop.call_later(RETRY_SECONDS, self._make, future, call, deadline)
            else:
                loop.call_soon(_reject, future, error)
        except Exception as error:
            loop.call_soon(_reject, future, error)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _connect(*args: Any, **values: Any) -> aiosqlite.Connection:
    connection = aiosqlite.Connection(partial(sqlite3.connect, *args, **values, timeout=0), iter_chunk_size=64)
    connection._thread = connection._tx = _NoThread()  # type: ignore[assignment]
    return connection


@contextmanager
def cheap_engines() -> Iterator[None]:
    """Inside, engines are such ones."""
    compiled: dict[str, _CompiledStatements] = defaultdict(_CompiledStatements)

    def create_engine(url: URL, **values: Any) -> AsyncEngine:
        if url.get_backend_name() == "sqlite":
            values["connect_args"] = {"async_creator_fn": _connect}
        engine = create_async_engine(url, **values)
        engine.sync_engine._compiled_cache = compiled[engine.dialect.name]
        return engine

    with patch("comfyrelay.store.database.create_async_engine", create_engine):
        yield
