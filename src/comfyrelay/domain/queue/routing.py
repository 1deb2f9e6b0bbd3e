"""Which waiting worker gets which queued dispatch.

The store finds, in queue order, the dispatches that a group of workers with the same entitlement may run; here they
are handed out: workers with a free slot first, prefetches only from what those leave, warm workflows preferred inside
one priority and a bounded window.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.domain.queue.states import Provider


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
    # of jobs for its own ComfyUI, which lacks what they need
    lacking_hashes: tuple[str, ...] = ()
    # of them, by workflow id and hash, those that need a larger GPU, unless they were queued for it alone
    outgrown: tuple[tuple[int, str], ...] = ()
    # the worker itself, where something is queued for it alone
    only_worker: str | None = None


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


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedDispatch:
    """A dispatch that could be leased now."""

    id: int
    stage: str
    provider: str
    workflow_id: int
    workflow_hash: str
    # nobody else may be given it
    only_worker: str | None = None

    @property
    def kind(self) -> tuple[str, int]:
        """What a worker must be assigned to run it."""
        return self.stage, self.workflow_id


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldDispatch(QueuedDispatch):
    """A dispatch that a worker holds, and that another one could be given instead."""

    worker_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleWorker:
    """A worker that waits, and of which kinds it could run something now."""

    worker_id: str
    providers: Sequence[str]
    kinds: Set[tuple[str, int]]
    blocked_hashes: Set[str] = frozenset()
    lacking_hashes: Set[str] = frozenset()
    # by workflow id and hash
    outgrown: Set[tuple[int, str]] = frozenset()

    def could_run(self, dispatch: HeldDispatch) -> bool:
        return (
            dispatch.worker_id != self.worker_id
            and dispatch.only_worker is None
            and dispatch.kind in self.kinds
            and dispatch.provider in self.providers
            and dispatch.workflow_hash not in self.blocked_hashes
            and (dispatch.provider != Provider.SELF_HOSTED or self._has_what_it_takes(dispatch))
        )

    def _has_what_it_takes(self, dispatch: HeldDispatch) -> bool:
        is_outgrown = (dispatch.workflow_id, dispatch.workflow_hash) in self.outgrown
        return dispatch.workflow_hash not in self.lacking_hashes and not is_outgrown


def slots_by_entitlement(asks: Sequence[Ask], *, lookahead: int) -> dict[Entitlement, int]:
    """How many dispatches to pick for each group of workers; warm workers may look a little further ahead."""
    slots: dict[Entitlement, int] = defaultdict(int)
    for ask in asks:
        slots[ask.entitlement] += ask.slots
    for entitlement in {ask.entitlement for ask in asks if ask.warm_hashes}:
        slots[entitlement] += lookahead
    return dict(slots)


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
                rows = (row for row in queue if row.id not in taken)
                window = list(islice(rows, 1 + policy.lookahead_rows))
                position = _choose(window, ask.warm_hashes, policy=policy, now=now)
                chosen = window[position]
                passed.update(row.id for row in window[:position])
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


def ungranted(
    asks: Iterable[Ask], candidates: Mapping[Entitlement, Sequence[Candidate]], grants: Iterable[Grant]
) -> dict[int, int]:
    """By the key of each ask, how many it could have been given that nobody got. Those that are not warm are shown no
    more than they ask for."""
    taken = {each.dispatch.id for each in grants}
    left = {entitlement: sum(row.id not in taken for row in rows) for entitlement, rows in candidates.items()}
    return {ask.key: left.get(ask.entitlement, 0) for ask in asks}


def outbid(
    asks: Sequence[Ask], candidates: Mapping[Entitlement, Sequence[Candidate]], grants: Sequence[Grant]
) -> list[Ask]:
    """What remains of asks that were shown dispatches which others, with another entitlement, then got."""
    taker = {each.dispatch.id: each.ask.entitlement for each in grants}
    losers = {
        entitlement
        for entitlement, shown in candidates.items()
        if any(taker.get(dispatch.id, entitlement) != entitlement for dispatch in shown)
    }
    got = Counter((each.ask.key, each.is_prefetch) for each in grants)
    remaining = [
        replace(
            ask,
            limit=ask.limit - got[ask.key, False] - got[ask.key, True],
            free_slots=ask.free_slots - got[ask.key, False],
            prefetch_slots=ask.prefetch_slots - got[ask.key, True],
        )
        for ask in asks
        if ask.entitlement in losers
    ]
    return [ask for ask in remaining if ask.slots > 0]


def free_slots(*, max_concurrency: int, asked: int | None, leases: int, current_load: int) -> int:
    """How many more a worker may run: what it says it takes now counts before what it registered with, since it may
    have started another ComfyUI meanwhile, or lost one; of what it says it runs and its leases, the larger counts."""
    return (asked or max_concurrency) - max(leases, current_load)


def wanted_by(idle: Iterable[IdleWorker], held: Iterable[HeldDispatch]) -> list[int]:
    """The dispatches that idle workers could run now, one for each of them."""
    remaining = {each.worker_id: each for each in idle}
    wanted = []
    for dispatch in held:
        taker = next((worker for worker in remaining.values() if worker.could_run(dispatch)), None)
        if taker is not None:
            del remaining[taker.worker_id]
            wanted.append(dispatch.id)
    return wanted
