"""Delivering to shards what the queue decided, and removing what has arrived.

Entries are in the central outbox before they come here. One delivery runs per shard at a time and takes everything that
has come in since the last, so that under load many settlements share one commit. What cannot be delivered stays in the
outbox for the recovery.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog

from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.group_commit import Deferral, GroupCommit
from comfyrelay.services.outbox.applying import Applying
from comfyrelay.store.outbox import OutboxEntry

log = structlog.get_logger(__name__)

# Bounds the size of one tenant transaction.
UPDATES_AT_ONCE = 1000
ENTRIES_WAITING = 50
# How long the start of a job may wait to be applied together with its end. Nobody sees the difference.
DELAY_SECONDS = 0.5
# How far apart the deliveries to one shard are while nobody waits for them, so that under load many share one commit.
PACE_SECONDS = 0.05
# How long what has arrived may stay in an outbox, so that much of it leaves in one transaction.
REMOVAL_SECONDS = 0.1
REMOVED_AT_ONCE = 10_000


class OutboxDelivery:
    def __init__(self, applying: Applying) -> None:
        self._applying = applying
        self._deferral = Deferral()
        # of submissions nobody waits for the end, but at the end of all
        self._calm = Deferral()
        # Nobody waits for an entry to leave the outbox, so deliveries of all shards, for a while, share one commit.
        self._removal = _removal(applying.remove, self._deferral)
        self._shards: dict[str, _ShardDelivery] = {}

    async def deliver(self, entries: Iterable[OutboxEntry]) -> None:
        """Deliver, and return when the shards have committed, or cannot be reached and are left to the recovery."""
        with self._deferral.waiting():
            await asyncio.gather(*self.begin(entries).values())

    async def wait_for(self, delivery: asyncio.Future[None]) -> None:
        """Wait for one that was begun."""
        with self._deferral.waiting():
            await asyncio.shield(delivery)

    def begin(self, entries: Iterable[OutboxEntry]) -> dict[str, asyncio.Future[None]]:
        """Begin to deliver; by shard, what to wait for. The entries are of one transaction: at most one a shard."""
        return {entry.shard: self._shard(entry.shard).begin(entry) for entry in entries}

    def delay(self, entries: Iterable[OutboxEntry]) -> None:
        """Deliver in a moment, or with the next entry about the same job: of one that is over at once, start and end
        are applied in one transaction. An entry has one update a job here."""
        for entry in entries:
            self._shard(entry.shard).delay(entry)

    def remove_submission(self, shard: str, submission_id: int) -> None:
        """Its dispatches are in the queue: in a moment it leaves the outbox of its shard, together with others."""
        self._shard(shard).submissions.add(submission_id).add_done_callback(_log_failure)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be delivered that whoever adds to it should wait too."""
        return any(each.group.waiting > ENTRIES_WAITING for each in self._shards.values())

    async def idle(self) -> None:
        """Deliver everything, and return when nothing is under way."""
        for shard in self._shards.values():
            shard.begin_delayed()
        with self._deferral.waiting(), self._calm.waiting():
            of_shards = (group for shard in self._shards.values() for group in (shard.group, shard.submissions))
            groups: list[GroupCommit[Any, None]] = [*of_shards, self._removal]
            while not all(each.is_idle for each in groups):
                for group in groups:
                    await group.idle()

    def _shard(self, name: str) -> "_ShardDelivery":
        if name not in self._shards:
            self._shards[name] = _ShardDelivery(name, self._applying, self._removal, self._deferral, self._calm)
        return self._shards[name]


class _ShardDelivery:
    """What one shard has yet to be delivered."""

    def __init__(
        self, shard: str, applying: Applying, removal: GroupCommit[int, None], deferral: Deferral, calm: Deferral
    ) -> None:
        self._shard = shard
        self._applying = applying
        self._removal = removal
        self._deferral = deferral
        self.group: GroupCommit[OutboxEntry, None] = GroupCommit(
            self._deliver, at_once=UPDATES_AT_ONCE, size_of=lambda entry: len(entry.updates), pause=self._keep_pace
        )
        self.submissions = _removal(partial(applying.remove_submissions, shard), calm)
        self._last_at = 0.0
        # By entry and job, what of the delayed entries has not been applied.
        self._delayed: dict[int, dict[str, JobUpdate]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, entry: OutboxEntry) -> asyncio.Future[None]:
        future = self.group.add(entry)
        future.add_done_callback(_log_failure)
        return future

    def delay(self, entry: OutboxEntry) -> None:
        self._delayed[entry.id] = {each.job_id: each for each in entry.updates}
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self.begin_delayed)

    def begin_delayed(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        delayed, self._delayed = self._delayed, {}
        for id_, updates in delayed.items():
            self.begin(OutboxEntry(id=id_, shard=self._shard, updates=list(updates.values())))

    async def _keep_pace(self) -> None:
        await self._deferral.put_off(self._last_at + PACE_SECONDS - _now())
        self._last_at = _now()

    async def _deliver(self, entries: Sequence[OutboxEntry]) -> Sequence[None]:
        earlier = self._earlier(entries)
        try:
            applied = await self._applying.apply(self._shard, [*earlier, *entries])
        except DatabaseUnavailable:
            applied = []
        in_part = {each.id for each in earlier}
        for entry in applied:
            if entry.id not in in_part or self._is_finished(entry):
                self._removal.add(entry.id)
        return [None] * len(entries)

    def _earlier(self, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """From the delayed entries, the updates that come before those in these entries."""
        if not self._delayed:
            return []
        job_ids = {update.job_id for entry in entries for update in entry.updates}
        return [
            OutboxEntry(id=id_, shard=self._shard, updates=[updates[job_id] for job_id in updates.keys() & job_ids])
            for id_, updates in self._delayed.items()
            if not job_ids.isdisjoint(updates)
        ]

    def _is_finished(self, applied: OutboxEntry) -> bool:
        """Whether nothing remains of a delayed entry. One that was begun meanwhile is finished by its own delivery."""
        if (remaining := self._delayed.get(applied.id)) is None:
            return False
        for update in applied.updates:
            remaining.pop(update.job_id, None)
        if not remaining:
            del self._delayed[applied.id]
        return not remaining


def _removal(remove: Callable[[Sequence[int]], Awaitable[None]], deferral: Deferral) -> GroupCommit[int, None]:
    """Takes what has arrived out of an outbox, a moment later and together with others."""

    async def handle(ids: Sequence[int]) -> Sequence[None]:
        try:
            await remove(ids)
        except Exception:
            # the recovery finds them in the outbox, finds that they have arrived, and removes them
            log.warning("deliver.not_removed", exc_info=True)
        return [None] * len(ids)

    return GroupCommit(handle, at_once=REMOVED_AT_ONCE, pause=lambda: deferral.put_off(REMOVAL_SECONDS))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.info("deliver.failed", error=repr(error))
