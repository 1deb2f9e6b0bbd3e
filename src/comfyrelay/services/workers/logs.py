"""Logs of workers, sent only while an administrator watches.

Each process remembers for a minute which workers are watched, and informs the other processes through the notify
channel. The response to the next poll or heartbeat asks the worker for its lines.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote

from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.workers import worker_logs, workers
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.wakeup import Wakeup, WakeupsByKey

# A worker's log counts as watched for this long after a request.
WATCHED_SECONDS = 60.0
# Minimum interval between two requests to a worker.
PAUSE_SECONDS = 2.0
RETENTION_SECONDS = 3600.0
TOPIC = "logs:"


@dataclass(frozen=True, kw_only=True, slots=True)
class LastLines:
    """A worker's last log lines. `received_at` is `None` until the worker has sent lines."""

    lines: Sequence[str]
    received_at: datetime | None


class WorkerLogService:
    def __init__(
        self, databases: Databases, notify_channel: NotifyChannel, *, on_request: Callable[[str], None]
    ) -> None:
        """`on_request` answers a worker's waiting poll, so that the worker receives the request."""
        self._on_request = on_request
        self._databases = databases
        self._notify_channel = notify_channel
        # By worker: the time until which its log is watched, and the time of the last request for lines.
        self._until: dict[str, float] = {}
        self._requested_at: dict[str, float] = {}
        self._waiting: WakeupsByKey[str] = WakeupsByKey()
        notify_channel.on_message(self._on_message)

    async def read_last(self, worker_id: str) -> LastLines:
        """Return the stored lines, and ask the worker for new ones."""
        async with self._databases.central.read() as tx:
            if await workers.get(tx, worker_id) is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            found = await worker_logs.of_worker(tx, worker_id)
        self._notify_channel.publish(f"{TOPIC}{quote(worker_id, safe='')}")
        lines, received_at = found or ((), None)
        return LastLines(lines=lines, received_at=received_at)

    def should_request(self, worker_id: str) -> bool:
        """Return whether to ask the worker for its lines now. If so, start a new interval."""
        now = _now()
        not_before = self._requested_at.get(worker_id, -PAUSE_SECONDS) + PAUSE_SECONDS
        if self._until.get(worker_id, 0.0) <= now or now < not_before:
            return False
        self._requested_at[worker_id] = now
        return True

    def waking(self, worker_id: str, wakeup: Wakeup) -> AbstractContextManager[None]:
        """Notify this wakeup when an administrator requests the worker's log."""
        return self._waiting.waiting(worker_id, wakeup)

    async def store(self, worker_id: str, lines: Sequence[str]) -> None:
        await self._databases.central.run(TransactionStep.WORKER, lambda tx: worker_logs.replace(tx, worker_id, lines))

    async def delete_old(self) -> None:
        await self._databases.central.run(
            TransactionStep.RETENTION_REMOVE,
            lambda tx: worker_logs.delete_old(tx, older_than_seconds=RETENTION_SECONDS),
        )

    def _on_message(self, message: str) -> None:
        if not message.startswith(TOPIC):
            return
        now, worker_id = _now(), unquote(message.removeprefix(TOPIC))
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._requested_at = {name: at for name, at in self._requested_at.items() if name in self._until}
        self._until[worker_id] = now + WATCHED_SECONDS
        self._waiting.notify(worker_id)
        self._on_request(worker_id)


def _now() -> float:
    return asyncio.get_running_loop().time()
