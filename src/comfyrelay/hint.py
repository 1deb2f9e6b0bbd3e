"""A hint and a tick: a loop that is woken early when something may have changed, and looks now and then in any case."""

import asyncio


class Hint:
    """A hint may come early, twice or for nothing. Whoever waits looks for itself, so one that is lost costs a tick."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def give(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a hint, and take it; false when none came in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
