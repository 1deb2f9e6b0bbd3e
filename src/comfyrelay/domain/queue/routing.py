"""Assign queued dispatches to polling workers.

The store selects candidates in queue order for each entitlement. Free slots are served first, then prefetches. A
worker prefers workflows that it has loaded ("warm"), within one priority and a bounded window.
"""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.states import Provider


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmPolicy:
    lookahead_rows: int = 32
    max_wait: timedelta = timedelta(seconds=120)


class Entitlement(NamedTuple):
    """The dispatches that a worker may lease. Workers with the same entitlement share one list of candidates."""

    stage: str
    providers: tuple[str, ...]
    workflow_ids: tuple[int, ...]
    blocked_hashes: tuple[str, ...] = ()
    # Self-hosted workflow hashes whose requirements the worker does not meet.
    unmet_hashes: tuple[str, ...] = ()
    # Self-hosted (workflow id, hash) pairs that need a larger GPU, except jobs pinned to this worker.
    oversized: tuple[tuple[int, str], ...] = ()
    # The worker's id if jobs are pinned to it, or have run out of memory on it.
    only_worker: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A worker's poll: at most `limit` dispatches, within its free slots and its prefetch allowance."""

    key: int
    worker_id: str
    entitlement: Entitlement
    limit: int
    free_slots: int
    prefetch_slots: int = 0
    warm_hashes: Set[str] = frozenset()

    @property
    def slots(self) -> int:
        return min(self.limit, self.free_slots + self.prefetch_slots)


class Candidate(NamedTuple):
    """A queued dispatch, and the time since which warm dispatches have been preferred to it."""

    dispatch: Dispatch
    passed_over_at: datetime | None = None

    @property
    def id(self) -> int:
        return self.dispatch.id


class Grant(NamedTuple):
    claim: Claim
    dispatch: Dispatch
    is_prefetch: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    grants: Sequence[Grant]
    passed_over: Set[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedDispatch:
    """A dispatch that could be leased now."""

    id: int
    stage: str
    provider: str
    workflow_id: int
    workflow_hash: str
    # The only worker that may lease it.
    only_worker: str | None = None
    # The workers that it ran out of memory on, as JSON.
    ran_out_on: str | None = None

    @property
    def kind(self) -> tuple[str, int]:
        """The stage and workflow that a worker must be assigned to."""
        return self.stage, self.workflow_id


@dataclass(frozen=True, kw_only=True, slots=True)
class ReclaimableDispatch(QueuedDispatch):
    """A leased dispatch that could be moved to another worker."""

    worker_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleWorker:
    """A worker that waits for jobs, with what it can run now."""

    worker_id: str
    providers: Sequence[str]
    kinds: Set[tuple[str, int]]
    blocked_hashes: Set[str] = frozenset()
    unmet_hashes: Set[str] = frozenset()
    # (workflow id, hash) pairs that need a larger GPU.
    oversized: Set[tuple[int, str]] = frozenset()

    def can_run(self, dispatch: ReclaimableDispatch) -> bool:
        is_oversized = (dispatch.workflow_id, dispatch.workflow_hash) in self.oversized
        is_capable = dispatch.workflow_hash not in self.unmet_hashes and not is_oversized
        return (
            dispatch.worker_id != self.worker_id
            and dispatch.only_worker is None
            and self.worker_id not in json.loads(dispatch.ran_out_on or "{}")
            and dispatch.kind in self.kinds
            and dispatch.provider in self.providers
            and dispatch.workflow_hash not in self.blocked_hashes
            and (is_capable or dispatch.provider != Provider.SELF_HOSTED)
        )


def slots_by_entitlement(claims: Sequence[Claim], *, lookahead: int) -> dict[Entitlement, int]:
    """Return how many candidates to select per entitlement. Warm workers look `lookahead` rows further."""
    slots: dict[Entitlement, int] = defaultdict(int)
    for claim in claims:
        slots[claim.entitlement] += claim.slots
    for entitlement in {claim.entitlement for claim in claims if claim.warm_hashes}:
        slots[entitlement] += lookahead
    return dict(slots)


def route(
    claims: Iterable[Claim],
    candidates: Mapping[Entitlement, Sequence[Candidate]],
    *,
    policy: WarmPolicy,
    now: datetime,
) -> Routing:
    """Grant each candidate at most once. `candidates` are in queue order: priority, rank, age.

    Workers that have a candidate's workflow loaded choose first, then the others in the order of `claims`.
    """
    waiting = _warm_first(claims, candidates, policy=policy)
    queues = {entitlement: deque(rows) for entitlement, rows in candidates.items()}
    taken: set[int] = set()
    passed: set[int] = set()
    grants: list[Grant] = []
    granted: Counter[int] = Counter()

    def serve(claim: Claim, slots: int, *, is_prefetch: bool) -> None:
        queue = queues.get(claim.entitlement, deque())
        for _ in range(slots):
            while queue and queue[0].id in taken:
                queue.popleft()
            if not queue:
                return
            chosen = queue[0]
            if claim.warm_hashes:
                rows = (row for row in queue if row.id not in taken)
                window = list(islice(rows, 1 + policy.lookahead_rows))
                position = _choose(window, claim.warm_hashes, policy=policy, now=now)
                chosen = window[position]
                passed.update(row.id for row in window[:position])
            taken.add(chosen.id)
            granted[claim.key] += 1
            grants.append(Grant(claim, chosen.dispatch, is_prefetch))

    for claim in waiting:
        serve(claim, min(claim.limit, claim.free_slots), is_prefetch=False)
    for claim in waiting:
        serve(claim, min(claim.limit - granted[claim.key], claim.prefetch_slots), is_prefetch=True)
    return Routing(grants=grants, passed_over=passed - taken)


def _warm_first(
    claims: Iterable[Claim], candidates: Mapping[Entitlement, Sequence[Candidate]], *, policy: WarmPolicy
) -> list[Claim]:
    hashes = {
        entitlement: {row.dispatch.workflow_hash for row in rows[: 1 + policy.lookahead_rows]}
        for entitlement, rows in candidates.items()
    }
    return sorted(claims, key=lambda claim: claim.warm_hashes.isdisjoint(hashes.get(claim.entitlement, ())))


def _choose(window: Sequence[Candidate], warm_hashes: Set[str], *, policy: WarmPolicy, now: datetime) -> int:
    """Return the index of the first warm candidate, or 0 if one before it has been passed over for too long."""
    for position, candidate in enumerate(window):
        if candidate.dispatch.priority != window[0].dispatch.priority:
            break
        if candidate.dispatch.workflow_hash in warm_hashes:
            return position
        if candidate.passed_over_at is not None and now - candidate.passed_over_at >= policy.max_wait:
            break
    return 0


def count_left_over(
    claims: Iterable[Claim], candidates: Mapping[Entitlement, Sequence[Candidate]], grants: Iterable[Grant]
) -> dict[int, int]:
    """Return by claim key how many of its candidates were granted to no worker."""
    taken = {grant.dispatch.id for grant in grants}
    left = {entitlement: sum(row.id not in taken for row in rows) for entitlement, rows in candidates.items()}
    return {claim.key: left.get(claim.entitlement, 0) for claim in claims}


def unserved_claims(
    claims: Sequence[Claim], candidates: Mapping[Entitlement, Sequence[Candidate]], grants: Sequence[Grant]
) -> list[Claim]:
    """Return the unserved part of claims that lost candidates to claims with another entitlement."""
    taker = {grant.dispatch.id: grant.claim.entitlement for grant in grants}
    losers = {
        entitlement
        for entitlement, shown in candidates.items()
        if any(taker.get(dispatch.id, entitlement) != entitlement for dispatch in shown)
    }
    got = Counter((grant.claim.key, grant.is_prefetch) for grant in grants)
    remaining = [
        replace(
            claim,
            limit=claim.limit - got[claim.key, False] - got[claim.key, True],
            free_slots=claim.free_slots - got[claim.key, False],
            prefetch_slots=claim.prefetch_slots - got[claim.key, True],
        )
        for claim in claims
        if claim.entitlement in losers
    ]
    return [claim for claim in remaining if claim.slots > 0]


def free_slots(*, max_concurrency: int, reported: int | None, leases: int, current_load: int) -> int:
    """Return how many more jobs a worker may run.

    The concurrency `reported` with the poll overrides the registered one, because a worker may have started or lost a
    ComfyUI since. The larger of its leases and its reported load counts as used.
    """
    return (reported or max_concurrency) - max(leases, current_load)


def wanted_by(idle: Iterable[IdleWorker], held: Iterable[ReclaimableDispatch]) -> list[int]:
    """Return ids of dispatches that idle workers could run now, at most one per idle worker."""
    remaining = {worker.worker_id: worker for worker in idle}
    wanted = []
    for dispatch in held:
        taker = next((worker for worker in remaining.values() if worker.can_run(dispatch)), None)
        if taker is not None:
            del remaining[taker.worker_id]
            wanted.append(dispatch.id)
    return wanted
