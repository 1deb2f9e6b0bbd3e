"""Following jobs: their events as they are written, and their progress, for any number of followers.

Each pool is asked once a second for everything that is new to all who follow jobs of it, and at once when this process
has told it something. A follower costs no query of its own.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from comfyrelay.domain.records.jobs import Job
from comfyrelay.domain.settlement import Event
from comfyrelay.domain.states import TERMINAL_JOB, JobStatus
from comfyrelay.hint import Hint
from comfyrelay.services.databases import Databases
from comfyrelay.store.central import dispatches
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import history
from comfyrelay.store.tenant.history import Seen

__all__ = ["Events", "News"]

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
# Between two looks, however much this process has to tell.
SHORTEST_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """What a follower hears: events that were written, or how far the job is. With neither: still nothing."""

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
    told_progress: Any = None
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL_JOB

    def hear(self, event: Event) -> None:
        self.seq = event.seq
        self.status = event.data.get("status", self.status)
        self.events.append(event)
        self.has_news.set()

    def hear_progress(self, progress: Any) -> None:
        if progress is not None and progress != self.told_progress:
            self.progress = self.told_progress = progress
            self.has_news.set()

    def take(self) -> News:
        self.has_news.clear()
        news = News(events=tuple(self.events), progress=self.progress)
        self.events.clear()
        self.progress = None
        return news


def _follower(job: Job, after_seq: int) -> _Follower:
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
        self._watches: dict[str, _Watch] = {}
        self._is_closed = False

    async def follow(self, job: Job, *, after_seq: int, quiet_seconds: float) -> AsyncGenerator[News, None]:
        """What happened to a job after `after_seq`, then what happens, up to its end.

        Empty news come when nothing was heard for `quiet_seconds`.
        """
        if self._is_closed:
            return
        follower = _follower(job, after_seq)
        if follower.is_over:
            return
        watch = self._watch(await self._databases.pool_name_of(job.tenant_id))
        watch.add(follower)
        try:
            while not self._is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await follower.has_news.wait()
                yield follower.take()
                if follower.is_over and not follower.events:
                    return
        finally:
            watch.remove(follower)

    def told(self, pool: str, entries: Iterable[OutboxEntry]) -> None:
        """This process has told a pool something: look at once, if somebody follows one of the jobs."""
        watch = self._watches.get(pool)
        if watch is not None and watch.size:
            watch.hint({message.job_id for entry in entries for message in entry.updates})

    @property
    def followers(self) -> int:
        return sum(each.size for each in self._watches.values())

    def close(self) -> None:
        """End all that is followed."""
        self._is_closed = True
        for each in self._watches.values():
            each.close()

    def _watch(self, pool: str) -> "_Watch":
        return self._watches.setdefault(pool, _Watch(self._databases, pool, tick_seconds=self._tick_seconds))


class _Watch:
    """Everybody who follows a job of one pool, and the one who looks for all of them."""

    def __init__(self, databases: Databases, pool: str, *, tick_seconds: float) -> None:
        self._databases = databases
        self._pool = pool
        self._tick_seconds = tick_seconds
        self._followers: defaultdict[str, set[_Follower]] = defaultdict(set)
        self._hint = Hint()
        self._task: asyncio.Task[None] | None = None
        self._looked_at_progress = 0.0

    @property
    def size(self) -> int:
        return sum(map(len, self._followers.values()))

    def add(self, follower: _Follower) -> None:
        self._followers[follower.job_id].add(follower)
        self._hint.give()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def remove(self, follower: _Follower) -> None:
        self._followers[follower.job_id].discard(follower)
        if not self._followers[follower.job_id]:
            del self._followers[follower.job_id]

    def hint(self, job_ids: set[str]) -> None:
        if not job_ids.isdisjoint(self._followers):
            self._hint.give()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for each in self._all():
            each.has_news.set()

    def _all(self) -> list[_Follower]:
        return [each for group in self._followers.values() for each in group]

    async def _run(self) -> None:
        while self._followers:
            await self._hint.wait(self._tick_seconds)
            try:
                await self._look_once()
            except Exception:
                # whoever follows hears of it later: the next look finds everything
                log.warning("events.failed", pool=self._pool, exc_info=True)
            await asyncio.sleep(min(SHORTEST_PAUSE_SECONDS, self._tick_seconds))

    async def _look_once(self) -> None:
        following = [each for each in self._all() if not each.is_over]
        if not following:
            return
        least: dict[str, Seen] = {}
        for each in following:
            seen = least.get(each.job_id)
            if seen is None or each.seq < seen.seq:
                least[each.job_id] = Seen(tenant_id=each.tenant_id, job_id=each.job_id, seq=each.seq)
        with self._databases.watched(self._pool):
            async with self._databases.pool(self._pool).read() as tx:
                found = await history.events_after(tx, least.values())
        for event in found:
            for each in self._followers.get(event.job_id, ()):
                if event.seq > each.seq and not each.is_over:
                    each.hear(event)
        await self._look_at_progress(following)

    async def _look_at_progress(self, following: Iterable[_Follower]) -> None:
        running = [each for each in following if each.status == JobStatus.PROCESSING]
        now = asyncio.get_running_loop().time()
        if not running or now - self._looked_at_progress < self._tick_seconds:
            return
        self._looked_at_progress = now
        async with self._databases.central.read() as tx:
            found = await dispatches.progress_of(tx, {(each.tenant_id, each.job_id) for each in running})
        for each in running:
            each.hear_progress(found.get(each.job_id))
