"""Threads that read graphs, whose size users control.

They are separate from the default threads for files and passwords. Each tenant has at most one read at a time, so a
read waits for at most one read of every other tenant.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from comfyrelay.storage.threads import in_thread

# More threads would not be faster because of the GIL.
_THREADS = 2

T = TypeVar("T")


class ReaderThreads:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="comfyrelay-read")
        # A lock exists only while a caller holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, tenant_id: str, function: Callable[[], T]) -> T:
        """Run a function in a thread. The tenant's lock is held until the function returns, even if the caller is
        canceled."""
        lock = self._locks.setdefault(tenant_id, asyncio.Lock())
        async with lock:
            return await in_thread(function, self._threads)
