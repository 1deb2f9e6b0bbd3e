"""Deliver a pool's events to subscribers. A failing subscriber does not affect the pool."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import structlog

from comfyrelay.comfyui.pool.events import EVENT_CLASSES, PoolEvent
from comfyrelay.comfyui.pool.streams import EventStream
from comfyrelay.errors import InvalidInput

log = structlog.get_logger(__name__)

Callback = Callable[[Any], object]
Selector = str | type[PoolEvent]

# How long asynchronous callbacks may run after the pool has closed.
_CALLBACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class _Listener:
    classes: tuple[type[PoolEvent], ...]
    callback: Callback


class Bus:
    def __init__(self, *, buffer_size: int) -> None:
        self._buffer_size = buffer_size
        self._listeners: dict[_Listener, None] = {}
        # Weak: a reader that leaves its `async for` does not have to unsubscribe.
        self._streams: WeakKeyDictionary[EventStream[Any], tuple[type[PoolEvent], ...]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def on(self, which: Selector, callback: Callback) -> Callable[[], None]:
        listener = _Listener(_classes([which]), callback)
        self._listeners[listener] = None

        def unsubscribe() -> None:
            self._listeners.pop(listener, None)

        return unsubscribe

    def stream(self, *which: Selector) -> EventStream[Any]:
        stream: EventStream[Any] = EventStream(limit=self._buffer_size)
        self._streams[stream] = _classes(which or ["*"])
        if self._closed:
            stream.close()
        return stream

    def emit(self, event: PoolEvent) -> None:
        for stream, classes in list(self._streams.items()):
            if isinstance(event, classes):
                stream.put(event)
        for listener in tuple(self._listeners):
            if isinstance(event, listener.classes):
                self._call(listener.callback, event)

    def do_not_wait_for(self, task: asyncio.Task[Any]) -> None:
        """Do not wait for this callback on close: it is the one that closes the pool."""
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
            task = asyncio.create_task(_finish(answer, event.type))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _finish(answer: Awaitable[object], event_type: str) -> None:
    try:
        await answer
    except Exception:
        log.exception("pool.callback_failed", event_type=event_type)


def _classes(which: list[Selector] | tuple[Selector, ...]) -> tuple[type[PoolEvent], ...]:
    return tuple(_class_of(each) if isinstance(each, str) else each for each in which)


def _class_of(name: str) -> type[PoolEvent]:
    try:
        return EVENT_CLASSES[name]
    except KeyError:
        raise InvalidInput(f'Unknown event "{name}". Events: {", ".join(sorted(EVENT_CLASSES))}.') from None
