"""Deliver outbox entries to the shards, and remove delivered ones.

Entries are committed to the central outbox first. At most one delivery per shard runs at a time. It takes all entries
that have arrived since the previous delivery, so many settlements share one commit under load. Undeliverable entries
remain in the outbox for recovery.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog

from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.group_commit import Deferral, GroupCommit
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.store.outbox import OutboxEntry

log = structlog.get_logger(__name__)

# Limits the size of one shard transaction.
MAX_UPDATES_AT_ONCE = 1000
# With a longer backlog, callers wait for their delivery.
MAX_BACKLOG = 50
# The start of a job is delayed for this long, so that it can be applied together with the end. Users do not notice the
# delay.
DELAY_SECONDS = 0.5
# Interval between deliveries to one shard that no caller waits for, so that many entries share one commit.
PACE_SECONDS = 0.05
# Delivered entries remain in the outbox for this long, so that many are removed in one transaction.
REMOVAL_SECONDS = 0.1
MAX_REMOVED_AT_ONCE = 10_000


class OutboxDelivery:
    def __init__(self, applier: UpdateApplier) -> None:
        self._applier = applier
        self._deferral = Deferral()
        # No caller except `idle` waits for the removal of submissions.
        self._submission_deferral = Deferral()
        # Shared by all shards, because no caller waits for a removal.
        self._removal = _removal(applier.remove, self._deferral)
        self._shards: dict[str, _ShardDelivery] = {}

    async def deliver(self, entries: Iterable[OutboxEntry]) -> None:
        """Deliver entries and wait until the shards have committed them. Recovery handles unreachable shards."""
        with self._deferral.waiting():
            await asyncio.gather(*self.begin(entries).values())

    async def wait_for(self, delivery: asyncio.Future[None]) -> None:
        """Wait for a delivery that was started with `begin`."""
        with self._deferral.waiting():
            await asyncio.shield(delivery)

    def begin(self, entries: Iterable[OutboxEntry]) -> dict[str, asyncio.Future[None]]:
        """Start delivering the entries of one transaction, at most one per shard, and return a future by shard."""
        return {entry.shard: self._shard(entry.shard).begin(entry) for entry in entries}

    def delay(self, entries: Iterable[OutboxEntry]) -> None:
        """Deliver after a delay, or together with the next entry of the same job.

        The start and the end of a short job thus share a transaction. An entry must have at most one update per job.
        """
        for entry in entries:
            self._shard(entry.shard).delay(entry)

    def remove_submission(self, shard: str, submission_id: int) -> None:
        """Remove a queued submission from its shard's outbox soon, together with others."""
        self._shard(shard).submissions.add(submission_id).add_done_callback(_log_failure)

    @property
    def is_behind(self) -> bool:
        """Whether the backlog is so long that callers should wait for their delivery."""
        return any(shard.group.waiting > MAX_BACKLOG for shard in self._shards.values())

    async def idle(self) -> None:
        """Deliver everything and wait until nothing is pending."""
        for shard in self._shards.values():
            shard.begin_delayed()
        with self._deferral.waiting(), self._submission_deferral.waiting():
            of_shards = (group for shard in self._shards.values() for group in (shard.group, shard.submissions))
            groups: list[GroupCommit[Any, None]] = [*of_shards, self._removal]
            while not all(group.is_idle for group in groups):
                for group in groups:
                    await group.idle()

    def _shard(self, name: str) -> "_ShardDelivery":
        if name not in self._shards:
            submissions = _removal(partial(self._applier.remove_submissions, name), self._submission_deferral)
            self._shards[name] = _ShardDelivery(name, self._applier, self._removal, submissions, self._deferral)
        return self._shards[name]


class _ShardDelivery:
    """Pending deliveries of one shard."""

    def __init__(
        self,
        shard: str,
        applier: UpdateApplier,
        removal: GroupCommit[int, None],
        submissions: GroupCommit[int, None],
        deferral: Deferral,
    ) -> None:
        self._shard = shard
        self._applier = applier
        self._removal = removal
        self._deferral = deferral
        self.group: GroupCommit[OutboxEntry, None] = GroupCommit(
            self._deliver, max_size=MAX_UPDATES_AT_ONCE, size_of=lambda entry: len(entry.updates), pause=self._keep_pace
        )
        self.submissions = submissions
        self._last_at = 0.0
        # Updates of delayed entries that are not applied yet, by entry and job.
        self._delayed: dict[int, dict[str, JobUpdate]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, entry: OutboxEntry) -> asyncio.Future[None]:
        future = self.group.add(entry)
        future.add_done_callback(_log_failure)
        return future

    def delay(self, entry: OutboxEntry) -> None:
        self._delayed[entry.id] = {update.job_id: update for update in entry.updates}
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
        await self._deferral.delay(self._last_at + PACE_SECONDS - _now())
        self._last_at = _now()

    async def _deliver(self, entries: Sequence[OutboxEntry]) -> Sequence[None]:
        earlier = self._earlier(entries)
        try:
            applied = await self._applier.apply(self._shard, [*earlier, *entries])
        except DatabaseUnavailable:
            applied = []
        partial_ids = {entry.id for entry in earlier}
        for entry in applied:
            if entry.id not in partial_ids or self._is_finished(entry):
                self._removal.add(entry.id)
        return [None] * len(entries)

    def _earlier(self, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Return the updates of delayed entries that must be applied before these entries."""
        if not self._delayed:
            return []
        job_ids = {update.job_id for entry in entries for update in entry.updates}
        return [
            OutboxEntry(id=id_, shard=self._shard, updates=[updates[job_id] for job_id in updates.keys() & job_ids])
            for id_, updates in self._delayed.items()
            if not job_ids.isdisjoint(updates)
        ]

    def _is_finished(self, applied: OutboxEntry) -> bool:
        """Whether a delayed entry is fully applied. If its own delivery has started, that delivery will finish it."""
        if (remaining := self._delayed.get(applied.id)) is None:
            return False
        for update in applied.updates:
            remaining.pop(update.job_id, None)
        if not remaining:
            del self._delayed[applied.id]
        return not remaining


def _removal(remove: Callable[[Sequence[int]], Awaitable[None]], deferral: Deferral) -> GroupCommit[int, None]:
    """Batches the removal of delivered entries from an outbox."""

    async def handle(ids: Sequence[int]) -> Sequence[None]:
        try:
            await remove(ids)
        except Exception:
            # Recovery finds that the entries are applied, and removes them.
            log.warning("delivery.removal_failed", exc_info=True)
        return [None] * len(ids)

    return GroupCommit(handle, max_size=MAX_REMOVED_AT_ONCE, pause=lambda: deferral.delay(REMOVAL_SECONDS))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.info("delivery.failed", error=repr(error))
