"""Heartbeats that wait: one look a second for all of them tells who is to stop.

A cancel through this process is told at once; one through another process within the second.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable

import structlog

from comfyrelay.services.databases import Databases
from comfyrelay.store.central import dispatches

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0


class Stops:
    def __init__(self, databases: Databases, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._databases = databases
        self._tick_seconds = tick_seconds
        self._waiting: defaultdict[int, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self._look = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def wait(self, dispatch_id: int, *, seconds: float) -> None:
        """Return when a lease has ended or is to stop, or when time is up. Ask again by heartbeat what it is."""
        news = asyncio.Event()
        self._waiting[dispatch_id].add(news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await news.wait()
        finally:
            self._waiting[dispatch_id].discard(news)
            if not self._waiting[dispatch_id]:
                del self._waiting[dispatch_id]

    def hint(self) -> None:
        """Something was asked to stop through this process: look now."""
        self._look.set()

    def close(self) -> None:
        """Tell everybody who waits."""
        self._tell(list(self._waiting))
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._look.wait()
            self._look.clear()
            if self._waiting:
                await self._look_once()

    async def _look_once(self) -> None:
        try:
            async with self._databases.central.read() as tx:
                self._tell(await dispatches.stops_of(tx, list(self._waiting)))
        except Exception:
            # the next look may succeed; whoever waits is answered when time is up at the latest
            log.warning("stops.failed", exc_info=True)

    def _tell(self, dispatch_ids: Iterable[int]) -> None:
        for each in dispatch_ids:
            for news in self._waiting.get(each, ()):
                news.set()
