"""Deliver a pool's events to subscribers. A failing subscriber does not affect the pool."""

import asyncio
import inspect
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

import structlog

from comfyrelay.comfyui.pool.events import (
    EVENT_CLASSES,
    JobCanceled,
    JobCompleted,
    JobFailed,
    JobPreview,
    JobProgress,
    PoolEvent,
)
from comfyrelay.errors import InvalidInput

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=PoolEvent)
Callback = Callable[[Any], object]
Selector = str | type[PoolEvent]

# How long asynchronous callbacks may run after the pool has closed.
_CALLBACK_SECONDS = 5.0


class EventStream(Generic[E]):
    """A bounded buffer of events for one reader. `async for event in stream` ends when the source ends.

    If `limit` events are unread, a new event replaces the oldest progress or preview event, or else the oldest other
    event. The end of a job is never dropped.
    """

    def __init__(self, *, limit: int) -> None:
        self.dropped = 0
        self._limit = limit
        self._unread: OrderedDict[int, E] = OrderedDict()
        # Sequence numbers of unread events, oldest first.
        self._transient: deque[int] = deque()
        self._lasting: deque[int] = deque()
        self._next_number = 0
        self._changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        while not self._unread:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        _, event = self._unread.popitem(last=False)
        numbers = self._numbers_of_kind(event)
        if numbers is not None:
            # Events are read in order, so this event is the oldest of its kind.
            numbers.popleft()
        return event

    def put(self, event: E) -> None:
        if self._closed:
            return
        if len(self._unread) >= self._limit and (numbers := self._transient or self._lasting):
            del self._unread[numbers.popleft()]
            self.dropped += 1
        self._unread[self._next_number] = event
        same_kind = self._numbers_of_kind(event)
        if same_kind is not None:
            same_kind.append(self._next_number)
        self._next_number += 1
        self._changed.set()

    def close(self) -> None:
        """Accept no more events; unread ones can still be read."""
        self._closed = True
        self._changed.set()

    def _numbers_of_kind(self, event: E) -> deque[int] | None:
        if isinstance(event, (JobCompleted, JobFailed, JobCanceled)):
            return None
        return self._transient if isinstance(event, (JobProgress, JobPreview)) else self._lasting


class Bus:
    def __init__(self, *, buffer_size: int) -> None:
        self._buffer_size = buffer_size
        # Event classes and callback by the function that unsubscribes.
        self._listeners: dict[Callable[[], None], tuple[tuple[type[PoolEvent], ...], Callback]] = {}
        # Weak references, so that a reader that leaves its `async for` need not unsubscribe.
        self._streams: WeakKeyDictionary[EventStream[Any], tuple[type[PoolEvent], ...]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def on(self, selector: Selector, callback: Callback) -> Callable[[], None]:
        def unsubscribe() -> None:
            self._listeners.pop(unsubscribe, None)

        self._listeners[unsubscribe] = (_classes([selector]), callback)
        return unsubscribe

    def stream(self, *selectors: Selector) -> EventStream[Any]:
        stream: EventStream[Any] = EventStream(limit=self._buffer_size)
        self._streams[stream] = _classes(selectors or ["*"])
        if self._closed:
            stream.close()
        return stream

    def emit(self, event: PoolEvent) -> None:
        for stream, classes in list(self._streams.items()):
            if isinstance(event, classes):
                stream.put(event)
        for classes, callback in tuple(self._listeners.values()):
            if isinstance(event, classes):
                self._call(callback, event)

    def do_not_wait_for(self, task: asyncio.Task[Any]) -> None:
        """Do not wait for this task on close, because it runs the callback that closes the pool."""
        self._tasks.discard(task)

    async def close(self) -> None:
        """Wait for asynchronous callbacks and close the streams."""
        if tasks := set(self._tasks):
            await asyncio.wait(tasks, timeout=_CALLBACK_SECONDS)
            for task in tasks:
                task.cancel()
        self._closed = True
        for stream in list(self._streams):
            stream.close()

    def _call(self, callback: Callback, event: PoolEvent) -> None:
        try:
            answer = callback(event)
        except Exception:
            log.exception("pool.callback_failed", event_type=event.type)
            return
        if inspect.isawaitable(answer):
            task = asyncio.create_task(_await_callback(answer, event.type))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _await_callback(answer: Awaitable[object], event_type: str) -> None:
    try:
        await answer
    except Exception:
        log.exception("pool.callback_failed", event_type=event_type)


def _classes(selectors: Iterable[Selector]) -> tuple[type[PoolEvent], ...]:
    return tuple(_class_named(selector) if isinstance(selector, str) else selector for selector in selectors)


def _class_named(name: str) -> type[PoolEvent]:
    try:
        return EVENT_CLASSES[name]
    except KeyError:
        raise InvalidInput(f'Unknown event "{name}". Events: {", ".join(sorted(EVENT_CLASSES))}.') from None
