"""Logs of workers: sent only while an administrator looks.

That somebody looks is a mark in the memory of each process, as with previews: said once here, it goes to the others by
the wake-up channel, and is forgotten by itself. The worker hears of it with the answer to its next poll or heartbeat.
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

# Whoever asks looks for so long.
WATCHED_SECONDS = 60.0
# From one worker, no sooner than so after the last.
PAUSE_SECONDS = 2.0
KEPT_SECONDS = 3600.0
WORD = "logs:"


@dataclass(frozen=True, kw_only=True, slots=True)
class LastLines:
    """`received_at` is none while the worker was asked, and has not answered."""

    lines: Sequence[str]
    received_at: datetime | None


class WorkerLogService:
    def __init__(self, databases: Databases, notify_channel: NotifyChannel, *, on_asked: Callable[[str], None]) -> None:
        """`on_asked` lets go of a worker that waits, so that it hears of it."""
        self._on_asked = on_asked
        self._databases = databases
        self._notify_channel = notify_channel
        # by worker, until when somebody looks, and when it was last asked
        self._until: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._waiting: WakeupsByKey[str] = WakeupsByKey()
        notify_channel.on_word(self._on_word)

    async def last(self, worker_id: str) -> LastLines:
        """What is known, and ask for more."""
        async with self._databases.central.read() as tx:
            if await workers.get(tx, worker_id) is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            found = await worker_logs.of_worker(tx, worker_id)
        self._notify_channel.publish(f"{WORD}{quote(worker_id, safe='')}")
        return LastLines(lines=found[0], received_at=found[1]) if found else LastLines(lines=(), received_at=None)

    def are_wanted(self, worker_id: str) -> bool:
        """Whether to ask this worker now."""
        now = _now()
        not_before = self._asked_at.get(worker_id, -PAUSE_SECONDS) + PAUSE_SECONDS
        if self._until.get(worker_id, 0.0) <= now or now < not_before:
            return False
        self._asked_at[worker_id] = now
        return True

    def waking(self, worker_id: str, wakeup: Wakeup) -> AbstractContextManager[None]:
        """Give this wakeup when somebody begins to look at a worker's log."""
        return self._waiting.waiting(worker_id, wakeup)

    async def keep(self, worker_id: str, lines: Sequence[str]) -> None:
        await self._databases.central.run(TransactionStep.WORKER, lambda tx: worker_logs.keep(tx, worker_id, lines))

    async def forget_old(self) -> None:
        work = self._databases.central.run
        await work(TransactionStep.RETENTION_REMOVE, lambda tx: worker_logs.forget(tx, older_than_seconds=KEPT_SECONDS))

    def _on_word(self, word: str) -> None:
        if not word.startswith(WORD):
            return
        now, worker_id = _now(), unquote(word.removeprefix(WORD))
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._asked_at = {name: at for name, at in self._asked_at.items() if name in self._until}
        self._until[worker_id] = now + WATCHED_SECONDS
        self._waiting.notify(worker_id)
        self._on_asked(worker_id)


def _now() -> float:
    return asyncio.get_running_loop().time()
