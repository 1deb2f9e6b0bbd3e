"""Share the result of an expensive read among callers for a few seconds."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class TimedCache(Generic[T]):
    def __init__(self, read: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._read = read
        self._expires_at = 0.0
        self._result: asyncio.Task[T] | None = None

    async def get(self, *, seconds: float) -> T:
        """Return the cached result, or read it again and cache it for this many seconds."""
        now = asyncio.get_running_loop().time()
        if self._result is None or self._expires_at <= now:
            self._expires_at, self._result = now + seconds, asyncio.create_task(self._read())
        # A canceled caller must not cancel the read for the others.
        return await asyncio.shield(self._result)

    def clear(self) -> None:
        self._result = None
