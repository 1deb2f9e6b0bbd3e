"""One listener for wakeups, and everybody who waits for them: a wakeup is taken by whoever hears it first."""

import asyncio
from collections.abc import Awaitable, Callable

# However many wakeups there are, this is how often everybody looks again at most.
PAUSE_SECONDS = 0.25
# Should every wakeup be lost.
TICK_SECONDS = 5.0

# waits for a wakeup, so many seconds at most
WaitForWakeup = Callable[[float], Awaitable[bool]]


class ScalingTurns:
    def __init__(self, wait_for_wakeup: WaitForWakeup, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._wait_for_wakeup = wait_for_wakeup
        self._tick_seconds = tick_seconds
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Set when there is reason to look again. Take it before looking: what happens meanwhile is then not missed."""
        return self._next

    async def run(self) -> None:
        while True:
            await self._wait_for_wakeup(self._tick_seconds)
            past, self._next = self._next, asyncio.Event()
            past.set()
            await asyncio.sleep(PAUSE_SECONDS)
