"""Cache lookups for a short time, so that a busy caller does not cost one query per call."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

# A revoked token works for at most this much longer.
REMEMBER_SECONDS = 5.0
MAX_REMEMBERED = 20_000

T = TypeVar("T")


class Cached(Generic[T]):
    """Caches the results of a slow lookup. Concurrent callers share one lookup."""

    def __init__(self, ask: Callable[[str], Awaitable[T | None]]) -> None:
        self._ask = ask
        # with the time of each lookup
        self._known: OrderedDict[str, tuple[float, asyncio.Future[T | None]]] = OrderedDict()

    async def __call__(self, key: str, *, oldest_seconds: float = REMEMBER_SECONDS) -> T | None:
        """Return a result that is at most `oldest_seconds` old."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is None or known[0] + oldest_seconds <= now or _failed(known[1]):
            known = (now, asyncio.ensure_future(self._ask(key)))
            self._known[key] = known
            self._known.move_to_end(key)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return await asyncio.shield(known[1])

    def forget(self, is_it: Callable[[T], bool]) -> None:
        """Drop matching results and all lookups in progress."""
        self._known = OrderedDict((key, known) for key, known in self._known.items() if _stays(known[1], is_it))


def _stays(answer: "asyncio.Future[T | None]", is_it: Callable[[T], bool]) -> bool:
    if not answer.done() or _failed(answer):
        return False
    known = answer.result()
    return known is None or not is_it(known)


def _failed(answer: "asyncio.Future[T | None]") -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)
