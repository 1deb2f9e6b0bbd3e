"""A leased job in the worker that holds it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from comfyrelay.protocol.progress import Phase
from comfyrelay.protocol.worker import InputPayload, LeasedJob, Urls
from comfyrelay.wakeup import Wakeup


class LeaseStop(StrEnum):
    """Why this worker must stop a job."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RELEASE = "release"
    # The lease has ended, and another worker may be running the job.
    LOST = "lost"
    DRAINING = "draining"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewTarget:
    """The URL that accepts previews of a job. `until` is a time of the monotonic clock."""

    url: str
    headers: Mapping[str, str]
    until: float

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


@dataclass(kw_only=True, eq=False)
class Lease:
    """Heartbeats replace `urls`. `stop` is set once and wakes the waiters of `stopped`."""

    job: LeasedJob
    urls: Urls
    # The number of jobs that were still waiting when this job was leased, if known.
    more_waiting: int = 0
    # The time of the lease on the monotonic clock.
    received_at: float = field(default_factory=time.monotonic)
    phase: Phase = Phase.FETCHING
    progress: float = 0.0
    # The start of the run, possibly long after its inputs were fetched.
    began_at: datetime | None = None
    began_after_seconds: float | None = None
    # The title of the running node.
    node_title: str = ""
    # The name of the ComfyUI server that runs the job.
    server: str | None = None
    # Set while a user watches the job.
    preview: PreviewTarget | None = None
    # Set when a user starts watching.
    watched: Wakeup = field(default_factory=Wakeup)
    # Details of the run for every report. Names that start with _ are not sent to the server.
    about: dict[str, Any] = field(default_factory=dict)
    stop: LeaseStop | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """A name that is unique for this lease, and safe in a file name."""
        return f"{self.dispatch_id}-{self.job.lease_token[:8]}"

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields that identify the job in the worker's log."""
        return {
            "job_id": self.job_id,
            "dispatch_id": self.dispatch_id,
            "workflow": self.workflow_hash,
            "attempt": self.job.attempt,
        }

    @property
    def dispatch_id(self) -> int:
        return self.job.dispatch_id

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def provider(self) -> str:
        return self.job.provider

    @property
    def workflow_hash(self) -> str:
        return self.job.workflow_hash

    @property
    def payload(self) -> InputPayload:
        return self.job.input_payload

    @property
    def graph(self) -> dict[str, Any]:
        return self.payload.workflow

    @property
    def preview_seconds(self) -> float:
        """Number of seconds for which a user is known to be watching."""
        return self.preview.seconds_left if self.preview is not None else 0.0

    def request_stop(self, why: LeaseStop) -> None:
        """Request a stop. The first reason is kept, but a lost lease overrides it, because then nothing may be
        reported."""
        if self.stop is None or why is LeaseStop.LOST:
            self.stop = why
        self.stopped.set()
