"""The admin API: the queue, and jobs that moved to Comfy Cloud."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from comfyrelay.domain.bulk import DispatchAction
from comfyrelay.domain.queue.states import DispatchStatus, Provider, Stage
from comfyrelay.protocol.admin.workers import AuditEntry
from comfyrelay.protocol.base import AnswerBody, Page, Request, example
from comfyrelay.protocol.fields import MAX_ID, OpenEnum, Reported, StrictInt
from comfyrelay.protocol.jobs import Job, JobEvent
from comfyrelay.protocol.progress import ReportedProgress
from comfyrelay.protocol.records import LeaseAttempt

Priority = Annotated[StrictInt, Field(ge=-1_000_000, le=1_000_000)]


class DispatchSummary(AnswerBody):
    """A job in the queue. `worker_id` is the worker that holds the lease, `last_worker_id` the last worker that held
    one. `machine_cost` is the cost of the machines during its leases, which is updated within two minutes after each
    lease."""

    id: int
    status: OpenEnum[DispatchStatus]
    stage: OpenEnum[Stage]
    provider: OpenEnum[Provider]
    tenant_id: str
    job_id: str
    batch_id: str | None
    workflow_slug: str
    workflow_hash: str
    effect_id: int | None
    priority: int
    attempts: int
    max_attempts: int
    worker_id: str | None
    last_worker_id: str | None
    progress: Annotated[ReportedProgress | None, Reported]
    last_error: str | None
    cancel_requested_at: datetime | None
    pause_requested_at: datetime | None
    available_at: datetime
    created_at: datetime
    leased_at: datetime | None
    lease_expires_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    machine_cost: float | None
    max_wait_seconds: int | None = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None


class DispatchAudit(AnswerBody):
    """The history of a dispatch, newest first. `attempts` are the last 200 leases."""

    attempts: list[LeaseAttempt]
    entries: Page[AuditEntry]


class NewPriority(Request):
    model_config = example(priority=10)

    priority: Priority


class Retried(AnswerBody):
    """The new job of a retry. `dispatch` is null until the job is in the queue."""

    job_id: str
    retry_of: str
    dispatch: DispatchSummary | None


class SupportJob(AnswerBody):
    """A job for an operator who helps its customer. `job` is the job as the customer sees it, `values` are the inputs
    that are not files, and `events` are the first 200 events. `email` is null once the account is deleted, and the
    effect is null if the job has none. `error_detail` is the error as the worker reported it."""

    job: Job
    email: str | None
    effect_slug: str | None
    effect_name: str | None
    error_detail: str | None
    values: dict[str, Any]
    events: list[JobEvent]


class Refunded(AnswerBody):
    """The tokens that were refunded to the customer."""

    tokens: int


class RunFree(AnswerBody):
    """The new job."""

    job_id: str


class DispatchBulk(Request):
    """An action on the jobs of these dispatches. `run_free` runs ended jobs again at no cost."""

    model_config = example(action="cancel", ids=[1, 2])

    action: DispatchAction
    ids: Annotated[list[Annotated[StrictInt, Field(ge=1, le=MAX_ID)]], Field(min_length=1, max_length=200)]


class Burst(AnswerBody):
    """A job that moved to Comfy Cloud. `reason` is the reason for the move, and `back_reason` the reason for moving
    back, if any. Costs are in millionths of the operator's currency. `seen` is the observation that led to the move."""

    id: int
    dispatch_id: int
    workflow_slug: str
    stage: OpenEnum[Stage]
    reason: str
    back_reason: str | None
    expected_cost_micros: int
    cost_micros: int
    seen: Annotated[dict[str, Any], Reported]
    created_at: datetime
    ended_at: datetime | None
