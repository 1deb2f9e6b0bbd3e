"""Events of a pool. The `type` of a class is the name for subscriptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from comfyrelay.comfyui.outputs import OutputFile, RunResult
from comfyrelay.domain.queue.blocks import BLOCKED_EVENT, UNBLOCKED_EVENT
from comfyrelay.errors import ComfyError


class ClientState(StrEnum):
    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolEvent:
    type: ClassVar[str] = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolReady(PoolEvent):
    """Every server has been checked once. `client_ids` are the online servers."""

    type: ClassVar[str] = "pool:ready"
    client_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientStateChanged(PoolEvent):
    type: ClassVar[str] = "client:state"
    client_id: str
    state: ClientState
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientBlockedWorkflow(PoolEvent):
    """A server gets no jobs of a workflow until `blocked_until`."""

    type: ClassVar[str] = BLOCKED_EVENT
    client_id: str
    workflow_hash: str
    blocked_until: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientUnblockedWorkflow(PoolEvent):
    type: ClassVar[str] = UNBLOCKED_EVENT
    client_id: str
    workflow_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolJobEvent(PoolEvent):
    """`client_id` is the current or last server. `attempt` starts at 1, and is 0 before the first attempt."""

    job_id: str
    workflow_hash: str
    metadata: Mapping[str, Any]
    client_id: str | None
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobQueued(PoolJobEvent):
    type: ClassVar[str] = "job:queued"
    priority: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAccepted(PoolJobEvent):
    """The server accepted the run. `position` is the number of runs ahead of it, or `None` if unknown."""

    type: ClassVar[str] = "job:accepted"
    prompt_id: str
    position: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(PoolJobEvent):
    type: ClassVar[str] = "job:started"
    prompt_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProgress(PoolJobEvent):
    """A node started, or has completed `value` of `maximum` steps. `progress` covers the whole run, from 0 to 1."""

    type: ClassVar[str] = "job:progress"
    prompt_id: str
    node_id: str
    class_type: str
    progress: float
    value: float = 0.0
    maximum: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPreview(PoolJobEvent):
    type: ClassVar[str] = "job:preview"
    prompt_id: str
    node_id: str | None
    image: bytes
    mime_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOutput(PoolJobEvent):
    """An output node has finished. `files` and `texts` are its outputs."""

    type: ClassVar[str] = "job:output"
    prompt_id: str
    node_id: str
    files: tuple[OutputFile, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPrinted(PoolJobEvent):
    """A script printed a line. Graphs never send this event."""

    type: ClassVar[str] = "job:printed"
    prompt_id: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobNoted(PoolJobEvent):
    """Metadata to store with the run, regardless of its outcome. Graphs send it only if stopped during submission."""

    type: ClassVar[str] = "job:noted"
    prompt_id: str
    about: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRetrying(PoolJobEvent):
    """This attempt failed. The next attempt may start in `delay_seconds`."""

    type: ClassVar[str] = "job:retrying"
    error: ComfyError
    delay_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCompleted(PoolJobEvent):
    type: ClassVar[str] = "job:completed"
    result: RunResult


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFailed(PoolJobEvent):
    type: ClassVar[str] = "job:failed"
    error: ComfyError


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCanceled(PoolJobEvent):
    type: ClassVar[str] = "job:canceled"
    reason: str


EVENT_CLASSES: dict[str, type[PoolEvent]] = {
    event_class.type: event_class
    for event_class in (
        PoolEvent,
        PoolReady,
        ClientStateChanged,
        ClientBlockedWorkflow,
        ClientUnblockedWorkflow,
        JobQueued,
        JobAccepted,
        JobStarted,
        JobProgress,
        JobPreview,
        JobOutput,
        JobPrinted,
        JobNoted,
        JobRetrying,
        JobCompleted,
        JobFailed,
        JobCanceled,
    )
}
