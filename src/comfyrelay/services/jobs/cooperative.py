"""Run CPU-bound work in one thread at a time, in short turns.

Because of the GIL, one computing thread takes half of the event loop's CPU time, and two threads take two thirds. With
turns, callers with little work finish before callers with much work.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

# After this time, the next waiting caller gets the thread.
TURN_SECONDS = 0.1
# Work up to this size takes less time than starting a thread.
SMALL_BYTES = 32 * 1024

T = TypeVar("T")


class FairThread:
    def __init__(self) -> None:
        # Locks are FIFO, so no caller gets two turns while another waits.
        self._turn = asyncio.Lock()

    async def map_range(self, make: Callable[[int], T], *, count: int, size: int) -> list[T]:
        """Call `make` with each number below `count`. If the work is small (`size` in bytes), it runs inline."""
        if size <= SMALL_BYTES:
            return [make(number) for number in range(count)]
        results: list[T] = []
        while len(results) < count:
            async with self._turn:
                results += await asyncio.to_thread(_run_turn, make, len(results), count)
        return results


def _run_turn(make: Callable[[int], T], first: int, count: int) -> list[T]:
    until = time.monotonic() + TURN_SECONDS
    results = []
    for number in range(first, count):
        results.append(make(number))
        if time.monotonic() >= until:
            break
    return results
