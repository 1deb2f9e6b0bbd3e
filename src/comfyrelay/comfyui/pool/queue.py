"""Where jobs wait, and what is kept of those that are done."""

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
class Leftover:
    """What an earlier life of the queue left: jobs that wait (those found running among them), finished ones, and the
    failures of servers, by client id and workflow hash."""

    waiting: tuple[Ticket, ...] = ()
    finished: tuple[tuple[Ticket, JobOutcome], ...] = ()
    blocks: Mapping[tuple[str, str], Block] = field(default_factory=dict)


class QueueAdapter(Protocol):
    """Keeps a pool's jobs. A method that is awaited returns when what it did cannot be lost any more.

    Whatever waits is in the order of `Buckets`. `put` and `put_back` make a job available as the last thing they do.
    """

    @property
    def durable(self) -> bool:
        """Whether jobs outlive the process."""

    def __len__(self) -> int:
        """How many jobs wait."""

    async def open(self) -> Leftover: ...

    async def put(self, ticket: Ticket) -> None:
        """A new job waits."""

    async def put_back(self, ticket: Ticket) -> None:
        """A job that was taken waits again, with the attempts that its ticket counts now."""

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        """Take the first job out of those that wait and whose bucket may run."""

    def remove(self, job_id: str) -> bool:
        """Take a job out of those that wait; false when it does not wait. `settle` or `forget` follows."""

    async def begin(self, ticket: Ticket) -> None:
        """A job that was taken is about to run; its ticket counts this attempt already."""

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        """A job has ended."""

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Keep nothing of these jobs any more."""

    async def keep_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        """What a server has failed at; `None` forgets it."""

    async def close(self) -> None: ...


class MemoryQueue:
    """Jobs live as long as the process."""

    durable = False

    def __init__(self) -> None:
        self._buckets = Buckets()

    def __len__(self) -> int:
        return len(self._buckets)

    async def open(self) -> Leftover:
        return Leftover()

    async def put(self, ticket: Ticket) -> None:
        self._buckets.add(ticket)

    async def put_back(self, ticket: Ticket) -> None:
        self._buckets.add(ticket)

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        return self._buckets.take(may_run)

    def remove(self, job_id: str) -> bool:
        return self._buckets.remove(job_id)

    async def begin(self, ticket: Ticket) -> None:
        """Nothing to do: an attempt that ends with the process takes its job with it."""

    async def settle(self, job_id: str, outcome: JobOutcome) -> None:
        """Nothing to do: the pool's own registry keeps it."""

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Nothing to do: nothing was kept."""

    async def keep_block(self, client_id: str, workflow_hash: str, block: Block | None) -> None:
        """Nothing to do: the strategy knows, as long as there are jobs."""

    async def close(self) -> None:
        """Nothing to do."""
