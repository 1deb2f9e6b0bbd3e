"""Job updates that the queue sends to a shard: one per transition, numbered by the dispatch's version.

An update contains everything its consumer needs, so it can be delivered much later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.states import JOB_STATUS_OF, DispatchStatus, JobEventType, JobStatus, Outcome

_TIMES = ("at", "started_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaFacts:
    """Properties of a media file. `poster` and `preview` are the formats of the derived files, if any.

    If `undrawn`, they may be created later.
    """

    width: int | None = None
    height: int | None = None
    seconds: float | None = None
    poster: str | None = None
    preview: str | None = None
    undrawn: bool = False


NO_MEDIA_FACTS = MediaFacts()


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadedOutput:
    """An uploaded output, as its worker described it."""

    file_id: str
    path: str
    size: int
    mime_type: str
    sha256: str | None = None
    metadata: dict[str, Any] | None = None
    # The worker's description, unchanged.
    sent: dict[str, Any] | None = None
    media: MediaFacts = NO_MEDIA_FACTS


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
    # Set if a lease began or ended with this transition.
    attempt: int | None = None
    worker_id: str | None = None
    started_at: datetime | None = None
    # The worker reported that the run had begun.
    has_run: bool = False
    outcome: str | None = None
    error: str | None = None
    fault: str | None = None
    reason: str | None = None
    # Why this failure holds the rest of the batch.
    hold: str | None = None
    held_with: Sequence[str] = ()
    batch_id: str | None = None
    seed: int | None = None
    # Details of the run to keep, such as a script's command and exit code.
    about: dict[str, Any] | None = None
    provider_job_id: str | None = None
    output: UploadedOutput | None = None
    # The other outputs, in order.
    more_outputs: Sequence[UploadedOutput] = ()
    # The new provider, if this transition changed it.
    provider: str | None = None
    # Cost of all leases so far, and the estimated cost of the cloud run.
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    # The job whose outputs were reused; this job was never queued.
    reused_from: str | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "JobUpdate":
        values = dict(fields)
        for name in _TIMES:
            if values.get(name) is not None:
                # SQLite stores UTC without an offset.
                at = datetime.fromisoformat(values[name])
                values[name] = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if values.get("output") is not None:
            values["output"] = _output_from_json(values["output"])
        values["more_outputs"] = tuple(map(_output_from_json, values.get("more_outputs", ())))
        return cls(**values)


def _output_from_json(fields: dict[str, Any]) -> UploadedOutput:
    return UploadedOutput(**{**fields, "media": MediaFacts(**fields.get("media", {}))})


def update_of_transition(
    transition: Transition,
    *,
    at: datetime,
    provider_job_id: str | None = None,
    output: UploadedOutput | None = None,
    more_outputs: Sequence[UploadedOutput] = (),
    seed: int | None = None,
    began_at: datetime | None = None,
    has_run: bool = False,
    about: dict[str, Any] | None = None,
) -> JobUpdate:
    """Describe a transition. An ended lease is described by the dispatch before the transition.

    `began_at` is the start of the run, if known, and `has_run` whether its worker reported one.
    """
    before, after = transition.before, transition.after
    if transition.event_type is JobEventType.STARTED:
        return replace(update_of_lease(after), at=at)
    ended = transition.lease_outcome is not None
    return JobUpdate(
        tenant_id=after.tenant_id,
        job_id=after.tenant_job_id,
        version=after.version,
        event_type=transition.event_type,
        status=JOB_STATUS_OF[DispatchStatus(after.status)],
        at=at,
        epoch=after.epoch,
        attempts=after.attempts,
        priority=after.priority,
        # A requeue does not count the attempt, but the history keeps its number.
        attempt=before.attempts if ended else None,
        worker_id=before.worker_id if ended else None,
        started_at=(began_at or before.leased_at) if ended else None,
        has_run=has_run,
        outcome=transition.lease_outcome,
        error=transition.error,
        fault=transition.fault,
        reason=transition.reason,
        hold=transition.hold,
        held_with=transition.held_with,
        batch_id=after.batch_id if transition.hold is not None else None,
        seed=seed,
        about=about,
        provider_job_id=provider_job_id,
        output=output,
        more_outputs=more_outputs,
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
    outputs: Sequence[UploadedOutput],
    about: dict[str, Any] | None = None,
) -> JobUpdate:
    """Return the only update of a job that reuses another job's outputs without being queued.

    `about` is stored with an attempt.
    """
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
        output=outputs[0],
        more_outputs=outputs[1:],
        reused_from=reused_from,
        about=about,
        outcome=Outcome.COMPLETED if about is not None else None,
    )


def update_of_lease(leased: Dispatch) -> JobUpdate:
    """Return the update for the start of a lease."""
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
