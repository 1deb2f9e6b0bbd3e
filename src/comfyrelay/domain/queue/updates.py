"""What the queue tells a shard: one update per move of a dispatch, numbered by the dispatch's version.

An update carries everything its consumer needs, so a shard can be told long after the fact.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from comfyrelay.domain.queue.lifecycle import Dispatch, Move
from comfyrelay.domain.queue.states import JOB_STATUS_OF, DispatchStatus, JobEventType, JobStatus, Outcome

_TIMES = ("at", "started_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaFacts:
    """What was found out about a file, as far as it applies; `poster` and `preview` are the formats of what lies beside
    it. One that is `undrawn` may get them later."""

    width: int | None = None
    height: int | None = None
    seconds: float | None = None
    poster: str | None = None
    preview: str | None = None
    undrawn: bool = False


NOTHING_FOUND = MediaFacts()


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadedOutput:
    """The output a worker uploaded, as it described it."""

    file_id: str
    path: str
    size: int
    mime_type: str
    sha256: str | None = None
    metadata: dict[str, Any] | None = None
    # all that the worker said of it, as it was sent
    sent: dict[str, Any] | None = None
    media: MediaFacts = NOTHING_FOUND


@dataclass(frozen=True, kw_only=True, slots=True)
class JobUpdate:
    tenant_id: str
    job_id: str
    version: int
    event_type: str
    status: str
    at: datetime
    epoch: int
    attempts: int
    priority: int
    # Set when a lease began or ended with this move.
    attempt: int | None = None
    worker_id: str | None = None
    started_at: datetime | None = None
    outcome: str | None = None
    error: str | None = None
    fault: str | None = None
    reason: str | None = None
    # Why the rest of its batch is held, with the failure that did it.
    hold: str | None = None
    batch_id: str | None = None
    seed: int | None = None
    # What the worker wants to be kept of the run: of a script, its command and how it ended.
    about: dict[str, Any] | None = None
    provider_job_id: str | None = None
    output: UploadedOutput | None = None
    # Where it is from now on, when that changed with this move.
    provider: str | None = None
    # What its leases have cost so far, and what going to the cloud should cost.
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    # The job whose output it was answered with: then it was never in the queue.
    reused_from: str | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "JobUpdate":
        """From its fields as JSON has them."""
        values = dict(fields)
        for name in _TIMES:
            if values.get(name) is not None:
                # In SQLite times are UTC, and do not say so.
                at = datetime.fromisoformat(values[name])
                values[name] = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if values.get("output") is not None:
            output = values["output"]
            values["output"] = UploadedOutput(**{**output, "media": MediaFacts(**output.get("media", {}))})
        return cls(**values)


def update_of(
    move: Move,
    *,
    at: datetime,
    provider_job_id: str | None = None,
    output: UploadedOutput | None = None,
    seed: int | None = None,
    began_at: datetime | None = None,
    about: dict[str, Any] | None = None,
) -> JobUpdate:
    """The update a move leaves behind. A lease that ended is described by the dispatch before the move; `began_at` is
    when its run began, where that is known."""
    before, after = move.before, move.after
    ended = move.ended is not None
    return JobUpdate(
        tenant_id=after.tenant_id,
        job_id=after.tenant_job_id,
        version=after.version,
        event_type=move.event_type,
        status=JOB_STATUS_OF[DispatchStatus(after.status)],
        at=at,
        epoch=after.epoch,
        attempts=after.attempts,
        priority=after.priority,
        # A requeue gives the attempt back, yet it keeps its number in the history.
        attempt=before.attempts if ended else None,
        worker_id=before.worker_id if ended else None,
        started_at=(began_at or before.leased_at) if ended else None,
        outcome=move.ended,
        error=move.error,
        fault=move.fault,
        reason=move.reason,
        hold=move.hold,
        batch_id=after.batch_id if move.hold is not None else None,
        seed=seed,
        about=about,
        provider_job_id=provider_job_id,
        output=output,
        provider=after.provider if after.provider != before.provider else None,
        cost_micros=after.cost_micros,
        expected_cost_micros=after.expected_cost_micros,
    )


def reused(
    *,
    tenant_id: str,
    job_id: str,
    priority: int,
    at: datetime,
    reused_from: str,
    output: UploadedOutput,
    about: dict[str, Any] | None = None,
) -> JobUpdate:
    """The only update of a job that is answered with a copy of another's output, which no queue has made. What is to be
    kept of that is kept as of an attempt."""
    return JobUpdate(
        tenant_id=tenant_id,
        job_id=job_id,
        version=1,
        event_type=JobEventType.COMPLETED,
        status=JobStatus.COMPLETED,
        at=at,
        epoch=0,
        attempts=0,
        priority=priority,
        output=output,
        reused_from=reused_from,
        about=about,
        outcome=Outcome.COMPLETED if about is not None else None,
    )


def start_of(leased: Dispatch) -> JobUpdate:
    """The update that a lease leaves behind as it begins."""
    assert leased.leased_at is not None
    return JobUpdate(
        tenant_id=leased.tenant_id,
        job_id=leased.tenant_job_id,
        version=leased.version,
        event_type=JobEventType.STARTED,
        status=JobStatus.PROCESSING,
        at=leased.leased_at,
        epoch=leased.epoch,
        attempts=leased.attempts,
        priority=leased.priority,
        attempt=leased.attempts,
        worker_id=leased.worker_id,
        started_at=leased.leased_at,
        cost_micros=leased.cost_micros,
        expected_cost_micros=leased.expected_cost_micros,
    )
