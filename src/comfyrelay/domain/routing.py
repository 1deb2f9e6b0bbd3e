"""Which waiting worker gets which queued dispatch.

The store finds, in queue order, the dispatches that a group of workers with the same entitlement may run; here they
are handed out: workers with a free slot first, prefetches only from what those leave, warm workflows preferred inside
one priority and a bounded window.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from comfyrelay.domain.lifecycle import Dispatch


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmPolicy:
    lookahead_rows: int = 32
    longest_wait: timedelta = timedelta(seconds=120)


class Entitlement(NamedTuple):
    """What a worker may be given. Workers with the same entitlement are served from one list of candidates."""

    stage: str
    providers: tuple[str, ...]
    workflow_ids: tuple[int, ...]
    blocked_hashes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One worker's wish: up to `limit` dispatches, as far as its free slots and its prefetch allowance go."""

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
    """A queued dispatch, and since when warmer ones have been preferred to it."""

    dispatch: Dispatch
    passed_over_at: datetime | None = None

    @property
    def id(self) -> int:
        return self.dispatch.id


class Grant(NamedTuple):
    ask: Ask
    dispatch: Dispatch
    is_prefetch: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    grants: Sequence[Grant]
    passed_over: Set[int]


def route(
    asks: Iterable[Ask],
    candidates: Mapping[Entitlement, Sequence[Candidate]],
    *,
    policy: WarmPolicy,
    now: datetime,
) -> Routing:
    """Hand out candidates, each once. `candidates` are in queue order: priority, rank, age."""
    waiting = list(asks)
    queues = {entitlement: deque(rows) for entitlement, rows in candidates.items()}
    taken: set[int] = set()
    passed: set[int] = set()
    grants: list[Grant] = []
    granted: Counter[int] = Counter()

    def serve(ask: Ask, slots: int, *, is_prefetch: bool) -> None:
        queue = queues.get(ask.entitlement, deque())
        for _ in range(slots):
            while queue and queue[0].id in taken:
                queue.popleft()
            if not queue:
                return
            chosen = queue[0]
            if ask.warm_hashes:
                rows = (each for each in queue if each.id not in taken)
                window = list(islice(rows, 1 + policy.lookahead_rows))
                position = _choose(window, ask.warm_hashes, policy=policy, now=now)
                chosen = window[position]
                passed.update(each.id for each in window[:position])
            taken.add(chosen.id)
            granted[ask.key] += 1
            grants.append(Grant(ask, chosen.dispatch, is_prefetch))

    for ask in waiting:
        serve(ask, min(ask.limit, ask.free_slots), is_prefetch=False)
    for ask in waiting:
        serve(ask, min(ask.limit - granted[ask.key], ask.prefetch_slots), is_prefetch=True)
    return Routing(grants=grants, passed_over=passed - taken)


def _choose(window: Sequence[Candidate], warm_hashes: Set[str], *, policy: WarmPolicy, now: datetime) -> int:
    """The head of the queue, or a warm one close behind it if nobody before it has waited too long for that."""
    for position, each in enumerate(window):
        if each.dispatch.priority != window[0].dispatch.priority:
            break
        if each.dispatch.workflow_hash in warm_hashes:
            return position
        if each.passed_over_at is not None and now - each.passed_over_at >= policy.longest_wait:
            break
    return 0
