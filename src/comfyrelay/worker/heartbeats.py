"""The heartbeats of one lease, in tasks of their own: whatever the job does, they go on."""

import asyncio
import random
from typing import Any

import structlog

from comfyrelay.errors import ComfyRelayError, ControlPlaneUnreachable, Forbidden, InvalidInput, LeaseLost, Unauthorized
from comfyrelay.protocol.progress import BEFORE_RUN, Progress
from comfyrelay.text import storable
from comfyrelay.wakeup import Wakeup
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.lease import Lease, LeaseStop

log = structlog.get_logger(__name__)

# Progress and logs are sent at most this often.
NEWS_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
MOST_LOGS = 1000


class HeartbeatLoop:
    """One task listens: its heartbeat waits at the control plane until there is something to hear, or it is time for
    the next. Another sends news, when there is any."""

    def __init__(self, control: ControlPlane, lease: Lease, *, interval_seconds: float) -> None:
        self._control = control
        self._lease = lease
        self._wait_seconds = min(interval_seconds, LONGEST_WAIT_SECONDS)
        self._progress: Progress | None = None
        self._logs: list[str] = []
        self._news = Wakeup()
        # when the control plane last answered, and when that heartbeat was sent
        self.answered_at = float("-inf")
        self.sent_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send_news())]

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
        step: float | None = None,
        steps: float | None = None,
    ) -> None:
        """How far the job is, from 0 to 1; told soon, together with what else is new by then."""
        lease = self._lease
        lease.progress = value
        self._progress = Progress(
            value=round(value, 4),
            phase=lease.phase,
            began_at=lease.began_at,
            server=lease.server,
            node_id=node_id,
            node=node,
            step=step,
            steps=steps,
        )
        self._news.notify()

    def log(self, line: str) -> None:
        """A line for the job's log. When nobody can be told, the oldest are forgotten."""
        self._logs.append(storable(line))
        del self._logs[:-MOST_LOGS]
        self._news.notify()

    async def refresh(self) -> None:
        """Beat now, for fresh URLs. What fails here is found out by whoever needs them."""
        try:
            await self._beat(fresh_urls=True)
        except Exception as error:
            self._failed(error)

    async def flush(self) -> None:
        """Send what has not been sent, before the job is settled."""
        if self._progress is not None or self._logs:
            await self._send()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_over():
            asked_at = loop.time()
            try:
                await self._beat(wait_seconds=self._wait_seconds)
            except Exception as error:
                self._failed(error)
                # soon again: the lease goes on expiring
                least = min(self._wait_seconds, 2.0)
            else:
                # a control plane that is being stopped does not let us wait, and one that said stop says so again
                least = min(self._wait_seconds, 1.0)
            rest = least - (loop.time() - asked_at)
            if rest > 0:
                await asyncio.sleep(rest * random.uniform(1.0, 1.2))

    async def _send_news(self) -> None:
        while not self._is_over():
            await self._news.wait()
            await self._send()
            await asyncio.sleep(NEWS_SECONDS)

    async def _send(self) -> None:
        progress, self._progress = self._progress, None
        logs, self._logs = self._logs, []
        try:
            await self._beat(progress=progress, logs=logs)
        except ControlPlaneUnreachable:
            # to be told with the next; something newer may have come meanwhile
            if self._progress is None:
                self._progress = progress
            self._logs = [*logs, *self._logs][-MOST_LOGS:]
            self._news.notify()
        except Exception as error:
            # what could not be sent is not sent again: it may be the reason
            self._failed(error)

    def _is_over(self) -> bool:
        return self._lease.stop is LeaseStop.LOST

    async def _beat(self, **told: Any) -> None:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        stop = await self._control.heartbeat(self._lease, **told)
        self.answered_at, self.sent_at = loop.time(), max(self.sent_at, sent_at)
        if stop is None:
            return
        if stop is LeaseStop.RELEASE and self._lease.phase not in BEFORE_RUN:
            # what runs here already would only be lost
            return
        self._lease.must_stop(stop)

    def _failed(self, error: Exception) -> None:
        """Whatever it is, the heartbeats go on: without them the lease would be lost, and nobody could stop the job."""
        if isinstance(error, LeaseLost | Unauthorized | Forbidden):
            self._lease.must_stop(LeaseStop.LOST)
        elif isinstance(error, InvalidInput):
            # a control plane of another version, most likely
            log.warning("worker.heartbeat_refused", dispatch_id=self._lease.dispatch_id, why=error.detail)
        elif isinstance(error, ComfyRelayError):
            log.debug("worker.heartbeat_failed", dispatch_id=self._lease.dispatch_id, error=error.detail)
        else:
            log.error("worker.heartbeat_failed", dispatch_id=self._lease.dispatch_id, exc_info=error)
