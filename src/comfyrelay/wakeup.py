"""A wakeup and a tick: a loop that is woken early when something may have changed, and looks now and then in any case."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Wakeup:
    """A wakeup may come early, twice or for nothing. Whoever waits looks for itself, so one that is lost costs a tick."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a wakeup, and take it; false when none came in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class WakeupsByKey(Generic[K]):
    """Who waits for news of what."""

    def __init__(self) -> None:
        self._wakeups: dict[K, set[Wakeup]] = {}

    def __len__(self) -> int:
        return len(self._wakeups)

    def __iter__(self) -> Iterator[K]:
        return iter(self._wakeups)

    @contextmanager
    def waiting(self, key: K, wakeup: Wakeup) -> Iterator[None]:
        """Inside, this wakeup is given when there is news of that."""
        wakeups = self._wakeups.setdefault(key, set())
        wakeups.add(wakeup)
        try:
            yield
        finally:
            wakeups.discard(wakeup)
            if not wakeups:
                self._wakeups.pop(key, None)

    def notify(self, key: K) -> None:
        for wakeup in self._wakeups.get(key, ()):
            wakeup.notify()
