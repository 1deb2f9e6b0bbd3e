"""Exponential backoff with jitter, for every loop that retries or reconnects."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

# Larger exponents could overflow, and the delay has reached its maximum long before.
_MAX_DOUBLINGS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Delays that double from `first_seconds` up to `max_seconds`.

    A random factor between `1 - jitter` and `1 + jitter` prevents clients that failed together from retrying together.
    """

    first_seconds: float
    max_seconds: float
    jitter: float = 0.2

    def delay(self, failures: int, *, at_least: float = 0.0) -> float:
        """Return the delay after a number of consecutive failures. `at_least` is the server's `Retry-After`."""
        if failures == 0:
            return at_least
        doubled = self.first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        seconds = min(doubled, self.max_seconds) * random.uniform(1 - self.jitter, 1 + self.jitter)
        return max(seconds, at_least)


class Retries:
    """Counts the failures of one loop. Tests pass their own `sleep`."""

    def __init__(self, backoff: Backoff, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._backoff = backoff
        self._sleep = sleep
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def next_delay(self, *, at_least: float = 0.0) -> float:
        self.failures += 1
        return self._backoff.delay(self.failures, at_least=at_least)

    async def wait(self, *, at_least: float = 0.0) -> None:
        """Count a failure and sleep."""
        await self._sleep(self.next_delay(at_least=at_least))
