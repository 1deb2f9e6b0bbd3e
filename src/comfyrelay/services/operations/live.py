"""Following the service as a whole: which kinds of things have changed, for administrators with a page open.

What an administrator does is said to all processes by the wake-up channel, and so is what leaves no new row behind:
what users ask of jobs that wait, and what came of webhooks. All else is looked for by one task of each process while
somebody follows, by the newest rows of a few tables; it costs the same however many follow."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import structlog

from comfyrelay.errors import TooManyRequests
from comfyrelay.services.databases import Databases
from comfyrelay.services.subscriptions import Reset, StreamMessage, Subscriber
from comfyrelay.store.central import changes
from comfyrelay.store.central.changes import Newest, WorkerStanding
from comfyrelay.store.notify import NotifyChannel

log = structlog.get_logger(__name__)

# Without a wakeup; then no sooner than so, so that what happens close together is told together.
TICK_SECONDS = 2.0
GATHER_SECONDS = 0.5
# Ids are not quite in the order of commits: so many before the newest are looked at again.
OVERLAP = 200
# Of more than these it is told that anything of the kind may have changed.
MOST_NAMED = 200
MAX_SUBSCRIBERS = 500
ANY = "*"
WORD = "changed:"

ChangedKinds = Mapping[str, list[str] | bool]
# Kinds of which it is told which ones have changed, and those of which only that something has.
NAMED = frozenset({"workers", "fleets", "workflows", "effects", "tenants"})
FLAGS = frozenset({"dispatches", "samples", "webhooks", "reconcile"})


@dataclass(kw_only=True, slots=True)
class News:
    """What has changed, by kind."""

    named: dict[str, set[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    def add(self, kind: str, ids: Collection[str] = ()) -> None:
        if kind in FLAGS:
            self.flags.add(kind)
        elif kind in NAMED and ids:
            self.named.setdefault(kind, set()).update(ids)

    @property
    def by_kind(self) -> ChangedKinds:
        """As it is told: ids by kind, one that stands for any where there are very many."""
        is_any = {kind: len(ids) > MOST_NAMED or ANY in ids for kind, ids in self.named.items()}
        named = {kind: [ANY] if is_any[kind] else sorted(ids) for kind, ids in self.named.items()}
        return {**{kind: named.get(kind, []) for kind in sorted(NAMED)}, **{kind: kind in self.flags for kind in FLAGS}}

    def __bool__(self) -> bool:
        return bool(self.named or self.flags)


class AdminLive:
    def __init__(self, databases: Databases, notify_channel: NotifyChannel, *, worker_stale_seconds: float) -> None:
        self._databases = databases
        self._notify_channel = notify_channel
        self._stale_seconds = worker_stale_seconds
        self._subscribers: set[Subscriber[ChangedKinds]] = set()
        self._heard = News()
        self._wakeup = notify_channel.subscribe()
        self._task: asyncio.Task[None] | None = None
        self._has_looked = asyncio.Event()
        self._newest: Newest | None = None
        self._standings: dict[str, WorkerStanding] = {}
        # entries that were told of, among those that are looked at again
        self._told: frozenset[int] = frozenset()
        # what is to be told soon, together with what else changes until then
        self._soon: dict[str, asyncio.TimerHandle] = {}
        self.is_closed = False
        notify_channel.on_word(self._on_word)

    def publish(self, kind: str, id_: str = ANY) -> None:
        """Somebody has changed something: those who follow here and elsewhere are to know."""
        self._notify_channel.publish(f"{WORD}{kind}:{quote(id_, safe='')}")

    def publish_soon(self, kind: str) -> None:
        """Something of a kind that changes often has changed, by whatever: it is said once for all that does so in a
        moment, for each word costs a notification of the whole database."""
        if kind not in self._soon and not self.is_closed:
            self._soon[kind] = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._publish_now, kind)

    def _publish_now(self, kind: str) -> None:
        del self._soon[kind]
        self.publish(kind)

    def check_subscriber_limit(self) -> None:
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise TooManyRequests(retry_after_seconds=60)

    async def subscribe(self, *, quiet_seconds: float) -> AsyncGenerator[StreamMessage[ChangedKinds], None]:
        """First that all is to be fetched anew, then what changes; a message without anything when nothing did for
        `quiet_seconds`."""
        if self.is_closed:
            return
        subscriber: Subscriber[ChangedKinds] = Subscriber()
        self._subscribers.add(subscriber)
        if self._task is None or self._task.done():
            self._newest = None
            self._has_looked.clear()
            self._task = asyncio.create_task(self._run())
        try:
            # what changes after this is told, so what is fetched after it is never old for long
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(quiet_seconds):
                    await self._has_looked.wait()
            yield StreamMessage(what=Reset())
            while not self.is_closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(quiet_seconds):
                        await subscriber.has_messages.wait()
                if self.is_closed:
                    return
                yield subscriber.pop() or StreamMessage(what=None)
        finally:
            self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End all that is followed."""
        self.is_closed = True
        while self._soon:
            self._soon.popitem()[1].cancel()
        self._has_looked.set()
        self._wakeup.notify()
        for each in self._subscribers:
            each.has_messages.set()

    async def wait_closed(self) -> None:
        """After `close`: when nothing is read any more."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def _on_word(self, word: str) -> None:
        if not word.startswith(WORD):
            return
        kind, _, id_ = word.removeprefix(WORD).partition(":")
        self._heard.add(kind, [unquote(id_)])
        self._wakeup.notify()

    async def _run(self) -> None:
        while self._subscribers and not self.is_closed:
            try:
                await self._send_news()
                self._has_looked.set()
            except Exception:
                # nothing has been passed: the next look finds it
                log.warning("live.failed", exc_info=True)
            await asyncio.sleep(GATHER_SECONDS)
            await self._wakeup.wait(TICK_SECONDS)

    async def _send_news(self) -> None:
        found = await self._found()
        heard, self._heard = self._heard, News()
        for kind, ids in heard.named.items():
            found.add(kind, ids)
        found.flags |= heard.flags
        if found:
            message: StreamMessage[ChangedKinds] = StreamMessage(what=found.by_kind)
            for each in self._subscribers:
                each.push(message)

    async def _found(self) -> News:
        found, before = News(), self._newest
        most = MOST_NAMED + OVERLAP
        async with self._databases.central.read() as tx:
            newest = await changes.newest(tx)
            standings = await changes.standings(tx, stale_seconds=self._stale_seconds)
            after = max(0, (newest.audit or 0) - OVERLAP) if before is None else max(0, (before.audit or 0) - OVERLAP)
            entries = await changes.audited(tx, after, limit=most)
            new = [worker for id_, worker in entries if id_ not in self._told]
            known = self._standings
            changed = {each for each in {*standings, *known} if standings.get(each) != known.get(each)}
            if before is not None:
                found.add("workers", {*changed, *filter(None, new)} if len(entries) < most else [ANY])
                if newest.decision != before.decision:
                    found.add("fleets", await changes.fleets_decided(tx, before.decision or 0))
                if standings.keys() != self._standings.keys():
                    found.add("fleets", await changes.fleets_of(tx, changed) or [ANY])
                if newest.tenant != before.tenant:
                    ids = await changes.tenants_after(tx, before.tenant or "", limit=MOST_NAMED)
                    found.add("tenants", ids)
        if before is not None:
            if new or newest.dispatch != before.dispatch:
                found.add("dispatches")
            if newest.sample != before.sample:
                found.add("samples")
            if (newest.run, newest.runs) != (before.run, before.runs):
                found.add("reconcile")
        self._newest, self._standings = newest, standings
        self._told = frozenset(id_ for id_, _ in entries)
        return found
