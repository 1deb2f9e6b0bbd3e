"""The admin API: workers."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from comfyrelay.domain.queue.states import Stage, WorkerState
from comfyrelay.protocol.base import AnswerBody, Page, Request, example
from comfyrelay.protocol.fields import STORABLE, OpenEnum, Reported
from comfyrelay.protocol.progress import ReportedProgress
from comfyrelay.protocol.records import Registration, WorkerMachine


class Gpu(AnswerBody):
    """A ComfyUI with its GPU. `server` is its name, as in `progress.server`. Memory is in bytes, `load` is from 0 to 1.
    `on_gpu` is the number of ComfyUI processes that share the GPU, and `packing` the reason for that number.
    `unavailable_reason` is the reason why ComfyUI cannot be used, or null."""

    server: str | None = None
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    load: float | None = None
    slots: int | None = None
    on_gpu: int | None = None
    packing: str | None = None
    unavailable_reason: str | None = None


class WorkerJob(AnswerBody):
    """A job that the worker has leased. `is_prefetch`: the worker may not have started it yet."""

    dispatch_id: int
    job_id: str
    tenant_id: str
    workflow_slug: str
    leased_at: datetime
    is_prefetch: bool
    progress: Annotated[ReportedProgress | None, Reported]


class WorkerSummary(AnswerBody):
    """A worker. `blocked` is the number of workflows whose jobs the worker does not get, because they failed there."""

    worker_id: str
    display_name: str | None
    fleet_slug: str
    stage: OpenEnum[Stage]
    state: OpenEnum[WorkerState]
    leases: int
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    registration_source: str
    capacity_type: str | None
    instance_type: str | None
    protocol: int = 1
    version: str | None = None
    last_seen_at: datetime
    created_at: datetime
    blocked: int = 0
    gpus: list[Gpu] = Field(default_factory=list)
    jobs: list[WorkerJob] = Field(default_factory=list)


class WorkerPage(Page[WorkerSummary]):
    """One page of workers. `counts` is the number of workers by state that match all other filters."""

    counts: dict[str, int]


class WorkflowBlock(AnswerBody):
    """A workflow whose jobs the worker does not get, because they failed there. `workflow_slug` is null if the workflow
    was changed or deleted. `reason` is the last failure. A block with `is_out_of_memory` also ends when ComfyUI
    restarts."""

    workflow_hash: str
    workflow_slug: str | None = None
    failure_count: int
    blocked_until: datetime | None
    reason: str | None = None
    is_out_of_memory: bool = False


class UnblockRequest(Request):
    """Without a `workflow_hash`, all blocks of the worker end."""

    model_config = example(workflow_hash="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")

    workflow_hash: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)] | None = None


class LoadedWorkflow(AnswerBody):
    """A workflow whose models the worker has loaded."""

    workflow_hash: str
    workflow_slug: str | None


class MissingForWorkflow(AnswerBody):
    """A workflow whose jobs the worker does not get, because it is missing these node types and models."""

    workflow_hash: str
    workflow_slug: str | None
    node_types: list[str]
    models: list[str]


class WorkerDetails(WorkerSummary):
    """A worker with details. `capabilities` is the beginning of its report: at most 100 entries of each list.
    `node_count` and `model_count` count the complete lists; null means that they are not reported. `comfyui_versions`
    are the different versions of its ComfyUI servers, and `comfyui_note` mentions versions that are older or newer than
    all versions that this server was tested with."""

    workflow_slugs: list[str]
    blocks: list[WorkflowBlock]
    loaded: list[LoadedWorkflow]
    missing_requirements: list[MissingForWorkflow]
    registration: Registration
    machine: WorkerMachine | None
    comfyui_versions: list[str]
    comfyui_note: str | None
    node_count: int | None = None
    model_count: int | None = None
    capabilities: Annotated[dict[str, Any], Reported]


class WorkerLogs(AnswerBody):
    """The last lines of a worker's log, oldest first. Each line is a JSON object as text. `received_at` is null until
    the worker has sent the lines; an online worker sends them `within_seconds`."""

    worker_id: str
    lines: list[str]
    received_at: datetime | None
    within_seconds: float


class RotatedToken(AnswerBody):
    """The new token of a worker. It is sent only once."""

    worker_id: str
    token: str


class AuditEntry(AnswerBody):
    id: int
    created_at: datetime
    worker_id: str
    event: str
    dispatch_id: int | None
    data: Annotated[dict[str, Any] | None, Reported]
