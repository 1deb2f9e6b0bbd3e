"""A job that this worker holds, as the control plane handed it over, and what has become of it since."""

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
    """Why a job must not go on here."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RELEASE = "release"
    # the lease is no longer ours: somebody else may be running it
    LOST = "lost"
    # this worker is draining
    DRAINING = "draining"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewTarget:
    """Where previews of a job are wanted, and until when, by a clock that only goes forward."""

    url: str
    headers: Mapping[str, str]
    until: float

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


@dataclass(kw_only=True, eq=False)
class Lease:
    """`urls` are replaced when heartbeats bring newer ones. `stop` is set once, and wakes who waits in `stopped`."""

    job: LeasedJob
    urls: Urls
    # how many more waited when it was handed over, as far as was told
    more_waiting: int = 0
    # when it came, by a clock that only goes forward
    received_at: float = field(default_factory=time.monotonic)
    phase: Phase = Phase.FETCHING
    progress: float = 0.0
    # when it began to run, which may be long after it was fetched
    began_at: datetime | None = None
    began_after_seconds: float | None = None
    # of the node that runs now, for people
    node_title: str = ""
    # where it runs, by the name that its worker gave the server
    server: str | None = None
    # where its pictures go while somebody watches
    preview: PreviewTarget | None = None
    # given when somebody watches
    watched: Wakeup = field(default_factory=Wakeup)
    # what is to be kept of its run however that ends; names that begin with _ are for this machine alone
    about: dict[str, Any] = field(default_factory=dict)
    stop: LeaseStop | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Unique for this lease, and fit to be part of a file's name."""
        return f"{self.dispatch_id}-{self.job.lease_token[:8]}"

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
        """For how long somebody is known to watch."""
        return self.preview.seconds_left if self.preview is not None else 0.0

    def must_stop(self, why: LeaseStop) -> None:
        """The first reason counts, but a lost lease beats all: then nothing may be said about the job any more."""
        if self.stop is None or why is LeaseStop.LOST:
            self.stop = why
        self.stopped.set()
