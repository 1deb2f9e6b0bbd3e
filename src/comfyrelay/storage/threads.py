"""Run blocking calls in threads, surviving cancellation."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], threads: Executor | None = None) -> T:
    """Run a function in a thread of the common pool or of `threads`.

    A cancellation waits for it, so that its files are not removed while it uses them.
    """
    work = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, function)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # its result is dropped
        await asyncio.gather(work, return_exceptions=True)
        raise
