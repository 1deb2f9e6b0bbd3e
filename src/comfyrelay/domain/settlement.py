"""How a job, its attempts, events, tokens, video and output follow from the queue's messages.

Applying is by version: a message counts only if it is the very next one, so that messages may be delivered often,
late and by several processes, and each still takes effect once and in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from comfyrelay.domain.messages import Message, OutputFile
from comfyrelay.domain.states import TERMINAL_JOB, JobStatus, Outcome, Said, TransactionType, VideoStatus
from comfyrelay.error_text import user_sentence

CANCELED_TEXT = "Canceled."

_VIDEO_STATUS_OF = {
    JobStatus.QUEUED: VideoStatus.QUEUED,
    JobStatus.PAUSED: VideoStatus.QUEUED,
    JobStatus.PROCESSING: VideoStatus.PROCESSING,
    JobStatus.COMPLETED: VideoStatus.COMPLETED,
    JobStatus.FAILED: VideoStatus.FAILED,
    JobStatus.CANCELED: VideoStatus.FAILED,
}


class JobState(NamedTuple):
    """What a tenant pool knows of a job before the messages are applied."""

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


@dataclass(kw_only=True, slots=True)
class Settled:
    """Everything one job's messages change."""

    job: JobState
    attempts: dict[int, Attempt] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    settlement: TransactionType | None = None
    settled_at: datetime | None = None
    output: OutputFile | None = None
    # How often the job was leased before it ended.
    leases: int = 0

    @property
    def has_lost_leases(self) -> bool:
        """Whether leases ended without a result: what they uploaded is of no use."""
        return self.leases > (1 if self.output is not None else 0)


def settlement_of(status: str) -> TransactionType | None:
    """completed means consumed; failed or canceled means refunded."""
    if status == JobStatus.COMPLETED:
        return TransactionType.JOB_CONSUME
    if status in {JobStatus.FAILED, JobStatus.CANCELED}:
        return TransactionType.JOB_REFUND
    return None


def video_status_of(job_status: str) -> VideoStatus:
    return _VIDEO_STATUS_OF[JobStatus(job_status)]


def apply_messages(job: JobState, messages: Sequence[Message]) -> Settled | None:
    """Apply what is next in line; messages already applied, and those after a gap, are left out."""
    settled = Settled(job=job)
    for message in sorted(messages, key=lambda each: each.version):
        if message.version == settled.job.dispatch_version + 1 and settled.job.status not in TERMINAL_JOB:
            _apply(settled, message)
    return settled if settled.job is not job else None


def _apply(settled: Settled, message: Message) -> None:
    job = settled.job
    terminal = message.status in TERMINAL_JOB
    seq = job.event_seq + 1
    error_message, error_detail = _error_texts(job, message)
    settled.job = job._replace(
        status=message.status,
        priority=message.priority,
        attempts=message.attempts,
        dispatch_version=message.version,
        event_seq=seq,
        started_at=_started_at(job, message),
        completed_at=message.at if terminal else None,
        output_file_id=message.output.file_id if message.output else job.output_file_id,
        provider_job_id=message.provider_job_id or job.provider_job_id,
        error_message=error_message,
        error_detail=error_detail,
    )
    settled.events.append(
        Event(
            job_id=job.id,
            seq=seq,
            tenant_id=job.tenant_id,
            type=message.said,
            data=_event_data(message, error_message),
            created_at=message.at,
        )
    )
    if message.said == Said.STARTED or message.outcome is not None:
        settled.attempts[message.epoch] = _attempt(message)
    if terminal:
        settled.settlement = settlement_of(message.status)
        settled.settled_at = message.at
        settled.output = message.output
        settled.leases = message.epoch


def _started_at(job: JobState, message: Message) -> datetime | None:
    """When it was first taken; once an attempt has ended, when the run of that one began."""
    if message.outcome is not None and message.started_at is not None:
        return message.started_at
    return job.started_at or message.started_at


def _error_texts(job: JobState, message: Message) -> tuple[str | None, str | None]:
    """The user's sentence and the operator's raw text. A retried job keeps the raw text of its last error."""
    if message.status == JobStatus.FAILED:
        return user_sentence(message.error), message.error
    if message.status == JobStatus.CANCELED:
        return CANCELED_TEXT, job.error_detail
    return None, message.error or job.error_detail


def _attempt(message: Message) -> Attempt:
    ended = message.outcome is not None
    return Attempt(
        job_id=message.job_id,
        epoch=message.epoch,
        tenant_id=message.tenant_id,
        number=message.attempt or message.attempts,
        worker_id=message.worker_id,
        started_at=message.started_at,
        ended_at=message.at if ended else None,
        outcome=message.outcome,
        fault=message.fault,
        error=message.error or (message.reason if message.outcome == Outcome.REQUEUED else None),
        seed=message.seed,
        about=message.about,
        provider_job_id=message.provider_job_id,
    )


def _event_data(message: Message, error_message: str | None) -> dict[str, Any]:
    """Events are the tenant's to read: no worker id, no raw error text."""
    data: dict[str, Any] = {"status": message.status, "attempt": message.attempt or message.attempts}
    if error_message is not None:
        data["error"] = error_message
    elif message.error is not None:
        data["error"] = user_sentence(message.error)
    if message.reason is not None:
        data["reason"] = user_sentence(message.reason)
    if message.said == Said.PRIORITY:
        data["priority"] = message.priority
    if message.output is not None:
        data["output_file_id"] = message.output.file_id
    return data
