"""Streams of changes to a tenant's jobs, batches, queue, marks and wallet, for any number of open pages.

One task per shard reads the changes of all subscribed tenants, loads them once per tenant and sends them to the
tenant's subscribers. Subscribers cost no queries, except to catch up after a reconnect. The backlog of a slow
subscriber is bounded; beyond the limit, the subscriber must reload.
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

from comfyrelay.domain.queue.customer_texts import progress_for_customer
from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.protocol.jobs import LiveProgress
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.batches import Batches, BatchState
from comfyrelay.services.jobs.views.jobs import JobView, JobViews
from comfyrelay.services.jobs.views.overview import QueueOverview, QueueRows, QueueSummary, summarize_queue
from comfyrelay.services.subscriptions import Reset, StreamMessage, Subscriber
from comfyrelay.store.central.queue import positions
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.store.tenant import changes, jobs
from comfyrelay.store.tenant.changes import Horizon, JobChange, MarkedOutputs
from comfyrelay.store.tenant.overview import LeasedItem

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Wakeups are best effort, so this tick bounds the delay.
TICK_SECONDS = 0.5
# Minimum pause between two reads.
PAUSE_SECONDS = 0.25
# Minimum interval between two reads of a queue's counts, order and progress.
QUEUE_READ_SECONDS = 0.75
# Maximum number of changes per message. Subscribers that missed more changes must reload.
MAX_JOBS = 200
# Maximum number of changes per read, for all tenants of a shard together.
MAX_CHANGES = 10_000
MAX_WAITING = 200
# Changes are kept for longer than this.
REPLAY_SECONDS = 1800.0
# The maximum time that `wait_closed` waits for reads in progress.
CLOSE_SECONDS = 5.0


class Cursor(NamedTuple):
    """The point up to which a subscriber has received everything: the horizon and the time of a read."""

    txid: int
    at: int

    def __str__(self) -> str:
        return f"{self.txid}-{self.at}"

    @classmethod
    def from_horizon(cls, horizon: Horizon) -> "Cursor":
        return cls(horizon.txid, int(horizon.at.timestamp()))

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """Parse a cursor; `None` if it is invalid."""
        txid, _, at = text.partition("-")
        is_valid = txid.isdecimal() and at.isdecimal() and len(text) <= 40
        return cls(int(txid), int(at)) if is_valid else None

    def can_replay(self, now: Horizon) -> bool:
        """Whether all changes since the cursor are still stored.

        A cursor from the future means that the database was restored since.
        """
        age = (now.at - datetime.fromtimestamp(min(self.at, 2**33), UTC)).total_seconds()
        return self.txid <= now.txid and age <= REPLAY_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    jobs: Sequence[JobView]
    batches: Sequence[BatchState]
    removed: Sequence[str]
    # Marked outputs, if any.
    marked: MarkedOutputs | None = None
    # The wallet received tokens that belong to no job.
    has_credit: bool = False

    @property
    def has_jobs(self) -> bool:
        return bool(self.jobs or self.batches or self.removed)


LiveMessage = Changed | QueueSummary | Sequence[LiveProgress]


@dataclass(eq=False)
class _Tenant:
    """The state of a tenant with subscribers."""

    id: str
    position: Horizon
    subscribers: set[Subscriber[LiveMessage]] = field(default_factory=set)
    # Changes already sent, which later reads find again until the horizon passes their transactions.
    sent: frozenset[int] = frozenset()
    is_stale: bool = True
    counts: dict[str, int] | None = None
    summary: QueueSummary | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    queue_read_at: float = 0.0

    @property
    def cursor(self) -> str:
        return str(Cursor.from_horizon(self.position))

    def is_due(self) -> bool:
        """Whether to read the tenant's queue now."""
        counts = self.counts or {}
        is_busy = any(counts.get(status) for status in (JobStatus.QUEUED, JobStatus.PROCESSING, JobStatus.PAUSED))
        elapsed = asyncio.get_running_loop().time() - self.queue_read_at
        return elapsed >= QUEUE_READ_SECONDS and (self.is_stale or is_busy)

    def send(self, message: StreamMessage[LiveMessage]) -> None:
        for subscriber in self.subscribers:
            subscriber.push(message)


class LiveUpdates:
    def __init__(
        self,
        databases: Databases,
        views: JobViews,
        batches: Batches,
        overview: QueueOverview,
        notify_channel: NotifyChannel,
    ) -> None:
        self.databases = databases
        self.overview = overview
        self._views = views
        self.is_of_customer = views.is_of_customer
        self._batches = batches
        self._notify_channel = notify_channel
        self._readers: dict[str, _ChangeReader] = {}
        self._reads: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    async def subscribe(
        self, tenant_id: str, *, cursor: str | None, quiet_seconds: float
    ) -> AsyncGenerator[StreamMessage[LiveMessage], None]:
        """Yield the changes since `cursor`, or a `Reset`, then the current queue, then all new changes.

        After `quiet_seconds` without changes, yields an empty message as a keep-alive.
        """
        if self.is_closed:
            return
        shard = await self.finish_read(self.databases.shard_name_of(tenant_id))
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = _ChangeReader(self, shard, self._notify_channel)
        subscriber: Subscriber[LiveMessage] = Subscriber()
        # Subscribe before reading the missed changes, so that changes in between are sent twice rather than lost.
        tenant = await reader.add(tenant_id, subscriber)
        try:
            for message in await self.finish_read(self._first_messages(tenant, shard, cursor)):
                yield message
            while not self.is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await subscriber.has_messages.wait()
                if self.is_closed:
                    return
                yield subscriber.pop() or StreamMessage(content=None, cursor=tenant.cursor)
        finally:
            reader.remove(tenant, subscriber)

    async def _first_messages(
        self, tenant: _Tenant, shard: str, cursor: str | None
    ) -> list[StreamMessage[LiveMessage]]:
        # Read the cursor first: later messages may then repeat changes, but never skip any.
        start = tenant.cursor
        missed: list[StreamMessage[LiveMessage]] = []
        if cursor:
            missed.append(StreamMessage(content=await self._read_missed(tenant.id, shard, cursor), cursor=start))
        if tenant.summary is None:
            tenant.summary = await self.overview.summary(tenant.id, limit=MAX_WAITING)
        return [*missed, StreamMessage(content=tenant.summary, cursor=start)]

    async def _read_missed(self, tenant_id: str, shard: str, text: str) -> Changed | Reset:
        cursor = Cursor.parse(text)
        if cursor is None:
            return Reset()
        async with self.databases.shard(shard).read() as tx:
            if not cursor.can_replay(await changes.horizon(tx)):
                return Reset()
            found = await changes.since(tx, {tenant_id: cursor.txid}, limit=MAX_CHANGES + 1)
        return Reset() if len(found) > MAX_CHANGES else await self.load(tenant_id, found)

    async def load(self, tenant_id: str, found: Sequence[JobChange]) -> Changed | Reset:
        """Load the current state of changed jobs and their batches."""
        marks = [change.marked for change in found if change.marked is not None]
        marked = reduce(or_, marks) if marks else None
        if marked is not None and len(marked.ids) > MAX_JOBS:
            marked = MarkedOutputs(frozenset(), is_all=True)
        ids = {id_ for change in found for id_ in change.ids}
        if len(ids) > MAX_JOBS:
            return Reset()
        async with (await self.databases.shard_of(tenant_id)).read() as tx:
            present = [job for job in await jobs.by_ids(tx, ids) if job.tenant_id == tenant_id]
        other_ids = ids - {job.id for job in present}
        batch_ids = {job.batch_id for job in present if job.batch_id} | other_ids
        # A batch without jobs counts as removed.
        states = [state for state in await self._batches.states(tenant_id, batch_ids) if state.total]
        return Changed(
            jobs=await self._views.view_jobs(tenant_id, present),
            batches=states,
            removed=sorted(other_ids - {state.id for state in states}),
            marked=marked,
            has_credit=any(change.is_credit for change in found),
        )

    def wake(self, shard: str) -> None:
        """Read a shard now, because this process has applied updates to it."""
        if shard in self._readers:
            self._readers[shard].wakeup.notify()

    async def finish_read(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish a read even if the client disconnects, because an interrupted read loses a database connection."""
        task = asyncio.create_task(work)
        self._reads.add(task)
        task.add_done_callback(self._discard_read)
        return await asyncio.shield(task)

    def _discard_read(self, task: asyncio.Task[Any]) -> None:
        self._reads.discard(task)
        if not task.cancelled():
            # Retrieve the exception, because the caller may have disconnected.
            task.exception()

    @property
    def subscribers(self) -> int:
        return sum(reader.size for reader in self._readers.values())

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        for reader in self._readers.values():
            reader.close()

    async def wait_closed(self) -> None:
        """Wait for the reads in progress after `close`."""
        reading = {*self._reads, *(reader.task for reader in self._readers.values() if reader.task is not None)}
        if reading:
            _done, late = await asyncio.wait(reading, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class _ChangeReader:
    """Reads the changes of one shard for all subscribed tenants."""

    def __init__(self, live: LiveUpdates, shard: str, notify_channel: NotifyChannel) -> None:
        self._live = live
        self._shard = shard
        self.tenants: dict[str, _Tenant] = {}
        self.wakeup = notify_channel.subscribe()
        self.task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        return sum(len(tenant.subscribers) for tenant in self.tenants.values())

    async def add(self, tenant_id: str, subscriber: Subscriber[LiveMessage]) -> _Tenant:
        if tenant_id not in self.tenants:
            horizon = await self._live.finish_read(self._horizon())
            # Another subscriber may have added the tenant in the meantime.
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
        # Wake the task instead of canceling it, because it may be reading.
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
                # The positions have not moved, so the next read will find everything.
                log.warning("live.read_failed", shard=self._shard, exc_info=True)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self) -> None:
        tenants = dict(self.tenants)
        positions = {tenant.id: tenant.position.txid for tenant in tenants.values()}
        if not positions:
            return
        with self._live.databases.watched(self._shard):
            async with self._live.databases.shard(self._shard).read() as tx:
                horizon = await changes.horizon(tx)
                found = await changes.since(tx, positions, limit=MAX_CHANGES + 1)
        by_tenant: dict[str, list[JobChange]] = {tenant_id: [] for tenant_id in tenants}
        for change in found:
            by_tenant[change.tenant_id].append(change)
        is_incomplete = len(found) > MAX_CHANGES
        for tenant in tenants.values():
            try:
                await self._send_changes(tenant, by_tenant[tenant.id], horizon, is_incomplete=is_incomplete)
            except Exception:
                log.warning("live.send_failed", shard=self._shard, tenant_id=tenant.id, exc_info=True)
        await self._read_queues([tenant for tenant in tenants.values() if tenant.is_due()])

    async def _send_changes(
        self, tenant: _Tenant, found: Sequence[JobChange], horizon: Horizon, *, is_incomplete: bool
    ) -> None:
        new = [change for change in found if change.id not in tenant.sent]
        content: Changed | Reset | None = None
        if is_incomplete:
            content = Reset()
        elif new:
            content = await self._live.load(tenant.id, new)
        tenant.position = horizon
        tenant.sent = frozenset(change.id for change in found if change.txid >= horizon.txid)
        if content is not None:
            tenant.is_stale = True
            tenant.send(StreamMessage(content=content, cursor=tenant.cursor))

    async def _read_queues(self, tenants: Sequence[_Tenant]) -> None:
        """Poll the queue order and the progress of all tenants with active jobs, because these changes write no
        rows."""
        if not tenants:
            return
        if stale := [tenant for tenant in tenants if tenant.is_stale or tenant.counts is None]:
            counts = await self._live.overview.counts_of(self._shard, [tenant.id for tenant in stale])
            for tenant in stale:
                tenant.counts, tenant.is_stale = counts[tenant.id], False
        queues = await self._live.overview.rows_of([tenant.id for tenant in tenants], limit=MAX_WAITING)
        for tenant in tenants:
            tenant.queue_read_at = asyncio.get_running_loop().time()
            await self._send_queue(tenant, queues[tenant.id])

    async def _send_queue(self, tenant: _Tenant, rows: QueueRows) -> None:
        summary = summarize_queue(tenant.counts or {}, rows)
        if tenant.summary is None or _contents(summary) != _contents(tenant.summary):
            tenant.send(StreamMessage(content=summary, cursor=tenant.cursor))
        tenant.summary = summary
        running = [item for item in rows.leased if not item.is_prefetched]
        changed = [item for item in running if item.progress and item.progress != tenant.progress.get(item.job_id)]
        tenant.progress = {item.job_id: item.progress for item in running}
        if changed:
            tenant.send(StreamMessage(content=await self._progress(changed)))

    async def _progress(self, running: Sequence[LeasedItem]) -> list[LiveProgress]:
        async with self._live.databases.central.read() as tx:
            usual = await positions.mean_durations(tx, (item.workflow_id for item in running))
        found = []
        for item in running:
            seconds = usual.get(item.workflow_id)
            left = None if seconds is None else max(0.0, seconds - item.seconds)
            is_customer = self._live.is_of_customer(item.effect_id)
            progress = progress_for_customer(item.progress) if is_customer else item.progress
            found.append(LiveProgress(id=item.job_id, progress=progress, expected_seconds=left))
        return found


def _contents(summary: QueueSummary) -> tuple[Any, ...]:
    """Return the part of a summary that subscribers get."""
    return dict(summary.counts), list(summary.running), list(summary.waiting), summary.paused_at
