"""Following a tenant: all that changes of its jobs, batches, queue, marks and wallet, for any number of open pages.

One task for each shard reads what has changed for every tenant that somebody follows; what it finds is loaded once for
each tenant and handed to all who follow it. A subscriber costs no query of its own, but for what it missed while it was
away. One that reads slowly keeps a few messages, and is then told to begin anew.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeVar

import structlog

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.errors import TooManyRequests
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.batches import Batches, BatchState
from comfyrelay.services.jobs.views.jobs import JobView, Views
from comfyrelay.services.jobs.views.overview import QueueOverview, QueueSummary, summarize_queue
from comfyrelay.services.subscriptions import Reset, StreamMessage, Subscriber
from comfyrelay.store.central.autoscaling import durations
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.store.tenant import changes, jobs
from comfyrelay.store.tenant.changes import Horizon, JobChange, MarkedOutputs
from comfyrelay.store.tenant.overview import LeasedItem

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Hints come from this process, and from others where they have made or freed work; a tick stands behind them.
TICK_SECONDS = 0.5
# Between two reads, however much happens.
GATHER_SECONDS = 0.25
# How often at most the queue is looked at: its counts, its order, and how far what runs is.
LOOK_SECONDS = 0.75
# Of one message, and of what is replayed: whoever missed more had better begin anew.
MOST_JOBS = 200
# Of one read, for all tenants of a shard together.
MOST_CHANGES = 10_000
# Of one tenant in one process.
MAX_SUBSCRIBERS = 500
MOST_WAITING = 200
# What has changed is kept for longer than this.
REPLAYED_SECONDS = 1800.0
# What is being read when all ends.
LAST_READ_SECONDS = 5.0


class Cursor(NamedTuple):
    """Up to where somebody has heard everything: the horizon of a read, and when that was."""

    txid: int
    at: int

    def __str__(self) -> str:
        return f"{self.txid}-{self.at}"

    @classmethod
    def of(cls, horizon: Horizon) -> "Cursor":
        return cls(horizon.txid, int(horizon.at.timestamp()))

    @classmethod
    def read(cls, text: str) -> "Cursor | None":
        """`None` for what is none of ours."""
        txid, _, at = text.partition("-")
        is_ours = txid.isdecimal() and at.isdecimal() and len(text) <= 40
        return cls(int(txid), int(at)) if is_ours else None

    def is_replayed(self, now: Horizon) -> bool:
        """One from the future was given out by a database that was since put back."""
        age = (now.at - datetime.fromtimestamp(min(self.at, 2**33), UTC)).total_seconds()
        return self.txid <= now.txid and age <= REPLAYED_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    jobs: Sequence[JobView]
    batches: Sequence[BatchState]
    removed: Sequence[str]
    # of outputs; nothing where none was marked
    marked: MarkedOutputs | None = None
    # tokens came that are of no job
    has_credit: bool = False

    @property
    def has_jobs(self) -> bool:
        return bool(self.jobs or self.batches or self.removed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job is that runs, and how many seconds it should still take, where that is known."""

    id: str
    progress: Any
    expected_seconds: float | None


LiveMessage = Changed | QueueSummary | Sequence[Progress]


@dataclass(eq=False)
class _Tenant:
    """What is known of one tenant that is followed."""

    id: str
    position: Horizon
    subscribers: set[Subscriber[LiveMessage]] = field(default_factory=set)
    # Changes from the horizon on that were told before: they are found again until their transactions are behind it.
    told: frozenset[int] = frozenset()
    # its counts may have changed
    is_stale: bool = True
    counts: dict[str, int] | None = None
    summary: QueueSummary | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    looked_at: float = 0.0

    @property
    def cursor(self) -> str:
        return str(Cursor.of(self.position))

    @property
    def is_busy(self) -> bool:
        counts = self.counts or {}
        return any(counts.get(each) for each in (JobStatus.QUEUED, JobStatus.PROCESSING, JobStatus.PAUSED))

    def is_due(self) -> bool:
        """Whether its queue is to be looked at now."""
        is_long_ago = asyncio.get_running_loop().time() - self.looked_at >= LOOK_SECONDS
        return is_long_ago and (self.is_stale or self.is_busy)

    def send(self, message: StreamMessage[LiveMessage]) -> None:
        for each in self.subscribers:
            each.push(message)


class Live:
    def __init__(
        self,
        databases: Databases,
        views: Views,
        batches: Batches,
        overview: QueueOverview,
        notify_channel: NotifyChannel,
    ) -> None:
        self.databases = databases
        self.overview = overview
        self._views = views
        self._batches = batches
        self._notify_channel = notify_channel
        self._readers: dict[str, _ChangeReader] = {}
        self._reads: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    async def subscribe(
        self, tenant_id: str, *, cursor: str | None, quiet_seconds: float
    ) -> AsyncGenerator[StreamMessage[LiveMessage], None]:
        """First the queue as it is; after a `cursor`, what was missed, or that it cannot be told. Then all that
        happens. A message without anything comes when nothing happened for `quiet_seconds`."""
        if self.is_closed:
            return
        shard = await self.whole(self.databases.shard_name_of(tenant_id))
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = _ChangeReader(self, shard, self._notify_channel)
        subscriber: Subscriber[LiveMessage] = Subscriber()
        # before what was missed is read: what happens meanwhile is told twice, and not never
        tenant = await reader.add(tenant_id, subscriber)
        try:
            for message in await self.whole(self._first(tenant, shard, cursor)):
                yield message
            while not self.is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await subscriber.has_messages.wait()
                if self.is_closed:
                    return
                yield subscriber.take() or StreamMessage(what=None, cursor=tenant.cursor)
        finally:
            reader.remove(tenant, subscriber)

    def check_subscriber_limit(self, tenant_id: str) -> None:
        """Before it is followed: once a stream has begun, nobody can be told."""
        found = (each.tenants.get(tenant_id) for each in self._readers.values())
        if any(each is not None and len(each.subscribers) >= MAX_SUBSCRIBERS for each in found):
            raise TooManyRequests(retry_after_seconds=60)

    async def _first(self, tenant: _Tenant, shard: str, cursor: str | None) -> list[StreamMessage[LiveMessage]]:
        # where this begins: what is told later may be told with it as well
        begins = tenant.cursor
        missed: list[StreamMessage[LiveMessage]] = []
        if cursor:
            missed.append(StreamMessage(what=await self._missed(tenant.id, shard, cursor), cursor=begins))
        if tenant.summary is None:
            tenant.summary = await self.overview.summary(tenant.id, limit=MOST_WAITING)
        return [*missed, StreamMessage(what=tenant.summary, cursor=begins)]

    async def _missed(self, tenant_id: str, shard: str, text: str) -> Changed | Reset:
        cursor = Cursor.read(text)
        if cursor is None:
            return Reset()
        async with self.databases.shard(shard).read() as tx:
            if not cursor.is_replayed(await changes.horizon(tx)):
                return Reset()
            found = await changes.since(tx, {tenant_id: cursor.txid}, limit=MOST_CHANGES + 1)
        return Reset() if len(found) > MOST_CHANGES else await self.load(tenant_id, found)

    async def load(self, tenant_id: str, found: Sequence[JobChange]) -> Changed | Reset:
        """The jobs that changed, and their batches, as they are now; which outputs were marked; and whether tokens came
        that are of no job."""
        marks = [change.marked for change in found if change.marked is not None]
        marked = reduce(or_, marks) if marks else None
        if marked is not None and len(marked.ids) > MOST_JOBS:
            marked = MarkedOutputs(frozenset(), is_all=True)
        ids = {id_ for change in found for id_ in change.ids}
        if len(ids) > MOST_JOBS:
            return Reset()
        async with (await self.databases.shard_of(tenant_id)).read() as tx:
            present = [each for each in await jobs.by_ids(tx, ids) if each.tenant_id == tenant_id]
        named = {each.batch_id for each in present if each.batch_id} | (ids - {each.id for each in present})
        # without items there is none any more
        states = [each for each in await self._batches.states(tenant_id, named) if each.total]
        return Changed(
            jobs=await self._views.view_jobs(tenant_id, present),
            batches=states,
            removed=sorted(ids - {each.id for each in present} - {each.id for each in states}),
            marked=marked,
            has_credit=any(change.is_credit for change in found),
        )

    def wake(self, shard: str) -> None:
        """A shard got updates from this process."""
        if shard in self._readers:
            self._readers[shard].wakeup.notify()

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Read to the end, also when whoever waits for it hangs up: a read that is broken off costs its connection."""
        task = asyncio.create_task(work)
        self._reads.add(task)
        task.add_done_callback(self._has_read)
        return await asyncio.shield(task)

    def _has_read(self, task: asyncio.Task[Any]) -> None:
        self._reads.discard(task)
        if not task.cancelled():
            # nobody may be left to be told
            task.exception()

    @property
    def subscribers(self) -> int:
        return sum(each.size for each in self._readers.values())

    def close(self) -> None:
        """End all that is followed."""
        self.is_closed = True
        for each in self._readers.values():
            each.close()

    async def wait_closed(self) -> None:
        """After `close`: when nothing is read any more."""
        reading = {*self._reads, *(each.task for each in self._readers.values() if each.task is not None)}
        if reading:
            _done, late = await asyncio.wait(reading, timeout=LAST_READ_SECONDS)
            for each in late:
                each.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class _ChangeReader:
    """Reads what changed in one shard for everybody who follows a tenant of it."""

    def __init__(self, live: Live, shard: str, notify_channel: NotifyChannel) -> None:
        self._live = live
        self._shard = shard
        self.tenants: dict[str, _Tenant] = {}
        self.wakeup = notify_channel.subscribe()
        self.task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        return sum(len(each.subscribers) for each in self.tenants.values())

    async def add(self, tenant_id: str, subscriber: Subscriber[LiveMessage]) -> _Tenant:
        if tenant_id not in self.tenants:
            horizon = await self._live.whole(self._horizon())
            # somebody else may have come first meanwhile
            self.tenants.setdefault(tenant_id, _Tenant(tenant_id, horizon))
        tenant = self.tenants[tenant_id]
        tenant.subscribers.add(subscriber)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        return tenant

    async def _horizon(self) -> Horizon:
        async with self._live.databases.shard(self._shard).read() as tx:
            return await changes.horizon(tx)

    def remove(self, tenant: _Tenant, subscriber: Subscriber[LiveMessage]) -> None:
        tenant.subscribers.discard(subscriber)
        if not tenant.subscribers and self.tenants.get(tenant.id) is tenant:
            del self.tenants[tenant.id]

    def close(self) -> None:
        # it ends by itself: it may be reading
        self.wakeup.notify()
        for tenant in self.tenants.values():
            for subscriber in tenant.subscribers:
                subscriber.has_messages.set()

    async def _run(self) -> None:
        while self.tenants and not self._live.is_closed:
            await self.wakeup.wait(TICK_SECONDS)
            try:
                await self._read()
            except Exception:
                # nobody has moved on: the next read finds everything
                log.warning("live.failed", shard=self._shard, exc_info=True)
            await asyncio.sleep(GATHER_SECONDS)

    async def _read(self) -> None:
        tenants = dict(self.tenants)
        positions = {each.id: each.position.txid for each in tenants.values()}
        if not positions:
            return
        with self._live.databases.watched(self._shard):
            async with self._live.databases.shard(self._shard).read() as tx:
                horizon = await changes.horizon(tx)
                found = await changes.since(tx, positions, limit=MOST_CHANGES + 1)
        theirs: dict[str, list[JobChange]] = {each: [] for each in tenants}
        for change in found:
            theirs[change.tenant_id].append(change)
        is_too_much = len(found) > MOST_CHANGES
        for tenant in tenants.values():
            try:
                await self._send_changes(tenant, theirs[tenant.id], horizon, is_too_much=is_too_much)
            except Exception:
                log.warning("live.failed", shard=self._shard, tenant_id=tenant.id, exc_info=True)
        # what has happened comes first
        await self._read_queues([each for each in tenants.values() if each.is_due()])

    async def _send_changes(
        self, tenant: _Tenant, found: Sequence[JobChange], horizon: Horizon, *, is_too_much: bool
    ) -> None:
        new = [each for each in found if each.id not in tenant.told]
        what: Changed | Reset | None = None
        if is_too_much:
            what = Reset()
        elif new:
            what = await self._live.load(tenant.id, new)
        tenant.position = horizon
        tenant.told = frozenset(each.id for each in found if each.txid >= horizon.txid)
        if what is not None:
            tenant.is_stale = True
            tenant.send(StreamMessage(what=what, cursor=tenant.cursor))

    async def _read_queues(self, tenants: Sequence[_Tenant]) -> None:
        """The queue's order and the progress of jobs are told by no change: they are looked at while jobs wait or
        run, for all tenants together."""
        if not tenants:
            return
        if stale := [each for each in tenants if each.is_stale or each.counts is None]:
            counts = await self._live.overview.counts_of(self._shard, [each.id for each in stale])
            for each in stale:
                each.counts, each.is_stale = counts[each.id], False
        leased_and_waiting = await self._live.overview.leased_and_waiting(
            [each.id for each in tenants], limit=MOST_WAITING
        )
        for each in tenants:
            each.looked_at = asyncio.get_running_loop().time()
            await self._send_queue(each, *leased_and_waiting[each.id])

    async def _send_queue(self, tenant: _Tenant, leased: Sequence[LeasedItem], waiting: Sequence[Unit]) -> None:
        summary = summarize_queue(tenant.counts or {}, leased, waiting)
        if tenant.summary is None or _contents(summary) != _contents(tenant.summary):
            tenant.send(StreamMessage(what=summary, cursor=tenant.cursor))
        tenant.summary = summary
        running = [each for each in leased if not each.is_only_fetched]
        moved = [each for each in running if each.progress and each.progress != tenant.progress.get(each.job_id)]
        tenant.progress = {each.job_id: each.progress for each in running}
        if moved:
            tenant.send(StreamMessage(what=await self._progress(moved)))

    async def _progress(self, running: Sequence[LeasedItem]) -> list[Progress]:
        async with self._live.databases.central.read() as tx:
            known = await durations.known(tx, {each.workflow_id for each in running})
        found = []
        for each in running:
            learnt = known.get((each.workflow_id, each.effect_id or durations.ALL))
            learnt = learnt or known.get((each.workflow_id, durations.ALL))
            left = None if learnt is None else max(0.0, learnt.mean_seconds - each.seconds)
            found.append(Progress(id=each.job_id, progress=each.progress, expected_seconds=left))
        return found


def _contents(summary: QueueSummary) -> tuple[Any, ...]:
    """What of it is told."""
    return dict(summary.counts), list(summary.running), list(summary.waiting)
