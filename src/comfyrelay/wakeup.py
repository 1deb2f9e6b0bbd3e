"""A hint and a tick: a loop that is woken early when something may have changed, and looks now and then in any case."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


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


class HintsByKey(Generic[K]):
    """Who waits for news of what."""

    def __init__(self) -> None:
        self._hints: dict[K, set[Hint]] = {}

    def __len__(self) -> int:
        return len(self._hints)

    def __iter__(self) -> Iterator[K]:
        return iter(self._hints)

    @contextmanager
    def waiting(self, key: K, hint: Hint) -> Iterator[None]:
        """Inside, this hint is given when there is news of that."""
        hints = self._hints.setdefault(key, set())
        hints.add(hint)
        try:
            yield
        finally:
            hints.discard(hint)
            if not hints:
                self._hints.pop(key, None)

    def give(self, key: K) -> None:
        for hint in self._hints.get(key, ()):
            hint.give()
