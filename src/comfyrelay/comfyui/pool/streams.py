"""Bounded event buffer of one reader."""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, Self, TypeVar

from comfyrelay.comfyui.pool.events import JobCanceled, JobCompleted, JobFailed, JobPreview, JobProgress, PoolEvent

E = TypeVar("E", bound=PoolEvent)

_FLEETING = (JobProgress, JobPreview)
_TERMINAL = (JobCompleted, JobFailed, JobCanceled)


class EventStream(Generic[E]):
    """`async for event in stream`, from its creation until its source ends.

    If `limit` events are unread, the oldest progress or preview is dropped for a new one, then the oldest other event.
    The end of a job is never dropped.
    """

    def __init__(self, *, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._numbered: OrderedDict[int, E] = OrderedDict()
        self._fleeting: deque[int] = deque()
        self._lasting: deque[int] = deque()
        self._next_number = 0
        self._news = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        while not self._numbered:
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        _, event = self._numbered.popitem(last=False)
        numbers = self._numbers_of(event)
        if numbers is not None:
            # Events are read in order, so this one is the oldest of its kind.
            numbers.popleft()
        return event

    def put(self, event: E) -> None:
        if self._closed:
            return
        if len(self._numbered) >= self._limit:
            self._drop_one()
        self._numbered[self._next_number] = event
        numbers = self._numbers_of(event)
        if numbers is not None:
            numbers.append(self._next_number)
        self._next_number += 1
        self._news.set()

    def close(self) -> None:
        """Accept no more events; unread ones can still be read."""
        self._closed = True
        self._news.set()

    def _numbers_of(self, event: E) -> deque[int] | None:
        if isinstance(event, _TERMINAL):
            return None
        return self._fleeting if isinstance(event, _FLEETING) else self._lasting

    def _drop_one(self) -> None:
        numbers = self._fleeting or self._lasting
        if numbers:
            del self._numbered[numbers.popleft()]
            self.dropped += 1
