"""Work in threads that is over when its waiter goes on."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], threads: Executor | None = None) -> T:
    """Run it in a thread, a common one or one of these. A cancellation waits for it, so that nothing is
    cleaned up under its hands."""
    work = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, function)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # nobody is left to hear how it ended
        await asyncio.gather(work, return_exceptions=True)
        raise
