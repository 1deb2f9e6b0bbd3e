"""Queue interface of a pool, the order of waiting jobs, and the in-memory queue."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from heapq import heappop, heappush
from typing import Protocol

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.domain.queue.blocks import Block
from comfyrelay.errors import ComfyError

# -priority, sequence, id: the smallest goes first. Sequences are unique.
Place = tuple[int, int, str]


class PoolJobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    """How a job ended: with a result or an error, or neither if it was canceled."""

    status: PoolJobStatus
    attempts: int
    finished_at: datetime
    started_at: datetime | None = None
    client_id: str | None = None
    result: RunResult | None = None
    error: ComfyError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJobs:
    """The content of a durable queue after a restart. Jobs that were running are waiting again.

    `blocks` has the failures of servers by client id and workflow hash.
    """

    waiting: tuple[Ticket, ...] = ()
    finished: tuple[tuple[Ticket, JobOutcome], ...] = ()
    blocks: Mapping[tuple[str, str], Block] = field(default_factory=dict)


class QueueAdapter(Protocol):
    """Stores a pool's jobs. An awaited method returns when its change is durable.

    Waiting jobs have the order of `Buckets`. `put` and `put_back` make a job available as their last step.
    """

    @property
    def durable(self) -> bool:
        """Whether jobs outlive the process."""

    def __len__(self) -> int:
        """Number of waiting jobs."""

    async def open(self) -> StoredJobs: ...

    async def put(self, ticket: Ticket) -> None:
        """Add a new job."""

    async def put_back(self, ticket: Ticket) -> None:
        """Requeue a job that was taken, with its ticket's current number of attempts."""

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        """Remove and return the first waiting job whose bucket may run."""

    def remove(self, job_id: str) -> bool:
        """Remove a waiting job; false if it is not waiting. Call `settle` or `forget` next."""

    async def begin(self, ticket: Ticket) -> None:
        """Record that a taken job is about to run. The attempt is already counted in its ticket."""

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        """Record that a job has ended."""

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Delete these jobs."""

    async def store_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        """Store the failures of a server for a workflow; `None` deletes them."""

    async def close(self) -> None: ...


class Buckets:
    """Waiting jobs in order: highest priority first, then first in, first out. A blocked bucket does not delay others.

    Jobs are grouped by bucket, so that the next job is found without a scan of all jobs.
    """

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._heaps: dict[Bucket, list[Place]] = {}
        # The first place of each bucket, sorted. A list rather than a heap, because most scans skip buckets that may
        # not run, and scanning does not change a list.
        self._heads: list[tuple[Place, Bucket]] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket
        place = (-ticket.priority, ticket.sequence, ticket.id)
        heap = self._heaps.setdefault(ticket.bucket, [])
        first = heap[0] if heap else None
        heappush(heap, place)
        if heap[0] != first:
            self._move_head(ticket.bucket, first)

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        """Remove and return the first job whose bucket may run."""
        for place, bucket in self._heads:
            if may_run(bucket):
                ticket = self._tickets.pop(place[2])
                self._drop_gone(bucket)
                return ticket
        return None

    def remove(self, job_id: str) -> bool:
        ticket = self._tickets.pop(job_id, None)
        if ticket is None:
            return False
        # Otherwise, the job's place remains in the heap, and is skipped when it reaches the front.
        if self._heaps[ticket.bucket][0][2] == job_id:
            self._drop_gone(ticket.bucket)
        return True

    def _drop_gone(self, bucket: Bucket) -> None:
        """Make the next waiting job the head of the bucket after the first job was removed."""
        heap = self._heaps[bucket]
        first = heap[0]
        while heap and heap[0][2] not in self._tickets:
            heappop(heap)
        self._move_head(bucket, first)

    def _move_head(self, bucket: Bucket, first: Place | None) -> None:
        if first is not None:
            del self._heads[bisect_left(self._heads, (first, bucket))]
        heap = self._heaps[bucket]
        if heap:
            insort(self._heads, (heap[0], bucket))
        else:
            del self._heaps[bucket]


class MemoryQueue(Buckets):
    """An in-memory queue. Its jobs are lost when the process ends."""

    durable = False

    async def open(self) -> StoredJobs:
        return StoredJobs()

    async def put(self, ticket: Ticket) -> None:
        self.add(ticket)

    async def put_back(self, ticket: Ticket) -> None:
        self.add(ticket)

    async def begin(self, ticket: Ticket) -> None:
        """Do nothing: the attempt does not outlive the process."""

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        """Do nothing: the pool's registry has the outcome."""

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Do nothing: the queue contains only waiting jobs."""

    async def store_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        """Do nothing: the failover strategy has the block in memory."""

    async def close(self) -> None:
        """Do nothing: the queue has no connection."""
