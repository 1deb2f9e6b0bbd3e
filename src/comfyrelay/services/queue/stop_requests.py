"""Wake waiting heartbeats when their lease has ended or has a stop request.

Decisions of this process wake them immediately. One query per second finds the decisions of other processes.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

import structlog

from comfyrelay.services.databases import Databases
from comfyrelay.store.central.queue import dispatches
from comfyrelay.wakeup import Wakeup, WakeupsByKey

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0


class StopRequests:
    def __init__(self, databases: Databases, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._databases = databases
        self._tick_seconds = tick_seconds
        self._waiting: WakeupsByKey[int] = WakeupsByKey()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @contextlib.contextmanager
    def watching(self, dispatch_id: int) -> Iterator[Wakeup]:
        """Yield a wakeup that is notified when the lease has ended or should stop. The next heartbeat says which."""
        wakeup = Wakeup()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        with self._waiting.waiting(dispatch_id, wakeup):
            yield wakeup

    def wake(self, dispatch_ids: Iterable[int]) -> None:
        for dispatch_id in dispatch_ids:
            self._waiting.notify(dispatch_id)

    def close(self) -> None:
        """Wake all waiting heartbeats."""
        self.wake(list(self._waiting))
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._tick_seconds)
            if not self._waiting:
                return
            try:
                async with self._databases.central.read() as tx:
                    self.wake(await dispatches.to_stop(tx, list(self._waiting)))
            except Exception:
                # The next tick may succeed. Otherwise the heartbeats time out.
                log.warning("stop_requests.read_failed", exc_info=True)
