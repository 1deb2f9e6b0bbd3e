"""Streams of job events and progress, for any number of subscribers.

One reader per shard polls for all subscribers once a second, and immediately after this process has applied updates to
the shard. Subscribers cost no queries.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.services.databases import Databases
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import history
from comfyrelay.store.tenant.history import Position
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
# Minimum pause between two reads.
MIN_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """New events and progress of a job. In a keep-alive, both are empty."""

    events: tuple[Event, ...] = ()
    progress: Any = None


@dataclass(eq=False, kw_only=True)
class _Subscriber:
    tenant_id: str
    job_id: str
    seq: int
    status: str
    events: list[Event] = field(default_factory=list)
    # Only the newest value is stored, so slow subscribers skip older ones.
    progress: Any = None
    last_progress: Any = None
    has_changes: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL_JOB

    def add(self, event: Event) -> None:
        self.seq = event.seq
        self.status = event.data.get("status", self.status)
        self.events.append(event)
        self.has_changes.set()

    def set_progress(self, progress: Any) -> None:
        if progress is not None and progress != self.last_progress:
            self.progress = self.last_progress = progress
            self.has_changes.set()

    def drain(self) -> Changes:
        self.has_changes.clear()
        changes = Changes(events=tuple(self.events), progress=self.progress)
        self.events.clear()
        self.progress = None
        return changes


class JobEvents:
    def __init__(self, databases: Databases, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._databases = databases
        self._tick_seconds = tick_seconds
        self._readers: dict[str, _EventReader] = {}
        self._is_closed = False

    async def subscribe(self, job: JobRecord, *, after_seq: int, quiet_seconds: float) -> AsyncGenerator[Changes, None]:
        """Yield the events of a job after `after_seq`, then new events, until the job ends.

        After `quiet_seconds` without changes, yields empty changes as a keep-alive.
        """
        if self._is_closed:
            return
        subscriber = _Subscriber(
            tenant_id=job.tenant_id,
            job_id=job.id,
            seq=min(after_seq, job.event_seq),
            # Missed events bring the status up to date.
            status=job.status if after_seq >= job.event_seq else JobStatus.QUEUED,
        )
        if subscriber.is_over:
            return
        shard = await self._databases.shard_name_of(job.tenant_id)
        new_reader = _EventReader(self._databases, shard, tick_seconds=self._tick_seconds)
        reader = self._readers.setdefault(shard, new_reader)
        reader.add(subscriber)
        try:
            while not self._is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await subscriber.has_changes.wait()
                yield subscriber.drain()
                if subscriber.is_over and not subscriber.events:
                    return
        finally:
            reader.remove(subscriber)

    def wake(self, shard: str, entries: Iterable[OutboxEntry]) -> None:
        """Read a shard's events now if this process has applied updates to a subscribed job."""
        reader = self._readers.get(shard)
        if reader is not None and reader.size:
            reader.wake({update.job_id for entry in entries for update in entry.updates})

    @property
    def subscribers(self) -> int:
        return sum(reader.size for reader in self._readers.values())

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for reader in self._readers.values():
            reader.close()


class _EventReader:
    """Reads the events of one shard for all subscribers of its jobs."""

    def __init__(self, databases: Databases, shard: str, *, tick_seconds: float) -> None:
        self._databases = databases
        self._shard = shard
        self._tick_seconds = tick_seconds
        self._subscribers: defaultdict[str, set[_Subscriber]] = defaultdict(set)
        self._wakeup = Wakeup()
        self._task: asyncio.Task[None] | None = None
        self._progress_read_at = 0.0

    @property
    def size(self) -> int:
        return sum(map(len, self._subscribers.values()))

    def add(self, subscriber: _Subscriber) -> None:
        self._subscribers[subscriber.job_id].add(subscriber)
        self._wakeup.notify()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def remove(self, subscriber: _Subscriber) -> None:
        self._subscribers[subscriber.job_id].discard(subscriber)
        if not self._subscribers[subscriber.job_id]:
            del self._subscribers[subscriber.job_id]

    def wake(self, job_ids: set[str]) -> None:
        if not job_ids.isdisjoint(self._subscribers):
            self._wakeup.notify()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for subscriber in self._all():
            subscriber.has_changes.set()

    def _all(self) -> list[_Subscriber]:
        return [subscriber for group in self._subscribers.values() for subscriber in group]

    async def _run(self) -> None:
        while self._subscribers:
            await self._wakeup.wait(self._tick_seconds)
            try:
                await self._read()
            except Exception:
                # The next read will find everything.
                log.warning("events.read_failed", shard=self._shard, exc_info=True)
            await asyncio.sleep(min(MIN_PAUSE_SECONDS, self._tick_seconds))

    async def _read(self) -> None:
        following = [subscriber for subscriber in self._all() if not subscriber.is_over]
        if not following:
            return
        positions: dict[str, Position] = {}
        for subscriber in following:
            position = positions.get(subscriber.job_id)
            if position is None or subscriber.seq < position.seq:
                positions[subscriber.job_id] = Position(
                    tenant_id=subscriber.tenant_id, job_id=subscriber.job_id, seq=subscriber.seq
                )
        with self._databases.watched(self._shard):
            async with self._databases.shard(self._shard).read() as tx:
                found = await history.events_after(tx, positions.values())
        for event in found:
            for subscriber in self._subscribers.get(event.job_id, ()):
                if event.seq > subscriber.seq and not subscriber.is_over:
                    subscriber.add(event)
        await self._read_progress(following)

    async def _read_progress(self, following: Iterable[_Subscriber]) -> None:
        running = [subscriber for subscriber in following if subscriber.status == JobStatus.PROCESSING]
        now = asyncio.get_running_loop().time()
        if not running or now - self._progress_read_at < self._tick_seconds:
            return
        self._progress_read_at = now
        async with self._databases.central.read() as tx:
            job_ids = {(subscriber.tenant_id, subscriber.job_id) for subscriber in running}
            found = await dispatches.progress_of(tx, job_ids)
        for subscriber in running:
            subscriber.set_progress(found.get(subscriber.job_id))
