"""A cache of lookups, so that a busy caller does not cost one query per call."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

# A revoked token works for at most this many more seconds.
CACHE_SECONDS = 5.0
MAX_ENTRIES = 20_000

T = TypeVar("T")


class Cached(Generic[T]):
    """Caches the results of a slow lookup. Concurrent callers share one lookup."""

    def __init__(self, look_up: Callable[[str], Awaitable[T | None]]) -> None:
        self._look_up = look_up
        # The time of each lookup, and its result.
        self._entries: OrderedDict[str, tuple[float, asyncio.Future[T | None]]] = OrderedDict()

    async def __call__(self, key: str, *, max_age_seconds: float = CACHE_SECONDS) -> T | None:
        """Return a result that is at most `max_age_seconds` old."""
        now = asyncio.get_running_loop().time()
        entry = self._entries.get(key)
        if entry is None or entry[0] + max_age_seconds <= now or _is_without_result(entry[1]):
            entry = (now, asyncio.ensure_future(self._look_up(key)))
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
        try:
            return await asyncio.shield(entry[1])
        finally:
            if _is_without_result(entry[1]) and self._entries.get(key) is entry:
                del self._entries[key]

    def forget(self, matches: Callable[[T], bool]) -> None:
        """Drop matching results and all lookups in progress."""
        for key, (_time, lookup) in list(self._entries.items()):
            result = None if not lookup.done() or _is_without_result(lookup) else lookup.result()
            if result is None or matches(result):
                del self._entries[key]


def _is_without_result(lookup: "asyncio.Future[T | None]") -> bool:
    """Whether a lookup failed or found nothing. Such entries are not kept: a disabled account may be enabled again, and
    guessed tokens would replace the entries of valid ones."""
    return lookup.done() and (lookup.cancelled() or lookup.exception() is not None or lookup.result() is None)
