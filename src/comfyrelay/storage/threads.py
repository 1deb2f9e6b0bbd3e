"""Run blocking calls in threads that a cancellation does not interrupt."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], threads: Executor | None = None) -> T:
    """Run a function in a thread of the default pool or of `threads`.

    A cancellation waits for the function to end, so that its files are not removed while it uses them.
    """
    work = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, function)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.gather(work, return_exceptions=True)
        raise
