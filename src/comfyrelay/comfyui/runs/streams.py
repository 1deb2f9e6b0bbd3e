"""Deliver run events to callbacks and as a stream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.runs.events import EventListener, RunEvent

log = structlog.get_logger(__name__)


def guard_listener(listener: EventListener | None) -> EventListener:
    """Wrap a listener so that its exceptions are logged and do not affect the run."""

    def listen(event: RunEvent) -> None:
        try:
            if listener is not None:
                listener(event)
        except Exception:
            log.exception("comfy.listener_failed", event_type=type(event).__name__)

    return listen


async def stream_events(run: Callable[[EventListener], Awaitable[RunResult]]) -> AsyncIterator[RunEvent]:
    """Yield the events of a run and re-raise its error. Stop the run if the consumer leaves early."""
    events: asyncio.Queue[RunEvent | None] = asyncio.Queue()

    async def run_and_close() -> None:
        try:
            await run(events.put_nowait)
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(run_and_close())
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
