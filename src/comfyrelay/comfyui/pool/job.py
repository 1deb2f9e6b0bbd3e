"""Handle of a job in a pool."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.comfyui.pool.events import PoolJobEvent
from comfyrelay.comfyui.pool.queue import PoolJobStatus
from comfyrelay.comfyui.pool.record import Record
from comfyrelay.comfyui.pool.streams import EventStream
from comfyrelay.errors import Canceled, ComfyError, Conflict


class PoolJob:
    """A job of a pool. `result = await job` works any number of times and from any number of tasks.

    It returns the `RunResult`, or raises the last `ComfyError` or `Canceled`. Canceling a task that awaits a job does
    not cancel the job.
    """

    __slots__ = ("_buffer_size", "_cancel", "_record")

    def __init__(self, record: Record, *, cancel: Callable[[str, bool], Awaitable[bool]], buffer_size: int) -> None:
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
    def attempts(self) -> int:
        """Number of runs started."""
        return self._record.ticket.attempts

    @property
    def client_id(self) -> str | None:
        """The current or last server."""
        return self._record.client_id

    @property
    def server(self) -> ComfyServer | None:
        """The server itself, for reading files; `None` before the first run."""
        return self._record.server

    @property
    def created_at(self) -> datetime:
        return self._record.ticket.created_at

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt started."""
        return self._record.started_at

    @property
    def finished_at(self) -> datetime | None:
        return self._record.finished_at

    @property
    def last_error(self) -> ComfyError | None:
        """Why its last attempt failed; `None` once it is completed."""
        return self._record.last_error

    @property
    def progress(self) -> float:
        """From 0 to 1, as far as nodes report it."""
        return self._record.progress

    async def cancel(self, *, wait: bool = True) -> bool:
        """Cancel the job. Returns false if it had already ended.

        Waits until the run has stopped on its server, which a node may delay until its next step. Without `wait`,
        returns after the stop request. The job is canceled at once, and its server gets the next one.
        """
        return await self._cancel(self.id, wait)

    def events(self) -> EventStream[PoolJobEvent]:
        """Stream its events from now on. The last one reports the outcome."""
        stream: EventStream[PoolJobEvent] = EventStream(limit=self._buffer_size)
        if not self._record.is_done:
            self._record.streams = (*self._record.streams, stream)
            return stream
        if self._record.ending is not None:
            stream.put(self._record.ending)
        stream.close()
        return stream

    async def download(self, file: OutputFile, to: Path) -> int:
        """Save one of its files and return its size. `to` appears only when it is complete."""
        if self.server is None:
            raise Conflict("This job has not run on a server of this pool, so its files cannot be read.")
        return await self.server.download(file, to)

    async def _outcome(self) -> RunResult:
        await self._record.wait()
        if self._record.result is not None:
            return self._record.result
        # Each waiter gets its own traceback, not that of all earlier ones.
        raise (self._record.failure or Canceled()).with_traceback(None)
