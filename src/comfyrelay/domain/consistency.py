"""What must agree between queue, jobs and ledger once nothing is under way, and the names of what does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.domain.queue.settlement import settlement_of, video_status_of
from comfyrelay.domain.queue.states import (
    JOB_STATUS_OF,
    TERMINAL_JOB,
    DispatchStatus,
    JobStatus,
    TransactionType,
    VideoStatus,
)

SETTLEMENTS = frozenset({TransactionType.JOB_CONSUME, TransactionType.JOB_REFUND})


class FindingKind(StrEnum):
    MISSING_DISPATCH = "missing_dispatch"
    ORPHANED_DISPATCH = "orphaned_dispatch"
    JOB_BEHIND = "job_behind"
    DISPATCH_BEHIND = "dispatch_behind"
    MISSING_RESERVE = "missing_reserve"
    ORPHANED_RESERVE = "orphaned_reserve"
    SETTLED_EARLY = "settled_early"
    UNSETTLED = "unsettled"
    SETTLED_WRONG = "settled_wrong"
    WALLET_DRIFT = "wallet_drift"
    VIDEO_DIFFERS = "video_differs"
    STUCK_OUTBOX = "stuck_outbox"
    DANGLING_LEASE = "dangling_lease"
    UNKNOWN_SHARD = "unknown_shard"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inconsistency:
    kind: FindingKind
    text: str
    shard: str
    tenant_id: str | None = None
    job_id: str | None = None
    dispatch_id: int | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        return (self.kind, self.tenant_id, self.job_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """All that is known of one job, in both databases."""

    shard: str
    job_id: str
    tenant_id: str
    status: str
    reserved_tokens: int
    dispatch_version: int
    dispatch: Dispatch | None
    transactions: Mapping[str, int]
    video_status: str | None
    has_pending_update: bool
    has_submission: bool

    def finding(self, kind: FindingKind, text: str) -> Inconsistency:
        return Inconsistency(
            kind=kind,
            text=text,
            shard=self.shard,
            tenant_id=self.tenant_id,
            job_id=self.job_id,
            dispatch_id=self.dispatch.id if self.dispatch else None,
        )

    @property
    def net(self) -> int:
        return sum(self.transactions.values())

    @property
    def expected_net(self) -> int:
        return -self.reserved_tokens if self.status == JobStatus.COMPLETED else 0


def disagreements(facts: JobFacts) -> Sequence[Inconsistency]:
    """What does not agree about a job. Whatever a pending update or submission explains is not a disagreement."""
    if facts.has_pending_update or facts.has_submission:
        return []
    return [*_queue(facts), *_ledger(facts), *_video(facts)]


def _queue(facts: JobFacts) -> list[Inconsistency]:
    dispatch, ended = facts.dispatch, facts.status in TERMINAL_JOB
    if dispatch is None:
        if ended:
            return []
        return [facts.finding(FindingKind.MISSING_DISPATCH, f"The job is {facts.status}, but not in the queue.")]
    shown = JOB_STATUS_OF[DispatchStatus(dispatch.status)]
    if shown != facts.status:
        text = f"The job is {facts.status}, its dispatch {dispatch.status}."
        return [facts.finding(FindingKind.DISPATCH_BEHIND if ended else FindingKind.JOB_BEHIND, text)]
    if not ended and dispatch.version != facts.dispatch_version:
        text = f"The job knows of {facts.dispatch_version} moves of its dispatch, which has made {dispatch.version}."
        return [facts.finding(FindingKind.JOB_BEHIND, text)]
    return []


def _ledger(facts: JobFacts) -> list[Inconsistency]:
    found = []
    if TransactionType.JOB_RESERVE not in facts.transactions:
        found.append(facts.finding(FindingKind.MISSING_RESERVE, f"The job is {facts.status}, but holds no tokens."))
    settled = SETTLEMENTS & facts.transactions.keys()
    owed = settlement_of(facts.status)
    if owed is None and settled:
        text = f"The job is {facts.status}, but has {' and '.join(sorted(settled))}."
        found.append(facts.finding(FindingKind.SETTLED_EARLY, text))
    elif owed is not None and not settled:
        found.append(facts.finding(FindingKind.UNSETTLED, f"The job is {facts.status}, but has no {owed}."))
    elif owed is not None and _is_wrong(facts, owed) and not found:
        text = f"The job is {facts.status}; its tokens come to {facts.net}, not {facts.expected_net}."
        found.append(facts.finding(FindingKind.SETTLED_WRONG, text))
    return found


def _is_wrong(facts: JobFacts, owed: TransactionType) -> bool:
    """The wrong settlement or the wrong sum; an adjustment says that somebody has seen to it."""
    if TransactionType.ADJUSTMENT in facts.transactions:
        return False
    return owed not in facts.transactions or facts.net != facts.expected_net


def _video(facts: JobFacts) -> list[Inconsistency]:
    expected = video_status_of(facts.status)
    if facts.video_status in {None, VideoStatus.EXPIRED, expected}:
        return []
    text = f"The video is {facts.video_status}, its job {facts.status}."
    return [facts.finding(FindingKind.VIDEO_DIFFERS, text)]
