"""Jobs of a pool: `Record` is a job's internal state, `PoolJob` its public handle, and `Registry` finds both by id."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.pool.bus import EventStream
from comfyrelay.comfyui.pool.events import JobCanceled, PoolJobEvent
from comfyrelay.comfyui.pool.failover import FailureVerdict
from comfyrelay.comfyui.pool.queues.queue import JobOutcome, PoolJobStatus
from comfyrelay.comfyui.pool.ticket import Ticket
from comfyrelay.errors import Canceled, ComfyError, ComfyRelayError, Conflict, NotFound

E = TypeVar("E", bound=PoolJobEvent)
_NO_FAILURES: Mapping[str, tuple[FailureVerdict, ComfyError]] = MappingProxyType({})


class StopReason(Enum):
    """Why a run is being stopped."""

    CANCEL = auto()
    PUT_BACK = auto()


@dataclass(kw_only=True, slots=True, eq=False)
class Record:
    """State of one job. Thousands of records may exist at a time, so each consists of few objects.

    `task` processes the job from the start of an attempt until the job is queued again or has ended; `can_stop` says
    whether the task may be canceled. `failures` has the last error on each server and its verdict, by client id. Once
    the job `is_done` without a result, its waiters get `failure`.
    """

    ticket: Ticket
    status: PoolJobStatus = PoolJobStatus.QUEUED
    client_id: str | None = None
    server: ComfyServer | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    is_done: bool = False
    progress: float = 0.0
    prompt_id: str | None = None
    first_error: ComfyError | None = None
    last_error: ComfyError | None = None
    failures: Mapping[str, tuple[FailureVerdict, ComfyError]] = field(default_factory=lambda: _NO_FAILURES)
    result: RunResult | None = None
    failure: ComfyRelayError | None = None
    final_event: PoolJobEvent | None = None
    task: asyncio.Task[None] | None = None
    stop: StopReason | None = None
    can_stop: bool = False
    # Whether the run was sent to its server while another run was active there, and whether it has started.
    is_behind: bool = False
    has_started: bool = False
    streams: tuple[EventStream[PoolJobEvent], ...] = ()
    _done: asyncio.Event | None = None

    async def wait(self) -> None:
        """Wait until the job is done."""
        if self.is_done:
            return
        if self._done is None:
            self._done = asyncio.Event()
        await self._done.wait()

    def set_done(self) -> None:
        """Release the waiters, and send the final event to the subscribers."""
        self.is_done = True
        self.task = None
        if self._done is not None:
            self._done.set()
        for stream in self.streams:
            if self.final_event is not None:
                stream.put(self.final_event)
            stream.close()
        self.streams = ()

    def event(self, event_class: type[E], **fields: Any) -> E:
        """Create an event of this job in its current state."""
        return event_class(
            job_id=self.ticket.id,
            workflow_hash=self.ticket.bucket.workflow_hash,
            metadata=self.ticket.metadata,
            client_id=self.client_id,
            attempt=self.ticket.attempts,
            **fields,
        )

    def end(self, outcome: JobOutcome, final_event: PoolJobEvent) -> None:
        self.status = outcome.status
        self.finished_at = outcome.finished_at
        self.result = outcome.result
        self.failure = outcome.error
        if isinstance(final_event, JobCanceled):
            self.failure = Canceled(final_event.reason)
        else:
            self.last_error = outcome.error
        self.final_event = final_event
        if outcome.result is not None:
            self.progress = 1.0
        # The graph and the files make up most of a job's size.
        self.ticket = replace(self.ticket, graph=b"", attachments=())


class PoolJob:
    """A job of a pool. `result = await job` works any number of times and from any number of tasks.

    It returns the `RunResult`, or raises the last `ComfyError` or `Canceled`. Canceling a task that awaits a job does
    not cancel the job.
    """

    __slots__ = ("_buffer_size", "_cancel", "_record")

    def __init__(self, record: Record, *, cancel: Callable[..., Awaitable[bool]], buffer_size: int) -> None:
        self._record = record
        self._cancel = cancel
        self._buffer_size = buffer_size

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.status}>"

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._outcome().__await__()

    @property
    def id(self) -> str:
        return self._record.ticket.id

    @property
    def status(self) -> PoolJobStatus:
        return self._record.status

    @property
    def workflow_hash(self) -> str:
        return self._record.ticket.bucket.workflow_hash

    @property
    def priority(self) -> int:
        return self._record.ticket.priority

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._record.ticket.metadata

    @property
    def seeds(self) -> Mapping[str, int]:
        """The random seeds that replaced -1 in the graph, by node id and input, such as `3.seed`."""
        return MappingProxyType(dict(self._record.ticket.seeds))

    @property
    def attempts(self) -> int:
        """Number of attempts so far. Runs that do not count as attempts, such as those before a move, are not
        included."""
        return self._record.ticket.attempts

    @property
    def client_id(self) -> str | None:
        """The current or last server."""
        return self._record.client_id

    @property
    def server(self) -> ComfyServer | None:
        """The client of the current or last server, for reading files; `None` before the first run."""
        return self._record.server

    @property
    def created_at(self) -> datetime:
        return self._record.ticket.created_at

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt started."""
        return self._record.started_at

    @property
    def finished_at(self) -> datetime | None:
        return self._record.finished_at

    @property
    def last_error(self) -> ComfyError | None:
        """Why the last attempt failed; `None` once the job is completed."""
        return self._record.last_error

    @property
    def progress(self) -> float:
        """Progress from 0 to 1, as far as it is reported by nodes."""
        return self._record.progress

    async def cancel(self, *, wait: bool = True) -> bool:
        """Cancel the job. Returns false if it had already ended.

        Waits until the run has stopped on its server, which may take until the node's next step. Without `wait`,
        returns after the stop request. The job is canceled at once, and its server can get the next job.
        """
        return await self._cancel(self.id, wait=wait)

    def events(self) -> EventStream[PoolJobEvent]:
        """Stream the job's events from now on. The last event reports the outcome."""
        stream: EventStream[PoolJobEvent] = EventStream(limit=self._buffer_size)
        self._record.streams = (*self._record.streams, stream)
        if self._record.is_done:
            self._record.set_done()
        return stream

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save one of the job's files and return its size. `to` is created only after the download is complete."""
        if self.server is None:
            raise Conflict("This job has not run on a server of this pool, so its files cannot be read.")
        return await self.server.download(file, to)

    async def _outcome(self) -> RunResult:
        await self._record.wait()
        if self._record.result is not None:
            return self._record.result
        # Reset the traceback, because each earlier waiter has added to it.
        raise (self._record.failure or Canceled()).with_traceback(None)


class Registry:
    """All unfinished jobs of a pool, and the most recently finished jobs."""

    def __init__(self, *, keep_finished: int) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        # Number of jobs by status. Finished jobs are counted since the pool was opened.
        self.counts: Counter[PoolJobStatus] = Counter()
        self._keep_finished = keep_finished
        self._records: dict[str, Record] = {}
        self._jobs: dict[str, PoolJob] = {}
        self._finished: deque[str] = deque()

    @property
    def jobs(self) -> Mapping[str, PoolJob]:
        return MappingProxyType(self._jobs)

    @property
    def records(self) -> list[Record]:
        return list(self._records.values())

    @property
    def unfinished(self) -> list[Record]:
        return [record for record in self._records.values() if not record.is_done]

    def add(self, record: Record, job: PoolJob) -> None:
        self._records[job.id] = record
        self._jobs[job.id] = job
        self.idle.clear()

    def job(self, job_id: str) -> PoolJob:
        self.record(job_id)
        return self._jobs[job_id]

    def record(self, job_id: str) -> Record:
        try:
            return self._records[job_id]
        except KeyError:
            raise NotFound(f"This pool has no job {job_id}.") from None

    def mark_finished(self, job_id: str) -> list[str]:
        """Record that a job has ended. Returns the older finished jobs that the registry has dropped."""
        self._finished.append(job_id)
        dropped = []
        while len(self._finished) > self._keep_finished:
            oldest = self._finished.popleft()
            del self._records[oldest]
            del self._jobs[oldest]
            dropped.append(oldest)
        if len(self._records) == len(self._finished):
            self.idle.set()
        return dropped
