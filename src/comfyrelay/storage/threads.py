"""Work in threads that is over when its waiter goes on."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run it in a thread. A cancellation waits for it, so that nothing is cleaned up under its hands."""
    work = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # nobody is left to hear how it ended
        await asyncio.gather(work, return_exceptions=True)
        raise
