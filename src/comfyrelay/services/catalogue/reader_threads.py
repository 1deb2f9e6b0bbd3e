"""Threads in which graphs are read: those that somebody brings take as long as he has made them.

They are not the common ones, which files and passwords wait for; and of one tenant one is read at a time, so that
nobody's file waits for more than one of each other's.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from comfyrelay.storage.threads import in_thread

# More would not be faster: a thread that computes keeps the others of this process waiting.
_THREADS = 2

T = TypeVar("T")


class Readers:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="comfyrelay-read")
        # each is there while somebody waits for it
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, tenant_id: str, function: Callable[[], T]) -> T:
        """Its turn ends when the thread is done, not when whoever waits for it has left."""
        turn = self._turns.setdefault(tenant_id, asyncio.Lock())
        async with turn:
            return await in_thread(function, self._threads)
