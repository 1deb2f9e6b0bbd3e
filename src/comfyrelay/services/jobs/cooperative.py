"""Taking turns: what needs the processor for long is done in a thread, a little at a time, by one caller after another.

A thread that computes takes half of the processor from everybody else in this process. Two take two thirds, and those
who only wait for a small thing would wait for all of them.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

# Then the next one who waits goes on.
TURN_SECONDS = 0.1
# So much is gone through before a thread would have begun.
SMALL_BYTES = 32 * 1024

T = TypeVar("T")


class FairThread:
    def __init__(self) -> None:
        # whoever asks first gets it first, so that nobody has two turns while another waits
        self._turn = asyncio.Lock()

    async def map_range(self, make: Callable[[int], T], *, count: int, size: int) -> list[T]:
        """`make` of each number below `count`; at once where all that is gone through for it has a small size."""
        if size <= SMALL_BYTES:
            return [make(number) for number in range(count)]
        made: list[T] = []
        while len(made) < count:
            async with self._turn:
                made += await asyncio.to_thread(_some, make, len(made), count)
        return made


def _some(make: Callable[[int], T], first: int, count: int) -> list[T]:
    until = time.monotonic() + TURN_SECONDS
    made = []
    for number in range(first, count):
        made.append(make(number))
        if time.monotonic() >= until:
            break
    return made
