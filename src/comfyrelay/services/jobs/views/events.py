"""Following jobs: their events as they are written, and their progress, for any number of followers.

Each shard is asked once a second for everything that is new to all who follow jobs of it, and at once when this process
has applied updates to it. A follower costs no query of its own.
"""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from comfyrelay.domain.queue.settlement import Event
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import TooManyRequests
from comfyrelay.services.databases import Databases
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import history
from comfyrelay.store.tenant.history import Position
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
# Between two reads, however many updates this process applies.
SHORTEST_PAUSE_SECONDS = 0.05
# Of one tenant, whichever jobs they follow: connections are there for everybody.
MOST_FOLLOWERS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What is new to a follower: events that were written, or how far the job is. With neither: still nothing."""

    events: tuple[Event, ...] = ()
    progress: Any = None


@dataclass(eq=False, kw_only=True)
class _Follower:
    tenant_id: str
    job_id: str
    seq: int
    status: str
    events: list[Event] = field(default_factory=list)
    # Only the newest counts, and a follower that reads slowly misses the others.
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


def _follower(job: JobRecord, after_seq: int) -> _Follower:
    is_up_to_date = after_seq >= job.event_seq
    return _Follower(
        tenant_id=job.tenant_id,
        job_id=job.id,
        seq=min(after_seq, job.event_seq),
        # the events that follow say how it went on
        status=job.status if is_up_to_date else JobStatus.QUEUED,
    )


class Events:
    def __init__(self, databases: Databases, *, tick_seconds: float = TICK_SECONDS) -> None:
        self._databases = databases
        self._tick_seconds = tick_seconds
        self._readers: dict[str, _EventReader] = {}
        self._of_tenant: Counter[str] = Counter()
        self._is_closed = False

    def check_room(self, tenant_id: str) -> None:
        """Before a job is followed: once a stream has begun, nobody can be told."""
        if self._of_tenant[tenant_id] >= MOST_FOLLOWERS:
            raise TooManyRequests(retry_after_seconds=60)

    async def follow(self, job: JobRecord, *, after_seq: int, quiet_seconds: float) -> AsyncGenerator[Changes, None]:
        """What happened to a job after `after_seq`, then what happens, up to its end.

        Empty changes come when nothing happened for `quiet_seconds`.
        """
        if self._is_closed:
            return
        follower = _follower(job, after_seq)
        if follower.is_over:
            return
        reader = self._reader_of(await self._databases.shard_name_of(job.tenant_id))
        reader.add(follower)
        self._of_tenant[job.tenant_id] += 1
        try:
            while not self._is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await follower.has_changes.wait()
                yield follower.drain()
                if follower.is_over and not follower.events:
                    return
        finally:
            reader.remove(follower)
            self._of_tenant[job.tenant_id] -= 1
            # those of whom nobody is left are forgotten
            self._of_tenant += Counter()

    def wake(self, shard: str, entries: Iterable[OutboxEntry]) -> None:
        """A shard got updates from this process: read its events at once, if somebody follows one of the jobs."""
        reader = self._readers.get(shard)
        if reader is not None and reader.size:
            reader.wake({update.job_id for entry in entries for update in entry.updates})

    @property
    def followers(self) -> int:
        return sum(each.size for each in self._readers.values())

    def close(self) -> None:
        """End all that is followed."""
        self._is_closed = True
        for each in self._readers.values():
            each.close()

    def _reader_of(self, shard: str) -> "_EventReader":
        return self._readers.setdefault(shard, _EventReader(self._databases, shard, tick_seconds=self._tick_seconds))


class _EventReader:
    """Reads the events of one shard for everybody who follows a job of it."""

    def __init__(self, databases: Databases, shard: str, *, tick_seconds: float) -> None:
        self._databases = databases
        self._shard = shard
        self._tick_seconds = tick_seconds
        self._followers: defaultdict[str, set[_Follower]] = defaultdict(set)
        self._wakeup = Wakeup()
        self._task: asyncio.Task[None] | None = None
        self._progress_read_at = 0.0

    @property
    def size(self) -> int:
        return sum(map(len, self._followers.values()))

    def add(self, follower: _Follower) -> None:
        self._followers[follower.job_id].add(follower)
        self._wakeup.notify()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def remove(self, follower: _Follower) -> None:
        self._followers[follower.job_id].discard(follower)
        if not self._followers[follower.job_id]:
            del self._followers[follower.job_id]

    def wake(self, job_ids: set[str]) -> None:
        if not job_ids.isdisjoint(self._followers):
            self._wakeup.notify()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for each in self._all():
            each.has_changes.set()

    def _all(self) -> list[_Follower]:
        return [follower for group in self._followers.values() for follower in group]

    async def _run(self) -> None:
        while self._followers:
            await self._wakeup.wait(self._tick_seconds)
            try:
                await self._read()
            except Exception:
                # whoever follows gets it later: the next read finds everything
                log.warning("events.failed", shard=self._shard, exc_info=True)
            await asyncio.sleep(min(SHORTEST_PAUSE_SECONDS, self._tick_seconds))

    async def _read(self) -> None:
        following = [each for each in self._all() if not each.is_over]
        if not following:
            return
        positions: dict[str, Position] = {}
        for follower in following:
            position = positions.get(follower.job_id)
            if position is None or follower.seq < position.seq:
                positions[follower.job_id] = Position(
                    tenant_id=follower.tenant_id, job_id=follower.job_id, seq=follower.seq
                )
        with self._databases.watched(self._shard):
            async with self._databases.shard(self._shard).read() as tx:
                found = await history.events_after(tx, positions.values())
        for event in found:
            for follower in self._followers.get(event.job_id, ()):
                if event.seq > follower.seq and not follower.is_over:
                    follower.add(event)
        await self._read_progress(following)

    async def _read_progress(self, following: Iterable[_Follower]) -> None:
        running = [each for each in following if each.status == JobStatus.PROCESSING]
        now = asyncio.get_running_loop().time()
        if not running or now - self._progress_read_at < self._tick_seconds:
            return
        self._progress_read_at = now
        async with self._databases.central.read() as tx:
            found = await dispatches.progress_of(tx, {(each.tenant_id, each.job_id) for each in running})
        for follower in running:
            follower.set_progress(found.get(follower.job_id))
