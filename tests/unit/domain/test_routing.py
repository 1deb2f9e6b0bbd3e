from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue.routing import (
    Candidate,
    Claim,
    Entitlement,
    IdleWorker,
    ReclaimableDispatch,
    Routing,
    WarmPolicy,
    count_left_over,
    route,
    slots_by_entitlement,
    unserved_claims,
    wanted_by,
)
from tests.support.world import START as NOW
from tests.support.world import queued_dispatch

POLICY = WarmPolicy()
MINE = Entitlement(stage="production", providers=("self_hosted",), workflow_ids=(1,))
THEIRS = Entitlement(stage="production", providers=("self_hosted",), workflow_ids=(1, 2))


def claim(key: int = 0, *, limit: int = 1, free: int = 1, prefetch: int = 0, warm: str = "") -> Claim:
    return Claim(
        key=key,
        worker_id=f"w{key}",
        entitlement=MINE,
        limit=limit,
        free_slots=free,
        prefetch_slots=prefetch,
        warm_hashes=frozenset(warm),
    )


def candidate(id_: int, workflow_hash: str, *, priority: int = 0, passed_over_at: datetime | None = None) -> Candidate:
    dispatch = queued_dispatch(id=id_, workflow_hash=workflow_hash, priority=priority)
    return Candidate(dispatch=dispatch, passed_over_at=passed_over_at)


def candidates(hashes: str, *, priority: int = 0) -> list[Candidate]:
    """Return a candidate for each letter, which is its workflow hash, with ids starting at 1."""
    return [candidate(n, letter, priority=priority) for n, letter in enumerate(hashes, start=1)]


def routed(claims: Sequence[Claim], rows: Sequence[Candidate], policy: WarmPolicy = POLICY) -> Routing:
    return route(claims, {MINE: rows}, policy=policy, now=NOW)


def ids(routing: Routing, key: int = 0) -> list[int]:
    return [grant.dispatch.id for grant in routing.grants if grant.claim.key == key]


class TestOrder:
    def test_warm_worker_is_served_before_others(self) -> None:
        routing = routed([claim(0), claim(1, warm="a")], candidates("a"))
        assert (ids(routing, 0), ids(routing, 1)) == ([], [1])

    def test_claims_are_served_in_queue_order(self) -> None:
        routing = routed([claim(0), claim(1)], candidates("aaa"))
        assert (ids(routing, 0), ids(routing, 1)) == ([1], [2])

    def test_request_for_many_is_served_in_order(self) -> None:
        assert ids(routed([claim(limit=3, free=3)], candidates("aaaa"))) == [1, 2, 3]

    def test_candidate_of_two_entitlements_is_granted_once(self) -> None:
        other = replace(claim(1), entitlement=THEIRS)
        rows = candidates("ab")
        routing = route([claim(0), other], {MINE: rows[:1], THEIRS: rows}, policy=POLICY, now=NOW)
        assert (ids(routing, 0), ids(routing, 1)) == ([1], [2])

    def test_worker_is_not_served_from_another_queue(self) -> None:
        assert route([claim()], {THEIRS: candidates("a")}, policy=POLICY, now=NOW).grants == []


class TestPrefetch:
    def test_idle_workers_are_served_before_any_prefetch(self) -> None:
        busy, idle = claim(0, free=0, prefetch=1), claim(1)
        routing = routed([busy, idle], candidates("a"))
        assert (ids(routing, 0), ids(routing, 1)) == ([], [1])

    def test_grant_beyond_the_free_slots_is_a_prefetch(self) -> None:
        routing = routed([claim(limit=5, free=1, prefetch=2)], candidates("aaaaa"))
        assert [grant.is_prefetch for grant in routing.grants] == [False, True, True]


class TestWarmPreference:
    def test_nearby_warm_job_is_granted_first_and_passed_over_jobs_are_recorded(self) -> None:
        routing = routed([claim(warm="b")], candidates("aab"))
        assert ids(routing) == [3]
        assert routing.passed_over == {1, 2}

    def test_served_job_does_not_count_as_passed_over(self) -> None:
        routing = routed([claim(0, warm="b"), claim(1)], candidates("aab"))
        assert (ids(routing, 0), ids(routing, 1)) == ([3], [1])
        assert routing.passed_over == {2}

    @pytest.mark.parametrize(("ahead", "chosen"), [(32, 33), (33, 1)])
    def test_warm_preference_looks_exactly_32_rows_ahead(self, ahead: int, chosen: int) -> None:
        assert ids(routed([claim(warm="b")], candidates("a" * ahead + "b"))) == [chosen]

    def test_zero_lookahead_keeps_the_queue_order(self) -> None:
        assert ids(routed([claim(warm="b")], candidates("ab"), WarmPolicy(lookahead_rows=0))) == [1]

    def test_warm_preference_stays_within_a_priority(self) -> None:
        rows = [candidate(1, "a", priority=5), candidate(2, "b", priority=4)]
        assert ids(routed([claim(warm="b")], rows)) == [1]

    @pytest.mark.parametrize(("seconds", "chosen"), [(119.999, 3), (120, 1)])
    def test_row_passed_over_for_120_seconds_is_granted_next(self, seconds: float, chosen: int) -> None:
        rows = candidates("aab")
        rows[1] = rows[1]._replace(passed_over_at=NOW - timedelta(seconds=seconds))
        assert ids(routed([claim(warm="b")], rows)) == [chosen]


queue_rows = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 300))), max_size=50
)
claim_fields = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), st.sampled_from(["", "a", "ab"])), max_size=8
)


@given(rows=queue_rows, requests=claim_fields)
def test_each_candidate_is_granted_once_and_limits_hold(
    rows: list[tuple[int, str, int | None]], requests: list[tuple[int, int, int, str]]
) -> None:
    queue = [
        candidate(
            n,
            letter,
            priority=priority,
            passed_over_at=None if ago is None else NOW - timedelta(seconds=ago),
        )
        for n, (priority, letter, ago) in enumerate(sorted(rows, key=lambda row: -row[0]))
    ]
    claims = [
        claim(n, limit=limit, free=free, prefetch=ahead, warm=warm)
        for n, (limit, free, ahead, warm) in enumerate(requests)
    ]
    routing = routed(claims, queue)
    granted = [grant.dispatch.id for grant in routing.grants]
    assert len(granted) == len(set(granted)) == min(len(queue), sum(worker_claim.slots for worker_claim in claims))
    assert not routing.passed_over & set(granted)
    for worker_claim in claims:
        mine = [grant for grant in routing.grants if grant.claim == worker_claim]
        assert sum(not grant.is_prefetch for grant in mine) <= worker_claim.free_slots
        assert sum(grant.is_prefetch for grant in mine) <= worker_claim.prefetch_slots
        assert len(mine) <= worker_claim.limit
    left = [row.dispatch.priority for row in queue if row.id not in granted]
    if left:
        assert all(grant.dispatch.priority >= max(left) for grant in routing.grants)


class TestPicking:
    def test_slots_are_summed_per_entitlement(self) -> None:
        claims = [claim(0, free=2, limit=2), claim(1), replace(claim(2), entitlement=THEIRS)]
        assert slots_by_entitlement(claims, lookahead=32) == {MINE: 3, THEIRS: 1}

    def test_warm_worker_looks_further_ahead_once_for_its_group(self) -> None:
        assert slots_by_entitlement([claim(0, warm="a"), claim(1, warm="b")], lookahead=32) == {MINE: 34}


class TestOutbid:
    def test_outbid_worker_claims_the_remainder(self) -> None:
        other = replace(claim(1, limit=2, free=2), entitlement=THEIRS)
        rows = candidates("ab")
        shown = {MINE: rows[:1], THEIRS: rows}
        routing = route([claim(0), other], shown, policy=POLICY, now=NOW)
        assert unserved_claims([claim(0), other], shown, routing.grants) == [replace(other, limit=1, free_slots=1)]

    def test_served_worker_makes_no_second_claim(self) -> None:
        claims = [claim(0, limit=3, free=3)]
        routing = routed(claims, candidates("a"))
        assert unserved_claims(claims, {MINE: candidates("a")}, routing.grants) == []


class TestRecall:
    def held(self, id_: int = 1, **values: str) -> ReclaimableDispatch:
        chosen = {"provider": "self_hosted", "workflow_hash": "h", "worker_id": "busy", "stage": "production"} | values
        return ReclaimableDispatch(id=id_, workflow_id=1, **chosen)

    def idle(self, worker_id: str = "idle", **values: Any) -> IdleWorker:
        worker = IdleWorker(worker_id=worker_id, providers=["self_hosted"], kinds={("production", 1)})
        return replace(worker, **values)

    def test_idle_worker_gets_the_prefetch_of_a_busy_one(self) -> None:
        assert wanted_by([self.idle()], [self.held()]) == [1]

    def test_each_idle_worker_recalls_one_prefetch_in_queue_order(self) -> None:
        held = [self.held(1), self.held(2), self.held(3)]
        assert wanted_by([self.idle("one"), self.idle("two"), self.idle("two")], held) == [1, 2]

    def test_unrunnable_prefetch_does_not_block_the_next_recall(self) -> None:
        assert wanted_by([self.idle()], [self.held(1, provider="cloud"), self.held(2)]) == [2]

    @pytest.mark.parametrize(
        "unable",
        [
            {"worker_id": "busy"},
            {"providers": ["cloud"]},
            {"kinds": {("production", 2), ("staging", 1)}},
            {"blocked_hashes": {"h"}},
            {"unmet_hashes": {"h"}},
            {"oversized": {(1, "h")}},
        ],
    )
    def test_prefetch_is_recalled_only_for_a_worker_that_can_run_it(self, unable: dict[str, Any]) -> None:
        assert wanted_by([self.idle(**unable)], [self.held()]) == []

    def test_oversized_graph_of_another_workflow_does_not_prevent_a_recall(self) -> None:
        assert wanted_by([self.idle(oversized={(2, "h")})], [self.held()]) == [1]


def test_grant_includes_the_number_of_jobs_left() -> None:
    claims, rows = [claim(0, warm="a"), claim(1)], candidates("aaaaa")
    routing = routed(claims, rows)
    assert count_left_over(claims, {MINE: rows}, routing.grants) == {0: 3, 1: 3}
    assert count_left_over([claim()], {MINE: rows[:1]}, routed([claim()], rows[:1]).grants) == {0: 0}
