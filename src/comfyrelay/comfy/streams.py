"""A call that reports events by callback, as a stream of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from comfyrelay.comfy.events import RunEvent
from comfyrelay.comfy.outputs import RunResult
from comfyrelay.comfy.server import EventListener

__all__ = ["stream_of"]


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
