"""Events by callback, safely, and as a stream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.runs.events import EventListener, RunEvent

log = structlog.get_logger(__name__)


def safely(listener: EventListener | None) -> EventListener:
    """A listener that fails is told of in the log, and does no harm to the run."""

    def listen(event: RunEvent) -> None:
        try:
            if listener is not None:
                listener(event)
        except Exception:
            log.exception("comfy.listener_failed", listened=type(event).__name__)

    return listen


async def stream_of(run: Callable[[EventListener], Awaitable[RunResult]]) -> AsyncIterator[RunEvent]:
    """Yield the events of a run; raise what it raises; stop it when the reader leaves early."""
    events: asyncio.Queue[RunEvent | None] = asyncio.Queue()

    async def reported() -> None:
        try:
            await run(events.put_nowait)
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(reported())
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
