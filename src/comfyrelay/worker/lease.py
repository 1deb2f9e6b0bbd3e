"""A job that this worker holds, as the control plane handed it over, and what has become of it since."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = ["Asset", "Lease", "Phase", "Stop", "Urls"]


class Phase(StrEnum):
    """How far a job has come here. Up to `WAITING` nothing of it has run."""

    FETCHING = "fetching"
    WAITING = "waiting"
    RUNNING = "running"
    STORING = "storing"
    SETTLING = "settling"


class Stop(StrEnum):
    """Why a job must not go on here."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RELEASE = "release"
    # the lease is no longer ours: somebody else may be running it
    LOST = "lost"
    # this worker is draining
    DRAINING = "draining"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asset:
    """A file that a job needs. `content_hash` is there for effect assets only: those may be kept."""

    key: str
    placeholder: str
    content_hash: str | None
    type: str
    is_primary_input: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Urls:
    """Pre-signed URLs: of each asset by its key, and of the output with the headers that its upload must carry."""

    output_url: str
    output_headers: Mapping[str, str]
    assets: Mapping[str, str]


@dataclass(kw_only=True, eq=False)
class Lease:
    """`urls` are replaced when heartbeats bring newer ones. `stop` is set once, and wakes who waits in `stopped`."""

    dispatch_id: int
    lease_token: str
    attempt: int
    provider: str
    job_id: str
    tenant_id: str
    workflow_hash: str
    graph: dict[str, Any]
    assets: tuple[Asset, ...]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    input_name: str | None
    input_mime_type: str | None
    extra_data: Mapping[str, Any]
    urls: Urls
    # when it came, by a clock that only goes forward
    received_at: float = field(default_factory=time.monotonic)
    phase: Phase = Phase.FETCHING
    progress: float = 0.0
    # when it began to run, which may be long after it was fetched
    began_at: datetime | None = None
    began_after_seconds: float | None = None
    # of the node that runs now, for people
    node_title: str = ""
    # what is to be kept of its run however that ends; names that begin with _ are for this machine alone
    about: dict[str, Any] = field(default_factory=dict)
    stop: Stop | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Unique for this lease, and fit to be part of a file's name."""
        return f"{self.dispatch_id}-{self.lease_token[:8]}"

    @classmethod
    def from_json(cls, job: Mapping[str, Any]) -> "Lease":
        """Read the `job` of a poll's answer."""
        payload = job["input_payload"]
        assets = payload["assets"]
        return cls(
            dispatch_id=job["dispatch_id"],
            lease_token=job["lease_token"],
            attempt=job["attempt"],
            provider=job["provider"],
            job_id=job["job_id"],
            tenant_id=job["tenant_id"],
            workflow_hash=job["workflow_hash"],
            graph=payload["workflow"],
            assets=tuple(
                Asset(
                    key=each["key"],
                    placeholder=each["placeholder"],
                    content_hash=each["content_hash"],
                    type=each["type"],
                    is_primary_input=each["is_primary_input"],
                )
                for each in assets
            ),
            output_node_id=payload["output_node_id"],
            output_extension=payload["output_extension"],
            output_mime_type=payload["output_mime_type"],
            input_name=payload["input_name"],
            input_mime_type=payload["input_mime_type"],
            extra_data=payload["extra_data"],
            urls=Urls(
                output_url=job["output_url"],
                output_headers=job["output_headers"],
                assets={each["key"]: each["download_url"] for each in assets},
            ),
            began_after_seconds=job.get("began_after_seconds"),
            about=dict(job.get("about") or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {
            "dispatch_id": self.dispatch_id,
            "lease_token": self.lease_token,
            "attempt": self.attempt,
            "provider": self.provider,
            "job_id": self.job_id,
            "tenant_id": self.tenant_id,
            "workflow_hash": self.workflow_hash,
            "output_url": self.urls.output_url,
            "output_headers": dict(self.urls.output_headers),
            "began_after_seconds": self.began_after_seconds,
            "about": self.about,
            "input_payload": {
                "workflow": self.graph,
                "assets": [{**asdict(each), "download_url": self.urls.assets[each.key]} for each in self.assets],
                "output_node_id": self.output_node_id,
                "output_extension": self.output_extension,
                "output_mime_type": self.output_mime_type,
                "input_name": self.input_name,
                "input_mime_type": self.input_mime_type,
                "extra_data": dict(self.extra_data),
            },
        }

    def must_stop(self, why: Stop) -> None:
        """The first reason counts, but a lost lease beats all: then nothing may be said about the job any more."""
        if self.stop is None or why is Stop.LOST:
            self.stop = why
        self.stopped.set()
