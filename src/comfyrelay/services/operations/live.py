"""Stream changes of the whole service to administrators' open pages.

Changes by administrators, and changes without a new row, are published to all processes through the notify channel. One
task per process finds all other changes by reading the newest rows of a few tables. The cost does not depend on the
number of subscribers.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import structlog

from comfyrelay.services.databases import Databases
from comfyrelay.services.subscriptions import Reset, StreamMessage, Subscriber
from comfyrelay.store.central import changes
from comfyrelay.store.central.changes import NewestIds, WorkerFlags
from comfyrelay.store.notify import NotifyChannel

log = structlog.get_logger(__name__)

# The interval between reads without a wakeup, and the minimum interval between reads, which batches changes.
TICK_SECONDS = 2.0
BATCH_SECONDS = 0.5
# Ids are not in commit order, so this many ids before the newest are read again.
OVERLAP = 200
# If more ids have changed, only `ANY` is sent.
MAX_NAMED = 200
ANY = "*"
TOPIC = "changed:"

ChangedKinds = Mapping[str, list[str] | bool]
# Kinds that are sent with ids, and kinds that are sent as a flag.
NAMED = frozenset({"workers", "fleets", "workflows", "effects", "tenants"})
FLAGS = frozenset({"dispatches", "samples", "webhooks", "reconcile"})


@dataclass(kw_only=True, slots=True)
class PendingChanges:
    """Changes by kind that have not been sent yet."""

    named: dict[str, set[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    def add(self, kind: str, ids: Collection[str] = ()) -> None:
        if kind in FLAGS:
            self.flags.add(kind)
        elif kind in NAMED and ids:
            self.named.setdefault(kind, set()).update(ids)

    @property
    def by_kind(self) -> ChangedKinds:
        """Return the message: ids by kind, or `ANY` if there are too many."""
        is_any = {kind: len(ids) > MAX_NAMED or ANY in ids for kind, ids in self.named.items()}
        named = {kind: [ANY] if is_any[kind] else sorted(ids) for kind, ids in self.named.items()}
        return {**{kind: named.get(kind, []) for kind in sorted(NAMED)}, **{kind: kind in self.flags for kind in FLAGS}}

    def __bool__(self) -> bool:
        return bool(self.named or self.flags)


class AdminLive:
    def __init__(self, databases: Databases, notify_channel: NotifyChannel, *, worker_offline_seconds: float) -> None:
        self._databases = databases
        self._notify_channel = notify_channel
        self._offline_seconds = worker_offline_seconds
        self._subscribers: set[Subscriber[ChangedKinds]] = set()
        self._received = PendingChanges()
        self._wakeup = notify_channel.subscribe()
        self._task: asyncio.Task[None] | None = None
        self._has_read = asyncio.Event()
        self._newest: NewestIds | None = None
        self._standings: dict[str, WorkerFlags] = {}
        # Audit entries in the overlap that have already been sent.
        self._sent: frozenset[int] = frozenset()
        # Kinds to publish soon.
        self._soon: dict[str, asyncio.TimerHandle] = {}
        self.is_closed = False
        notify_channel.on_message(self._on_message)

    def publish(self, kind: str, id_: str = ANY) -> None:
        """Notify the subscribers of all processes of a change."""
        self._notify_channel.publish(f"{TOPIC}{kind}:{quote(id_, safe='')}")

    def publish_soon(self, kind: str) -> None:
        """Publish a change of a frequent kind. Such changes are batched, because each message is a database
        notification."""
        if kind not in self._soon and not self.is_closed:
            self._soon[kind] = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._publish_now, kind)

    def _publish_now(self, kind: str) -> None:
        del self._soon[kind]
        self.publish(kind)

    async def subscribe(self, *, quiet_seconds: float) -> AsyncGenerator[StreamMessage[ChangedKinds], None]:
        """Yield a `Reset`, then changes, and a keep-alive after `quiet_seconds` without changes."""
        if self.is_closed:
            return
        subscriber: Subscriber[ChangedKinds] = Subscriber()
        self._subscribers.add(subscriber)
        if self._task is None or self._task.done():
            self._newest = None
            self._has_read.clear()
            self._task = asyncio.create_task(self._run())
        try:
            # No change after the first read is missed, so the page can load its data now.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(quiet_seconds):
                    await self._has_read.wait()
            yield StreamMessage(content=Reset())
            while not self.is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await subscriber.has_messages.wait()
                if self.is_closed:
                    return
                yield subscriber.pop() or StreamMessage(content=None)
        finally:
            self._subscribers.discard(subscriber)

    def close(self) -> None:
        """Close all subscriptions."""
        self.is_closed = True
        while self._soon:
            self._soon.popitem()[1].cancel()
        self._has_read.set()
        self._wakeup.notify()
        for subscriber in self._subscribers:
            subscriber.has_messages.set()

    async def wait_closed(self) -> None:
        """Wait after `close` until the reading task has stopped."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def _on_message(self, message: str) -> None:
        if not message.startswith(TOPIC):
            return
        kind, _, id_ = message.removeprefix(TOPIC).partition(":")
        self._received.add(kind, [unquote(id_)])
        self._wakeup.notify()

    async def _run(self) -> None:
        while self._subscribers and not self.is_closed:
            try:
                await self._send_changes()
                self._has_read.set()
            except Exception:
                # The next read will find the same changes.
                log.warning("live.read_failed", exc_info=True)
            await asyncio.sleep(BATCH_SECONDS)
            await self._wakeup.wait(TICK_SECONDS)

    async def _send_changes(self) -> None:
        found = await self._read_changes()
        received, self._received = self._received, PendingChanges()
        for kind, ids in received.named.items():
            found.add(kind, ids)
        found.flags |= received.flags
        if found:
            message: StreamMessage[ChangedKinds] = StreamMessage(content=found.by_kind)
            for subscriber in self._subscribers:
                subscriber.push(message)

    async def _read_changes(self) -> PendingChanges:
        found, before = PendingChanges(), self._newest
        limit = MAX_NAMED + OVERLAP
        async with self._databases.central.read() as tx:
            newest = await changes.newest_ids(tx)
            standings = await changes.worker_flags(tx, offline_seconds=self._offline_seconds)
            after = max(0, (newest.audit or 0) - OVERLAP) if before is None else max(0, (before.audit or 0) - OVERLAP)
            entries = await changes.audited_workers(tx, after, limit=limit)
            new = [worker for id_, worker in entries if id_ not in self._sent]
            known = self._standings
            changed = {worker for worker in {*standings, *known} if standings.get(worker) != known.get(worker)}
            if before is not None:
                found.add("workers", {*changed, *filter(None, new)} if len(entries) < limit else [ANY])
                if newest.decision != before.decision:
                    found.add("fleets", await changes.decided_fleets(tx, before.decision or 0))
                if standings.keys() != self._standings.keys():
                    found.add("fleets", await changes.fleets_of(tx, changed) or [ANY])
                if newest.tenant != before.tenant:
                    ids = await changes.tenants_after(tx, before.tenant or "", limit=MAX_NAMED)
                    found.add("tenants", ids)
        if before is not None:
            if new or newest.dispatch != before.dispatch:
                found.add("dispatches")
            if newest.sample != before.sample:
                found.add("samples")
            if (newest.run, newest.runs) != (before.run, before.runs):
                found.add("reconcile")
        self._newest, self._standings = newest, standings
        self._sent = frozenset(id_ for id_, _ in entries)
        return found
