"""Apply the queue's updates to a job and its attempts, events, tokens, video and output.

An update is applied only if its version is the next one. Several processes may deliver it late or repeatedly, and it
still takes effect once and in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from comfyrelay.domain.prices.metered import charged_tokens
from comfyrelay.domain.queue.batch_holds import hold_text
from comfyrelay.domain.queue.customer_texts import failure_text
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobEventType, JobStatus, Outcome, TransactionType, VideoStatus
from comfyrelay.domain.queue.updates import JobUpdate, UploadedOutput
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import Fault

CANCELED_TEXT = "Canceled."
# Workers and operators write the reasons of these events. Customers do not see them.
_OPERATOR_REASONS = frozenset({JobEventType.REQUEUED, JobEventType.RETRYING, JobEventType.PROVIDER})

_VIDEO_STATUS_OF = {
    JobStatus.QUEUED: VideoStatus.QUEUED,
    JobStatus.PAUSED: VideoStatus.QUEUED,
    JobStatus.PROCESSING: VideoStatus.PROCESSING,
    JobStatus.COMPLETED: VideoStatus.COMPLETED,
    JobStatus.FAILED: VideoStatus.FAILED,
    JobStatus.CANCELED: VideoStatus.FAILED,
}


class JobState(NamedTuple):
    """The part of a job row that updates change."""

    id: str
    tenant_id: str
    user_id: str
    video_id: str | None
    status: str
    priority: int
    attempts: int
    reserved_tokens: int
    dispatch_version: int
    event_seq: int
    started_at: datetime | None
    completed_at: datetime | None
    output_file_id: str | None
    provider_job_id: str | None
    error_message: str | None
    error_detail: str | None
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    millitokens_per_second: int | None = None
    # Set when the job ends.
    charged_tokens: int | None = None
    # Set if the job runs an effect. Its user then gets errors without technical details.
    effect_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    job_id: str
    epoch: int
    tenant_id: str
    number: int
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime | None = None
    outcome: str | None = None
    fault: str | None = None
    error: str | None = None
    seed: int | None = None
    about: dict[str, Any] | None = None
    provider_job_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    job_id: str
    seq: int
    tenant_id: str
    type: str
    data: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchHold:
    """A hold on a batch, caused by the failure of a job."""

    batch_id: str
    job_id: str
    text: str
    at: datetime
    began_at: datetime | None = None
    # Ids of jobs that failed earlier for the same reason.
    held_with: Sequence[str] = ()

    def merge_into(self, held: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the batch's hold with this failure added.

        If the job had started before the batch was held, the hold keeps its first reason and only gains the job, which
        is then rerun with the others.
        """
        jobs = [*(held["jobs"] if held else ()), *self.held_with, self.job_id]
        if held is not None and (self.began_at or self.at) <= datetime.fromisoformat(held["at"]):
            return {**held, "jobs": jobs}
        return {"text": self.text, "at": self.at.isoformat(), "by": self.job_id, "jobs": jobs}


@dataclass(kw_only=True, slots=True)
class Settled:
    """Everything that the updates of one job change."""

    job: JobState
    attempts: dict[int, Attempt] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    settlement: TransactionType | None = None
    settled_at: datetime | None = None
    # The first one is the cover.
    outputs: Sequence[UploadedOutput] = ()
    hold: BatchHold | None = None
    # Number of leases so far. Each may have left uploaded files, and may still upload one.
    leases: int = 0


def settlement_of(status: str, charged_tokens: int) -> TransactionType | None:
    """Return the settlement of a job, or `None` if it has not ended.

    A completed or charged job consumes its tokens; any other is refunded.
    """
    if status == JobStatus.COMPLETED or charged_tokens:
        return TransactionType.JOB_CONSUME
    if status in {JobStatus.FAILED, JobStatus.CANCELED}:
        return TransactionType.JOB_REFUND
    return None


def video_status_of(job_status: str) -> VideoStatus:
    return _VIDEO_STATUS_OF[JobStatus(job_status)]


def apply_updates(job: JobState, updates: Sequence[JobUpdate], *, users_are_owners: bool = False) -> Settled | None:
    """Apply the next updates in order; skip updates that were applied before or come after a gap.

    Users of an effect get its errors without technical details, unless they run the server themselves.
    """
    settled = Settled(job=job)
    is_customer = job.effect_id is not None and not users_are_owners
    for update in sorted(updates, key=lambda update: update.version):
        if update.version == settled.job.dispatch_version + 1 and settled.job.status not in TERMINAL_JOB:
            _apply_update(settled, update, is_customer=is_customer)
    return settled if settled.job is not job else None


def _apply_update(settled: Settled, update: JobUpdate, *, is_customer: bool) -> None:
    job = settled.job
    terminal = update.status in TERMINAL_JOB
    seq = job.event_seq + 1
    error_message, error_detail = _error_texts(job, update, is_customer=is_customer)
    settled.job = job._replace(
        status=update.status,
        priority=update.priority,
        attempts=update.attempts,
        dispatch_version=update.version,
        event_seq=seq,
        started_at=_started_at(job, update),
        completed_at=update.at if terminal else None,
        output_file_id=update.output.file_id if update.output else job.output_file_id,
        provider_job_id=update.provider_job_id or job.provider_job_id,
        error_message=error_message,
        error_detail=error_detail,
        cost_micros=update.cost_micros,
        expected_cost_micros=update.expected_cost_micros,
    )
    settled.events.append(
        Event(
            job_id=job.id,
            seq=seq,
            tenant_id=job.tenant_id,
            type=update.event_type,
            data=_event_data(update, error_message, is_customer=is_customer),
            created_at=update.at,
        )
    )
    if update.event_type == JobEventType.STARTED or update.outcome is not None:
        settled.attempts[update.epoch] = _attempt(update)
    if terminal:
        charged = _charge(settled.job, update)
        settled.job = settled.job._replace(charged_tokens=charged)
        settled.settlement = settlement_of(update.status, charged)
        settled.settled_at = update.at
        settled.outputs = [update.output, *update.more_outputs] if update.output is not None else ()
        settled.leases = update.epoch
        if update.hold is not None and update.batch_id is not None:
            settled.hold = BatchHold(
                batch_id=update.batch_id,
                job_id=job.id,
                text=_hold_text(update, is_customer=is_customer) or update.hold,
                at=update.at,
                began_at=update.started_at,
                held_with=update.held_with,
            )


def _charge(ended: JobState, update: JobUpdate) -> int:
    """Return the tokens that an ended job costs.

    Only completed jobs cost tokens, unless the job has a price per second. Then a run that the user canceled, or whose
    graph failed, is charged for its seconds too. Attempts that failed because of a worker are free.
    """
    is_job_fault = update.outcome == Outcome.FAILED and update.fault == Fault.JOB
    is_caused_by_user = update.outcome == Outcome.CANCELED or is_job_fault
    is_charged_run = ended.millitokens_per_second is not None and update.has_run and is_caused_by_user
    if ended.status != JobStatus.COMPLETED and not is_charged_run:
        return 0
    return charged_tokens(
        reserved_tokens=ended.reserved_tokens,
        millitokens_per_second=ended.millitokens_per_second,
        started_at=ended.started_at,
        completed_at=update.at,
    )


def _hold_text(update: JobUpdate, *, is_customer: bool) -> str | None:
    if not is_customer or update.hold is None:
        return update.hold
    return hold_text(failure_text(update.error), failures=len(update.held_with) + 1)


def _started_at(job: JobState, update: JobUpdate) -> datetime | None:
    """Return the time of the first lease or, once an attempt has ended, the start of its run."""
    if update.outcome is not None and update.started_at is not None:
        return update.started_at
    return job.started_at or update.started_at


def _error_texts(job: JobState, update: JobUpdate, *, is_customer: bool) -> tuple[str | None, str | None]:
    """Return the message for users and the raw text for operators.

    A retried job keeps the raw text of its last error.
    """
    if update.status == JobStatus.FAILED:
        is_refunded = job.reserved_tokens > 0
        text = failure_text(update.error, is_refunded=is_refunded) if is_customer else user_sentence(update.error)
        return text, update.error
    if update.status == JobStatus.CANCELED:
        return CANCELED_TEXT, job.error_detail
    return None, update.error or job.error_detail


def _attempt(update: JobUpdate) -> Attempt:
    ended = update.outcome is not None
    return Attempt(
        job_id=update.job_id,
        epoch=update.epoch,
        tenant_id=update.tenant_id,
        number=update.attempt or update.attempts,
        worker_id=update.worker_id,
        started_at=update.started_at,
        ended_at=update.at if ended else None,
        outcome=update.outcome,
        fault=update.fault,
        error=update.error or (update.reason if update.outcome == Outcome.REQUEUED else None),
        seed=update.seed,
        about=update.about,
        provider_job_id=update.provider_job_id,
    )


def _event_data(update: JobUpdate, error_message: str | None, *, is_customer: bool) -> dict[str, Any]:
    """Return the event data for the tenant, without worker id and raw error text."""
    data: dict[str, Any] = {"status": update.status, "attempt": update.attempt or update.attempts}
    if error_message is not None:
        data["error"] = error_message
    elif update.error is not None:
        data["error"] = failure_text(update.error) if is_customer else user_sentence(update.error)
    if update.reason is not None and (not is_customer or update.event_type not in _OPERATOR_REASONS):
        data["reason"] = user_sentence(update.reason)
    if update.hold is not None:
        data["hold"] = _hold_text(update, is_customer=is_customer)
    if update.event_type == JobEventType.PRIORITY:
        data["priority"] = update.priority
    if update.provider is not None:
        data["provider"] = update.provider
    if update.event_type == JobEventType.PROVIDER:
        data["expected_cost_micros"] = update.expected_cost_micros
    if update.status in TERMINAL_JOB and update.cost_micros:
        data["cost_micros"] = update.cost_micros
    if update.output is not None:
        data["output_file_id"] = update.output.file_id
    if update.reused_from is not None:
        data["reused_from"] = update.reused_from
    return data
