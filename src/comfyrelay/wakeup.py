"""Wake a polling loop early when something may have changed."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Wakeup:
    """A best-effort signal. It may be early, repeated or spurious. If it is lost, the loop waits for its next tick."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a wakeup and consume it. Returns false after `seconds` without one."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class WakeupsByKey(Generic[K]):
    """Wakes the loops that wait for a key."""

    def __init__(self) -> None:
        self._wakeups: dict[K, set[Wakeup]] = {}

    def __len__(self) -> int:
        return len(self._wakeups)

    def __iter__(self) -> Iterator[K]:
        return iter(self._wakeups)

    @contextmanager
    def waiting(self, key: K, wakeup: Wakeup) -> Iterator[None]:
        """Wake `wakeup` on `notify(key)` while the context is open."""
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
