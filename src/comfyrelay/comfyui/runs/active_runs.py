"""Track the active runs of one client, so that closing it stops them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.errors import RunInterrupted


class ActiveRuns:
    def __init__(self) -> None:
        self._runs: set[asyncio.Task[RunResult]] = set()
        self._stops: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def close(self) -> None:
        """Cancel all runs and wait until they have stopped on the server."""
        self._is_closing = True
        for task in self._runs:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        await asyncio.gather(*self._stops)

    async def run(self, work: Coroutine[Any, Any, RunResult]) -> RunResult:
        """Execute a run in a separate task and wait for it."""
        task = asyncio.create_task(work)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._is_closing and me is not None and not me.cancelling():
                raise RunInterrupted("The client was closed.") from None
            raise

    async def finish_stop(self, stop: Coroutine[Any, Any, None]) -> None:
        """Stop a run on the server. Continues if the caller is canceled again."""
        task = asyncio.create_task(stop)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        await asyncio.shield(task)
