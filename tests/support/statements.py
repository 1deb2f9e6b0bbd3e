"""Count the statements of a test's databases."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event

from tests.support.world import World


@asynccontextmanager
async def count_statements(world: World) -> AsyncIterator[Counter[str]]:
    """Count the statements that each database runs, through SQLAlchemy or directly through its driver."""
    counted: Counter[str] = Counter()
    running: Counter[str] = Counter()
    listeners: list[tuple[Any, str, Any]] = []
    watched: list[tuple[Any, Any]] = []
    for database in (world.engine.databases.central, *world.engine.databases.shards.values()):

        def count(*_: Any, name: str = database.name) -> None:
            running[name] += 1

        def watch(connection: Any, *_: Any, count: Any = count) -> None:
            connection.driver_connection.add_query_logger(count)

        for engine in {database._writer.sync_engine, database._reader.sync_engine}:
            listeners.append((engine, "before_cursor_execute", count))
            if world.backend == "postgresql":
                listeners.append((engine, "checkout", watch))
        # existing connections remain open between transactions, so they are not checked out again
        idle = [tx._driver for pool in database._pools.values() for tx in pool._idle]
        for raw in filter(None, idle):
            raw.add_query_logger(count)
            watched.append((raw, count))
    for engine, name, listener in listeners:
        event.listen(engine, name, listener)
    try:
        yield counted
        # The driver reports a statement in the next turn of the event loop.
        await asyncio.sleep(0)
        counted.update(running)
    finally:
        for engine, name, listener in listeners:
            event.remove(engine, name, listener)
        for raw, count in watched:
            if not raw.is_closed():
                raw.remove_query_logger(count)
