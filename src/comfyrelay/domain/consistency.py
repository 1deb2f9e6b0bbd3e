"""Find inconsistencies between queue, jobs and ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.settlement import settlement_of, video_status_of
from comfyrelay.domain.queue.states import (
    JOB_STATUS_OF,
    TERMINAL_JOB,
    DispatchStatus,
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
    """One job as the central database and its shard store it."""

    shard: str
    job_id: str
    tenant_id: str
    status: str
    charged_tokens: int
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
        return expected_net(self.charged_tokens, self.transactions)


def expected_net(charged_tokens: int, transactions: Mapping[str, int]) -> int:
    """Return the expected sum of an ended job's transactions. An administrator may have refunded the job."""
    return min(charged_tokens, transactions.get(TransactionType.JOB_CREDIT, 0)) - charged_tokens


def find_inconsistencies(facts: JobFacts) -> Sequence[Inconsistency]:
    """Find the inconsistencies of a job, unless a pending update or submission explains them."""
    if facts.has_pending_update or facts.has_submission:
        return []
    return [*_check_queue(facts), *_check_ledger(facts), *_check_video(facts)]


def _check_queue(facts: JobFacts) -> list[Inconsistency]:
    dispatch, ended = facts.dispatch, facts.status in TERMINAL_JOB
    if dispatch is None:
        if ended:
            return []
        return [facts.finding(FindingKind.MISSING_DISPATCH, f"The job is {facts.status}, but not in the queue.")]
    if facts.status != JOB_STATUS_OF[DispatchStatus(dispatch.status)]:
        text = f"The job is {facts.status}, but its dispatch is {dispatch.status}."
        return [facts.finding(FindingKind.DISPATCH_BEHIND if ended else FindingKind.JOB_BEHIND, text)]
    if not ended and dispatch.version != facts.dispatch_version:
        text = f"The job has version {facts.dispatch_version} of its dispatch, which is at version {dispatch.version}."
        return [facts.finding(FindingKind.JOB_BEHIND, text)]
    return []


def _check_ledger(facts: JobFacts) -> list[Inconsistency]:
    found = []
    if TransactionType.JOB_RESERVE not in facts.transactions:
        found.append(
            facts.finding(FindingKind.MISSING_RESERVE, f"The job is {facts.status}, but has no reserved tokens.")
        )
    settled = SETTLEMENTS & facts.transactions.keys()
    owed = settlement_of(facts.status, facts.charged_tokens)
    if owed is None and settled:
        text = f"The job is {facts.status}, but has {' and '.join(sorted(settled))}."
        found.append(facts.finding(FindingKind.SETTLED_EARLY, text))
    elif owed is not None and not settled:
        found.append(facts.finding(FindingKind.UNSETTLED, f"The job is {facts.status}, but has no {owed}."))
    elif owed is not None and _has_wrong_settlement(facts, owed) and not found:
        text = f"The job is {facts.status}, but its tokens sum to {facts.net} instead of {facts.expected_net}."
        found.append(facts.finding(FindingKind.SETTLED_WRONG, text))
    return found


def _has_wrong_settlement(facts: JobFacts, owed: TransactionType) -> bool:
    """Whether the settlement or the sum is wrong. Neither is checked after a manual adjustment."""
    if TransactionType.ADJUSTMENT in facts.transactions:
        return False
    return owed not in facts.transactions or facts.net != facts.expected_net


def _check_video(facts: JobFacts) -> list[Inconsistency]:
    expected = video_status_of(facts.status)
    if facts.video_status in {None, VideoStatus.EXPIRED, expected}:
        return []
    text = f"The video is {facts.video_status}, but its job is {facts.status}."
    return [facts.finding(FindingKind.VIDEO_DIFFERS, text)]
