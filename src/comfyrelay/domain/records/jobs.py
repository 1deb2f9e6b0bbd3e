"""Records of jobs, batches, files and videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, NamedTuple, Self

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.states import DispatchStatus, Stage
from comfyrelay.domain.space import space_of_job

# In `about` of a failed attempt.
FAILED_NODE = "failed_node"


def is_private_graph(path: str) -> bool:
    """Return whether a graph belongs to a tenant. Graphs of the catalogue have paths by content hash."""
    return path.startswith("tenants/")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFields:
    """Fields of stored and new jobs."""

    id: str
    tenant_id: str
    user_id: str
    effect_id: int | None
    workflow_id: int
    workflow_hash: str
    provider: str
    stage: str
    priority: int
    max_attempts: int
    idempotency_key: str
    request_digest: str
    reserved_tokens: int
    batch_id: str | None = None
    item_no: int = 0
    label: str | None = None
    video_id: str | None = None
    input_file_id: str | None = None
    retry_of: str | None = None
    webhook_url: str | None = None
    max_wait_seconds: int | None = None
    # The only worker that may run the job.
    only_worker: str | None = None
    # Equal jobs of a tenant have the same fingerprint.
    fingerprint: str | None = None
    # The job whose output was reused, and the tokens that a reused output or a free run saved.
    reused_from: str | None = None
    saved_tokens: int | None = None
    # The price per second of its run, if it is charged by the second.
    millitokens_per_second: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord(JobFields):
    status: str
    attempts: int
    output_file_id: str | None
    cost_micros: int
    expected_cost_micros: int | None
    provider_job_id: str | None
    error_message: str | None
    error_detail: str | None
    dispatch_version: int
    event_seq: int
    available_at: datetime
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    # The tokens that an ended job has cost.
    charged_tokens: int | None = None

    @property
    def again_tokens(self) -> int:
        """The price of running the job again; for a reused output or a free run, the price that it would have had."""
        return self.reserved_tokens if self.saved_tokens is None else self.saved_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJobRecord(JobFields):
    input_payload: Mapping[str, Any]
    delay_seconds: float = 0

    @property
    def private_graph(self) -> str | None:
        """The path of the job's graph if the graph belongs to a tenant, otherwise `None`."""
        path: str = self.input_payload["graph_path"]
        return path if is_private_graph(path) else None

    @property
    def space_bytes(self) -> int | None:
        """The bytes that count towards the limit of the tenant; `None` if the job has a price."""
        return space_of_job(self.input_payload, tokens=self.reserved_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRecord:
    """What a client of ComfyUI's API sent with a job. `sent` has the graph (`prompt`), the extra data (`extra_data`)
    and the output nodes that run (`outputs`)."""

    job_id: str
    prompt_id: str
    client_id: str | None
    workflow_id: str | None
    sent: Mapping[str, Any]
    hidden_at: datetime | None = None

    @property
    def graph(self) -> Mapping[str, Any]:
        graph: Mapping[str, Any] = self.sent["prompt"]
        return graph

    @property
    def extra_data(self) -> Mapping[str, Any]:
        extra: Mapping[str, Any] = self.sent["extra_data"]
        return extra

    @property
    def outputs(self) -> Sequence[str]:
        nodes: Sequence[str] = self.sent["outputs"]
        return nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedNode:
    """The node at which a run failed, as its worker reports it in `about`."""

    node_id: str
    class_type: str

    @classmethod
    def from_about(cls, about: Mapping[str, Any] | None) -> Self | None:
        match (about or {}).get(FAILED_NODE):
            case {"node_id": str() as node_id, "class_type": str() as class_type}:
                return cls(node_id=node_id, class_type=class_type)
        return None

    def to_about(self) -> dict[str, Any]:
        return {FAILED_NODE: {"node_id": self.node_id, "class_type": self.class_type}}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewDispatch:
    """A dispatch to enqueue. `from_job` copies all fields that the job has under the same name. Prices are copied from
    the workflow when it is written."""

    tenant_id: str
    tenant_job_id: str
    shard: str
    workflow_id: int
    workflow_hash: str
    effect_id: int | None
    provider: str
    stage: str
    priority: int
    max_attempts: int
    batch_id: str | None
    available_at: datetime
    max_wait_seconds: int | None = None
    only_worker: str | None = None

    @classmethod
    def from_job(cls, job: JobRecord, *, shard: str) -> "NewDispatch":
        names = [column.name for column in fields(cls) if column.name in JobRecord.__dataclass_fields__]
        return cls(**{name: getattr(job, name) for name in names}, tenant_job_id=job.id, shard=shard)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    id: str
    tenant_id: str
    user_id: str
    disk: str
    path: str
    mime_type: str
    size: int | None
    content_hash: str | None
    original_filename: str | None
    created_at: datetime
    width: int | None
    height: int | None
    seconds: float | None
    # File formats of the derived files, if any.
    poster: str | None
    preview: str | None
    blake3: str | None = None
    # When a job first used or created it.
    used_at: datetime | None = None
    # When a job that used it was deleted, unless a job has used it since.
    unused_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoRecord:
    id: str
    tenant_id: str
    user_id: str
    title: str | None
    effect_id: int | None
    status: str
    job_id: str | None
    original_file_id: str | None
    processed_file_id: str | None
    processing_details: Mapping[str, Any] | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRecord:
    id: str
    tenant_id: str
    user_id: str
    label: str | None
    request_digest: str
    notify_urls: Sequence[str] | None = field(repr=False)
    # The reason and the start of its hold, and the failed jobs that caused the hold.
    held: Mapping[str, Any] | None
    created_at: datetime

    @property
    def held_text(self) -> str | None:
        return None if self.held is None else str(self.held["text"])


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLineRecord:
    id: int
    line: str
    created_at: datetime


class Unit(NamedTuple):
    """A batch, or a job without a batch."""

    id: str
    is_batch: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchFilter:
    """`worker_id` is a worker that holds or held a lease. `search` is a job id, or part of a worker id or an error.
    `begins` and `ends` limit the time at which the dispatch was queued."""

    status: DispatchStatus | None = None
    stage: Stage | None = None
    workflow_id: int | None = None
    tenant_id: str | None = None
    worker_id: str | None = None
    batch_id: str | None = None
    effect_id: int | None = None
    search: str | None = None
    begins: datetime | None = None
    ends: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedDispatch:
    dispatch: Dispatch
    progress: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedView:
    """A named set of search parameters of a page."""

    id: str
    name: str
    search: Mapping[str, str]
