"""The admin API: workers."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from comfyrelay.domain.queue.states import Stage, WorkerState
from comfyrelay.protocol.base import AnswerBody, Page
from comfyrelay.protocol.fields import OpenEnum, Reported
from comfyrelay.protocol.progress import ToldProgress
from comfyrelay.protocol.records import Registration, WorkerMachine


class Gpu(AnswerBody):
    """A ComfyUI with its GPU, named as in `progress.server`. Memory is in bytes, `load` is from 0 to 1. `on_gpu` is how
    many ComfyUI share the GPU, `packing` why that many; `away` is why it cannot be used."""

    server: str | None = None
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    load: float | None = None
    slots: int | None = None
    on_gpu: int | None = None
    packing: str | None = None
    away: str | None = None


class WorkerJob(AnswerBody):
    """A job that the worker has leased. With `is_prefetch` it may not have started yet."""

    dispatch_id: int
    job_id: str
    tenant_id: str
    workflow_slug: str
    leased_at: datetime
    is_prefetch: bool
    progress: Annotated[ToldProgress | None, Reported]


class WorkerSummary(AnswerBody):
    """`blocked` is the number of workflows that the worker currently gets no jobs of."""

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
    """`counts` is the number of workers in each state that match the other filters."""

    counts: dict[str, int]


class WorkflowBlock(AnswerBody):
    """`workflow_slug` is null if the workflow of the hash is no longer known."""

    workflow_hash: str
    workflow_slug: str | None = None
    failure_count: int
    blocked_until: datetime | None


class Loaded(AnswerBody):
    """A workflow whose models the worker has in memory."""

    workflow_hash: str
    workflow_slug: str | None


class Lack(AnswerBody):
    """The missing requirements that keep the worker from jobs of a workflow."""

    workflow_hash: str
    workflow_slug: str | None
    node_types: list[str]
    models: list[str]


class WorkerDetails(WorkerSummary):
    workflow_slugs: list[str]
    blocks: list[WorkflowBlock]
    loaded: list[Loaded]
    lacks: list[Lack]
    registration: Registration
    machine: WorkerMachine | None
    capabilities: Annotated[dict[str, Any], Reported]


class WorkerLogs(AnswerBody):
    """The last lines of a worker's log, oldest first, each a JSON object as text. `received_at` is null until the
    worker has sent them: an online worker of this version does so `within_seconds`."""

    worker_id: str
    lines: list[str]
    received_at: datetime | None
    within_seconds: float


class RotatedToken(AnswerBody):
    """The token is shown only once."""

    worker_id: str
    token: str


class AuditEntry(AnswerBody):
    id: int
    created_at: datetime
    worker_id: str
    event: str
    dispatch_id: int | None
    data: Annotated[dict[str, Any] | None, Reported]
