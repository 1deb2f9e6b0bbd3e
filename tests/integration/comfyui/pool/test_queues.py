"""Every queue passes the same tests; `test_sqlite_queue.py` covers durability."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from comfyrelay.comfyui.pool import (
    Bucket,
    JobOutcome,
    MemoryQueue,
    PoolJobStatus,
    QueueAdapter,
    SqliteQueue,
    StoredJobs,
)
from tests.support.pool import NOW, anywhere, ticket


@pytest.fixture(params=["memory", "sqlite"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueAdapter]:
    queue: QueueAdapter = MemoryQueue() if request.param == "memory" else SqliteQueue(tmp_path / "queue.db")
    assert await queue.open() == StoredJobs()
    yield queue
    await queue.close()


def take_all(queue: QueueAdapter) -> list[str]:
    found = []
    while (job := queue.take(anywhere)) is not None:
        found.append(job.id)
    return found


async def test_jobs_are_taken_by_priority_then_in_order(queue: QueueAdapter) -> None:
    for job in (ticket(1), ticket(2, priority=1), ticket(3, workflow="v"), ticket(4, priority=1)):
        await queue.put(job)
    assert len(queue) == 4
    assert take_all(queue) == ["job-2", "job-4", "job-1", "job-3"]
    assert len(queue) == 0


async def test_taken_job_equals_the_stored_job(queue: QueueAdapter) -> None:
    await queue.put(ticket(1, metadata={"user": "u"}, include_outputs=("9",), max_attempts=7))
    assert queue.take(anywhere) == ticket(1, metadata={"user": "u"}, include_outputs=("9",), max_attempts=7)


async def test_bucket_that_may_not_run_is_skipped(queue: QueueAdapter) -> None:
    await queue.put(ticket(1, workflow="blocked"))
    await queue.put(ticket(2, workflow="free"))

    def may_run(bucket: Bucket) -> bool:
        return bucket.workflow_hash == "free"

    found = queue.take(may_run)
    assert found is not None
    assert found.id == "job-2"
    assert queue.take(may_run) is None


async def test_requeued_job_keeps_its_place_and_attempts(queue: QueueAdapter) -> None:
    await queue.put(ticket(1))
    await queue.put(ticket(2))
    first = queue.take(anywhere)
    assert first is not None
    begun = replace(first, attempts=1)
    await queue.begin(begun)
    await queue.put_back(begun)
    assert queue.take(anywhere) == begun
    assert take_all(queue) == ["job-2"]


async def test_removed_job_is_not_taken(queue: QueueAdapter) -> None:
    await queue.put(ticket(1))
    await queue.put(ticket(2))
    assert queue.remove("job-1")
    assert not queue.remove("job-1")
    assert not queue.remove("job-3")
    await queue.settle("job-1", JobOutcome(status=PoolJobStatus.CANCELED, attempts=0, finished_at=NOW))
    assert take_all(queue) == ["job-2"]


async def test_finished_and_forgotten_job_leaves_the_queue(queue: QueueAdapter) -> None:
    await queue.put(ticket(1))
    found = queue.take(anywhere)
    assert found is not None
    await queue.begin(replace(found, attempts=1))
    await queue.settle("job-1", JobOutcome(status=PoolJobStatus.COMPLETED, attempts=1, finished_at=NOW))
    await queue.forget(["job-1", "job-9"])
    assert len(queue) == 0
    assert queue.take(anywhere) is None
