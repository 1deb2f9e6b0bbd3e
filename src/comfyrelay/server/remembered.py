"""Answers that are remembered for a few seconds, so that a busy caller does not cost a query for each call."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

# A token that is revoked works for this much longer.
REMEMBER_SECONDS = 5.0
MOST_REMEMBERED = 20_000

T = TypeVar("T")


class Remembered(Generic[T]):
    """Answers of a slow question, remembered for a few seconds. Those who ask at once share one answer."""

    def __init__(self, ask: Callable[[str], Awaitable[T | None]]) -> None:
        self._ask = ask
        self._known: OrderedDict[str, tuple[float, asyncio.Future[T | None]]] = OrderedDict()

    async def __call__(self, key: str) -> T | None:
        now = asyncio.get_running_loop().time()
        known = self._known.get(key)
        if known is None or known[0] <= now or _failed(known[1]):
            known = (now + REMEMBER_SECONDS, asyncio.ensure_future(self._ask(key)))
            self._known[key] = known
            self._known.move_to_end(key)
            if len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        return await asyncio.shield(known[1])

    def clear(self) -> None:
        """Something was taken away: ask again."""
        self._known.clear()


def _failed(answer: "asyncio.Future[T | None]") -> bool:
    return answer.done() and (answer.cancelled() or answer.exception() is not None)
