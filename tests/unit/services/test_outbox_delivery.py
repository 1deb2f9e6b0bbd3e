"""Delayed entries are delivered together with later entries, and leave the outbox once all of them are applied.

Submitted entries leave the outbox of their shard in batches.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from comfyrelay.domain.queue.states import JobEventType, JobStatus
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.store.outbox import OutboxEntry
from tests.support.world import START


class Shard:
    """Apply all entries once released; record the received entries and the entries that left the outbox."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.apply_started = asyncio.Event()
        self.applied: list[list[tuple[int, list[str]]]] = []
        self.removed: list[int] = []
        self.removals_of_submissions: list[tuple[str, list[int]]] = []

    async def apply(self, _shard: str, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        self.apply_started.set()
        await self.is_open.wait()
        self.applied.append([(entry.id, sorted(update.job_id for update in entry.updates)) for entry in entries])
        return list(entries)

    async def remove(self, entry_ids: Sequence[int]) -> None:
        self.removed += entry_ids

    async def remove_submissions(self, shard: str, submission_ids: Sequence[int]) -> None:
        self.removals_of_submissions.append((shard, list(submission_ids)))


@pytest.fixture
async def shard() -> Shard:
    return Shard()


@pytest.fixture
async def delivery(shard: Shard) -> OutboxDelivery:
    return OutboxDelivery(cast(UpdateApplier, shard))


def entry(id_: int, *job_ids: str, version: int = 1) -> OutboxEntry:
    updates = [
        JobUpdate(
            tenant_id="t",
            job_id=job_id,
            version=version,
            event_type=JobEventType.STARTED,
            status=JobStatus.PROCESSING,
            at=START,
            epoch=1,
            attempts=1,
            priority=0,
        )
        for job_id in job_ids
    ]
    return OutboxEntry(id=id_, shard="a", updates=updates)


async def test_delayed_entry_delivers_only_earlier_changes_with_the_next(
    shard: Shard, delivery: OutboxDelivery
) -> None:
    delivery.delay([entry(1, "x", "y")])
    await delivery.deliver([entry(2, "x", version=2)])
    assert shard.applied == [[(1, ["x"]), (2, ["x"])]]
    await delivery.idle()
    assert shard.applied[1:] == [[(1, ["y"])]]
    assert sorted(shard.removed) == [1, 2]


async def test_entry_stays_in_the_outbox_until_its_last_part_is_applied(shard: Shard, delivery: OutboxDelivery) -> None:
    delivery.delay([entry(1, "x", "y")])
    shard.is_open.clear()
    first = asyncio.create_task(delivery.deliver([entry(2, "x", version=2)]))
    await shard.apply_started.wait()
    # delivery of the whole entry begins while a part of it is being applied
    everything = asyncio.create_task(delivery.idle())
    await asyncio.sleep(0)
    shard.is_open.set()
    await asyncio.gather(first, everything)
    assert shard.applied == [[(1, ["x"]), (2, ["x"])], [(1, ["x", "y"])]]
    assert shard.removed == [2, 1]


async def test_submissions_leave_the_outbox_of_their_shard_together(shard: Shard, delivery: OutboxDelivery) -> None:
    delivery.remove_submission("a", 1)
    delivery.remove_submission("b", 1)
    delivery.remove_submission("a", 2)
    await delivery.idle()
    assert sorted(shard.removals_of_submissions) == [("a", [1, 2]), ("b", [1])]
