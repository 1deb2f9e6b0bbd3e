"""Broadcast wakeups: a wakeup reaches only one waiter, but every open KEDA stream needs it."""

import asyncio
from collections.abc import Awaitable, Callable

# Minimum time between two broadcasts.
PAUSE_SECONDS = 0.25
# Maximum time between two broadcasts, in case wakeups are lost.
TICK_SECONDS = 5.0

# Waits for a wakeup for at most this many seconds.
WaitForWakeup = Callable[[float], Awaitable[bool]]


class WakeupBroadcast:
    def __init__(self, wait_for_wakeup: WaitForWakeup, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._wait_for_wakeup = wait_for_wakeup
        self._tick_seconds = tick_seconds
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Event of the next broadcast. Get the event before you read the state, so that you miss no change."""
        return self._next

    async def run(self) -> None:
        while True:
            await self._wait_for_wakeup(self._tick_seconds)
            past, self._next = self._next, asyncio.Event()
            past.set()
            await asyncio.sleep(PAUSE_SECONDS)
