"""A seed always gives the same plan, and all seeds together cover every fault."""

from tests.soak.plan import (
    COMFYUIS,
    DATABASES,
    FAIL,
    ON_THE_WIRE,
    ONCE,
    SERVERS,
    STORAGE,
    WORKERS,
    Kind,
    Verb,
    plan_of,
)


def test_seed_always_gives_the_same_plan() -> None:
    assert [plan_of(seed) for seed in range(50)] == [plan_of(seed) for seed in range(50)]
    assert plan_of(1) != plan_of(2)


def test_hundred_seeds_cover_every_fault_and_target() -> None:
    found = {(fault.kind, fault.target) for seed in range(100) for fault in plan_of(seed).faults}
    assert {kind for kind, _ in found} == set(Kind)
    assert {target for kind, target in found if kind is Kind.KILL} == {*SERVERS, *WORKERS, *COMFYUIS, *DATABASES}
    assert {target for kind, target in found if kind is Kind.STOP_DATABASE} == {*DATABASES}
    assert {STORAGE, *DATABASES} <= {target for kind, target in found if kind is Kind.FULL_DISK}
    assert {*WORKERS} <= {target for kind, target in found if kind is Kind.PAUSE}


def test_each_seed_kills_a_process_during_a_request() -> None:
    verbs = {FAIL: Verb.DOOMED, ONCE: Verb.ONCE}
    for plan in map(plan_of, range(100)):
        kills = [fault for fault in plan.faults if fault.kind in (Kind.KILL_RECEIVER, Kind.KILL_SENDER)]
        assert kills
        for fault in kills:
            after = {act.verb for act in plan.acts if act.at > fault.at}
            assert fault.route not in verbs or verbs[fault.route] in after


def test_network_fault_names_its_requests() -> None:
    on_the_wire = [fault for seed in range(100) for fault in plan_of(seed).faults if fault.kind in ON_THE_WIRE]
    assert all(fault.route and fault.count >= 1 for fault in on_the_wire)
