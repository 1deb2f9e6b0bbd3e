"""What is delayed is delivered with what follows, and leaves the outbox when all of it has been applied. What was
submitted leaves the outbox of its pool together with others."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from comfyrelay.domain.queue.states import JobEventType, JobStatus
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.services.outbox.applying import Applying
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.store.outbox import OutboxEntry
from tests.harness import START


class Pool:
    """Applies everything, when it is let; and keeps what it was given and what left the outbox."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.asked = asyncio.Event()
        self.applied: list[list[tuple[int, list[str]]]] = []
        self.removed: list[int] = []
        self.removals_of_submissions: list[tuple[str, list[int]]] = []

    async def apply(self, _pool: str, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        self.asked.set()
        await self.is_open.wait()
        self.applied.append([(each.id, sorted(update.job_id for update in each.updates)) for each in entries])
        return list(entries)

    async def remove(self, entry_ids: Sequence[int]) -> None:
        self.removed += entry_ids

    async def remove_submissions(self, pool: str, submission_ids: Sequence[int]) -> None:
        self.removals_of_submissions.append((pool, list(submission_ids)))


@pytest.fixture
async def pool() -> Pool:
    return Pool()


@pytest.fixture
async def delivery(pool: Pool) -> OutboxDelivery:
    return OutboxDelivery(cast(Applying, pool))


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
    return OutboxEntry(id=id_, db_pool="a", updates=updates)


async def test_of_a_delayed_entry_only_what_comes_before_is_delivered_with_the_next(
    pool: Pool, delivery: OutboxDelivery
) -> None:
    delivery.delay([entry(1, "x", "y")])
    await delivery.deliver([entry(2, "x", version=2)])
    assert pool.applied == [[(1, ["x"]), (2, ["x"])]]
    await delivery.idle()
    assert pool.applied[1:] == [[(1, ["y"])]]
    assert sorted(pool.removed) == [1, 2]


async def test_an_entry_stays_in_the_outbox_until_its_last_part_is_applied(
    pool: Pool, delivery: OutboxDelivery
) -> None:
    delivery.delay([entry(1, "x", "y")])
    pool.is_open.clear()
    first = asyncio.create_task(delivery.deliver([entry(2, "x", version=2)]))
    await pool.asked.wait()
    # begun as a whole while a part of it is being applied
    everything = asyncio.create_task(delivery.idle())
    await asyncio.sleep(0)
    pool.is_open.set()
    await asyncio.gather(first, everything)
    assert pool.applied == [[(1, ["x"]), (2, ["x"])], [(1, ["x", "y"])]]
    assert pool.removed == [2, 1]


async def test_submissions_leave_the_outbox_of_their_pool_together(pool: Pool, delivery: OutboxDelivery) -> None:
    delivery.remove_submission("a", 1)
    delivery.remove_submission("b", 1)
    delivery.remove_submission("a", 2)
    await delivery.idle()
    assert sorted(pool.removals_of_submissions) == [("a", [1, 2]), ("b", [1])]
