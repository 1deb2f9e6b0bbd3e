"""State of one job in a pool. `PoolJob` is its public handle."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, TypeVar

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.events import JobCanceled, PoolJobEvent
from comfyrelay.comfyui.pool.failover import FailureVerdict
from comfyrelay.comfyui.pool.queue import JobOutcome, PoolJobStatus
from comfyrelay.comfyui.pool.streams import EventStream
from comfyrelay.comfyui.pool.ticket import Ticket
from comfyrelay.errors import Canceled, ComfyError, ComfyRelayError

E = TypeVar("E", bound=PoolJobEvent)
_NONE: Mapping[str, tuple[FailureVerdict, ComfyError]] = MappingProxyType({})


class StopReason(Enum):
    """Why a run is being stopped."""

    CANCEL = auto()
    PUT_BACK = auto()


@dataclass(kw_only=True, slots=True, eq=False)
class Record:
    """`failure` is raised to waiters once it `is_done`, if there is no result.

    `task` processes the job from the start of an attempt until it is queued again or has ended; `can_stop` says whether
    it may be canceled. `failures` are the errors of its attempts with their verdicts, by client id; the last one of
    each server. Thousands of records wait at a time, so they consist of few objects.
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
    failures: Mapping[str, tuple[FailureVerdict, ComfyError]] = field(default_factory=lambda: _NONE)
    result: RunResult | None = None
    failure: ComfyRelayError | None = None
    ending: PoolJobEvent | None = None
    task: asyncio.Task[None] | None = None
    stop: StopReason | None = None
    can_stop: bool = False
    # Whether it was sent to its server behind another run, and whether it has started since.
    is_behind: bool = False
    has_begun: bool = False
    streams: tuple[EventStream[PoolJobEvent], ...] = ()
    _done: asyncio.Event | None = None

    async def wait(self) -> None:
        """Wait until it is done."""
        if self.is_done:
            return
        if self._done is None:
            self._done = asyncio.Event()
        await self._done.wait()

    def set_done(self) -> None:
        """Release the waiters. For subscribers, the outcome is the last event."""
        self.is_done = True
        self.task = None
        if self._done is not None:
            self._done.set()
        for stream in self.streams:
            if self.ending is not None:
                stream.put(self.ending)
            stream.close()
        self.streams = ()

    def event(self, kind: type[E], **more: Any) -> E:
        """Create an event of this job in its current state."""
        return kind(
            job_id=self.ticket.id,
            workflow_hash=self.ticket.bucket.workflow_hash,
            metadata=self.ticket.metadata,
            client_id=self.client_id,
            attempt=self.ticket.attempts,
            **more,
        )

    def end(self, outcome: JobOutcome, ending: PoolJobEvent) -> None:
        self.status = outcome.status
        self.finished_at = outcome.finished_at
        self.result = outcome.result
        self.failure = outcome.error
        if isinstance(ending, JobCanceled):
            self.failure = Canceled(ending.reason)
        else:
            self.last_error = outcome.error
        self.ending = ending
        if outcome.result is not None:
            self.progress = 1.0
        # The graph and the files are most of a job's size.
        self.ticket = replace(self.ticket, graph=b"", attachments=())
