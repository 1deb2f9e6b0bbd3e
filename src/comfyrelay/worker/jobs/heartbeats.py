"""Send heartbeats for one lease in background tasks, independently of the job."""

import asyncio
import random
from math import floor
from typing import Any

import structlog

from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, Forbidden, InvalidInput, LeaseLost, Unauthorized
from comfyrelay.protocol.progress import BEFORE_RUN, Progress
from comfyrelay.text import storable
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.lease import Lease, LeaseStop

log = structlog.get_logger(__name__)

# Minimum pause between two heartbeats that carry progress or logs.
NEWS_SECONDS = 1.0
MAX_WAIT_SECONDS = 30.0
MAX_LOGS = 1000


class HeartbeatLoop:
    """Keeps one lease alive.

    One task parks a heartbeat at the control plane until a stop request arrives or the next heartbeat is due. Another
    task sends progress and logs as they arrive.
    """

    def __init__(self, control: ControlPlane, lease: Lease, *, interval_seconds: float) -> None:
        self._control = control
        self._lease = lease
        self._wait_seconds = min(interval_seconds, MAX_WAIT_SECONDS)
        self._progress: Progress | None = None
        self._logs: list[str] = []
        self._news = Wakeup()
        # The times of the last response and of its call.
        self.answered_at = float("-inf")
        self.sent_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send_changes())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def progress(
        self,
        value: float,
        *,
        node_id: str | None = None,
        node: str | None = None,
        node_class: str | None = None,
        step: float | None = None,
        steps: float | None = None,
    ) -> None:
        """Report progress from 0 to 1, which a background task sends soon, together with other changes."""
        lease = self._lease
        lease.progress = value
        nodes = len(lease.graph)
        self._progress = Progress(
            value=round(value, 4),
            phase=lease.phase,
            began_at=lease.began_at,
            server=lease.server,
            node_id=node_id,
            node=node,
            node_class=node_class,
            # The sum of floats may be just below a whole number.
            nodes_done=floor(value * nodes + 1e-6) if nodes else None,
            nodes_total=nodes or None,
            step=step,
            steps=steps,
        )
        self._news.notify()

    def log(self, line: str) -> None:
        """Add a line to the job's log. If the lines cannot be sent, the oldest are dropped."""
        self._logs.append(storable(line))
        del self._logs[:-MAX_LOGS]
        self._news.notify()

    async def refresh(self) -> None:
        """Send a heartbeat now to get new URLs. Errors surface when the URLs are used."""
        try:
            await self._send_heartbeat(fresh_urls=True)
        except Exception as error:
            self._failed(error)

    async def flush(self) -> None:
        """Send pending changes before the job is settled."""
        if self._progress is not None or self._logs:
            await self._send()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_over():
            asked_at = loop.time()
            try:
                await self._send_heartbeat(wait_seconds=self._wait_seconds)
            except Exception as error:
                self._failed(error)
                # Retry soon, because the lease is about to expire.
                min_seconds = min(self._wait_seconds, 2.0)
            else:
                # A stopping control plane responds at once, and repeats a stop request in each response.
                min_seconds = min(self._wait_seconds, 1.0)
            pause = min_seconds - (loop.time() - asked_at)
            if pause > 0:
                await asyncio.sleep(pause * random.uniform(1.0, 1.2))

    async def _send_changes(self) -> None:
        while not self._is_over():
            await self._news.wait()
            await self._send()
            await asyncio.sleep(NEWS_SECONDS)

    async def _send(self) -> None:
        progress, self._progress = self._progress, None
        logs, self._logs = self._logs, []
        try:
            await self._send_heartbeat(progress=progress, logs=logs)
        except ControlPlaneUnreachable:
            # The next heartbeat sends this progress, unless there is newer progress.
            if self._progress is None:
                self._progress = progress
            self._logs = [*logs, *self._logs][-MAX_LOGS:]
            self._news.notify()
        except Exception as error:
            # The content may be the cause of the failure, so it is dropped.
            self._failed(error)

    def _is_over(self) -> bool:
        return self._lease.stop is LeaseStop.LOST

    async def _send_heartbeat(self, **state: Any) -> None:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        stop = await self._control.heartbeat(self._lease, **state)
        self.answered_at, self.sent_at = loop.time(), max(self.sent_at, sent_at)
        # A release does not stop a running job, whose work would be lost.
        if stop is not None and (stop is not LeaseStop.RELEASE or self._lease.phase in BEFORE_RUN):
            self._lease.request_stop(stop)

    def _failed(self, error: Exception) -> None:
        """Log the error and continue: without heartbeats, the lease would expire and the job could not be stopped."""
        if isinstance(error, LeaseLost | Unauthorized | Forbidden):
            self._lease.request_stop(LeaseStop.LOST)
        elif isinstance(error, InvalidInput):
            # The control plane probably has a different version.
            log.warning("worker.heartbeat_refused", dispatch_id=self._lease.dispatch_id, why=error.detail)
        elif isinstance(error, ComfyRelayError):
            log.debug("worker.heartbeat_failed", dispatch_id=self._lease.dispatch_id, error=error.detail)
        else:
            log.error("worker.heartbeat_failed", dispatch_id=self._lease.dispatch_id, exc_info=error)
