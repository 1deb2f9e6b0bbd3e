"""Queue interface of a pool, and the in-memory queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.buckets import Buckets
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.domain.queue.blocks import Block
from comfyrelay.errors import ComfyError


class PoolJobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutcome:
    """How a job ended: with a result, with an error, or canceled with neither."""

    status: PoolJobStatus
    attempts: int
    finished_at: datetime
    started_at: datetime | None = None
    client_id: str | None = None
    result: RunResult | None = None
    error: ComfyError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJobs:
    """What a durable queue restored:

    waiting jobs (including those found running), finished ones, and failures of servers by client id and workflow hash.
    """

    waiting: tuple[Ticket, ...] = ()
    finished: tuple[tuple[Ticket, JobOutcome], ...] = ()
    blocks: Mapping[tuple[str, str], Block] = field(default_factory=dict)


class QueueAdapter(Protocol):
    """Stores a pool's jobs. An awaited method returns when its change is durable.

    Waiting jobs are in the order of `Buckets`. `put` and `put_back` make a job available as their last step.
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
        """Requeue a job that was taken, with the attempts that its ticket counts now."""

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        """Remove and return the first waiting job whose bucket may run."""

    def remove(self, job_id: str) -> bool:
        """Remove a waiting job; false if it is not waiting. Call `settle` or `forget` next."""

    async def begin(self, ticket: Ticket) -> None:
        """Record that a taken job is about to run. Its ticket already counts this attempt."""

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        """Record that a job has ended."""

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Delete these jobs."""

    async def store_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        """Store the failures of a server at a workflow; `None` deletes them."""

    async def close(self) -> None: ...


class MemoryQueue:
    """An in-memory queue. Its jobs are lost when the process ends."""

    durable = False

    def __init__(self) -> None:
        self._buckets = Buckets()

    def __len__(self) -> int:
        return len(self._buckets)

    async def open(self) -> StoredJobs:
        return StoredJobs()

    async def put(self, ticket: Ticket) -> None:
        self._buckets.add(ticket)

    async def put_back(self, ticket: Ticket) -> None:
        self._buckets.add(ticket)

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        return self._buckets.take(may_run)

    def remove(self, job_id: str) -> bool:
        return self._buckets.remove(job_id)

    async def begin(self, ticket: Ticket) -> None:
        """Nothing to do: nothing to do: jobs do not outlive the process."""

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        """Nothing to do: the pool's own registry has it."""

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Nothing to do: nothing was stored."""

    async def store_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        """Nothing to do: the strategy has the block in memory."""

    async def close(self) -> None:
        """Nothing to do."""
