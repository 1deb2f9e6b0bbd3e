"""The shadow reference: what alarms on queue depth would have done with the jobs of a fleet."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.autoscaling.simulation.scenarios import batches, poisson, regular
from comfyrelay.autoscaling.simulation.simulator import simulate
from comfyrelay.autoscaling.simulation.traces import DAY_SECONDS, TraceRequest
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.domain.autoscaling.shadow import MAX_GAP_SECONDS, NEWEST_WAITS, FleetState, Shadow, ShadowJob
from comfyrelay.domain.autoscaling.spec import Policy
from tests.support.observations import busy, fleet, launched, plan, ready, waiting

BOOT_SECONDS = 180.0
NO_MACHINES = FleetState(queued=0, machines=0, boot_seconds=BOOT_SECONDS, seconds_of=lambda _workflow: 30.0, maximum=10)


def started(state: FleetState = NO_MACHINES) -> Shadow:
    shadow = Shadow()
    shadow.observe(0.0, state, [])
    return shadow


def run(shadow: Shadow, state: FleetState, *, begin: float, seconds: float, step: float = 60.0) -> float:
    now = begin
    while now < begin + seconds:
        now += step
        shadow.observe(now, state, [])
    return now


def hold(shadow: Shadow, policy: Policy = Policy.BALANCED) -> int:
    return shadow.machines_to_hold(policy, BOOT_SECONDS)


def waited(seconds: float, *, machines: int = 0) -> Shadow:
    """Return the shadow of a fleet whose jobs wait this long. In the shadow, two machines run them at once."""
    shadow = started(replace(NO_MACHINES, machines=2, minimum=2))
    state = replace(NO_MACHINES, machines=machines, minimum=2)
    for number in range(20):
        at = 600.0 * number
        shadow.observe(at, replace(state, queued=1), [ShadowJob(at, 1)])
        shadow.observe(at + seconds, replace(state, queued=1), [])
        shadow.observe(at + seconds + 0.01, state, [])
    return shadow


@pytest.mark.parametrize(
    "requests",
    [
        regular(300.0, hours=6.0, seconds=30.0),
        poisson(40.0, hours=6.0, seed=3),
        poisson(600.0, hours=48.0, seed=4),
        batches(12, 1800.0, hours=12.0, seed=5),
    ],
    ids=["regular", "random", "rare", "batches"],
)
def test_shadow_has_the_hours_and_waits_of_the_reference(requests: Sequence[TraceRequest]) -> None:
    world = WorldSettings(boot_seconds=BOOT_SECONDS, boot_spread=0.0, load_seconds=0.0)
    expected = simulate(requests, Policy.REFERENCE, world)
    shadow, now, machine_seconds = started(), 0.0, 0.0
    jobs = [ShadowJob(request.arrival_seconds, 1) for request in requests]
    while jobs or shadow._machines or shadow._queue:
        due = [job for job in jobs if job.at <= now]
        del jobs[: len(due)]
        shadow.observe(now, NO_MACHINES, due)
        machine_seconds += 60.0 * len(shadow._machines)
        now += 60.0
    assert machine_seconds == pytest.approx(expected.machine_seconds, rel=0.05)
    waits = sorted(expected.waits[-NEWEST_WAITS:])
    assert sorted(shadow._waits)[len(waits) // 2 :] == pytest.approx(waits[len(waits) // 2 :], abs=61.0)


def test_machines_of_the_shadow_are_held_while_jobs_wait_longer() -> None:
    assert hold(started()) == 0
    assert hold(waited(1.0)) == 0
    assert hold(waited(30.0)) == 2


def test_cheap_may_wait_a_boot_longer() -> None:
    assert hold(waited(200.0), Policy.CHEAP) == 0
    assert hold(waited(200.0)) == 2
    assert hold(waited(290.0), Policy.CHEAP) == 2


def test_machines_are_held_only_while_fewer_hours_were_used() -> None:
    assert hold(waited(30.0, machines=1)) == 2
    assert hold(waited(30.0, machines=2)) == 0


def test_fleet_that_used_more_hours_than_the_shadow_is_overspent() -> None:
    assert not waited(0.0, machines=2).is_overspent()
    assert waited(0.0, machines=3).is_overspent()


def test_savings_of_a_month_do_not_pay_for_a_day_of_waste() -> None:
    two = replace(NO_MACHINES, machines=2, minimum=2)
    shadow = started(two)
    now = run(shadow, replace(two, machines=1), begin=0.0, seconds=30 * DAY_SECONDS, step=3600.0)
    assert not shadow.is_overspent()
    run(shadow, replace(two, machines=5), begin=now, seconds=DAY_SECONDS, step=3600.0)
    assert shadow.is_overspent()


def test_duration_that_is_learnt_while_jobs_wait_counts() -> None:
    """All jobs arrive before the first one ends. The jobs of the shadow then take as long as the real ones."""
    shadow = started(replace(NO_MACHINES, machines=1, maximum=1, minimum=1))
    unknown = replace(NO_MACHINES, minimum=1, maximum=1, seconds_of=lambda _workflow: 600.0)
    shadow.observe(1.0, unknown, [ShadowJob(1.0, 1) for _ in range(3)])
    shadow.observe(1201.0, replace(unknown, seconds_of=lambda _workflow: 30.0), [])
    assert list(shadow._waits) == [0.0, 600.0, 630.0]


def test_new_process_starts_with_the_machines_that_are_there() -> None:
    """Machines from before a restart are no waste. The shadow ends its own after 15 minutes without work."""
    three = replace(NO_MACHINES, machines=3)
    shadow = started(three)
    now = run(shadow, three, begin=0.0, seconds=600.0)
    assert not shadow.is_overspent()
    run(shadow, three, begin=now, seconds=3600.0)
    assert shadow.is_overspent()


def test_minimum_of_the_operator_is_no_waste() -> None:
    kept = replace(NO_MACHINES, machines=4, minimum=4)
    shadow = started()
    run(shadow, kept, begin=0.0, seconds=DAY_SECONDS)
    assert not shadow.is_overspent()


def test_comparison_starts_again_after_a_long_gap() -> None:
    shadow = waited(30.0)
    shadow.observe(shadow._now + MAX_GAP_SECONDS + 1, NO_MACHINES, [])
    assert hold(shadow) == 0


@given(
    steps=st.lists(
        st.tuples(st.floats(-100, 5000), st.integers(0, 20), st.integers(0, 12), st.integers(0, 5)), max_size=30
    ),
    slots=st.integers(1, 3),
)
def test_shadow_stays_within_its_limits(steps: Sequence[tuple[float, int, int, int]], slots: int) -> None:
    """Observations may be out of order, and jobs may be canceled or return to the queue."""
    shadow, now = Shadow(), 1e9
    for passed, arrivals, queued, machines in steps:
        now += passed
        state = replace(NO_MACHINES, queued=queued, machines=machines, maximum=12, slots=slots)
        shadow.observe(now, state, [ShadowJob(now + number - 5.0, 1) for number in range(arrivals)])
        assert 0 <= hold(shadow) <= 12
        assert shadow._used >= 0
        assert all(wait >= 0 for wait in shadow._waits)


@pytest.mark.parametrize("policy", [Policy.CHEAP, Policy.BALANCED])
def test_held_machine_stays_although_it_is_idle(policy: Policy) -> None:
    idle = fleet(busy(), ready(idle=800.0), policy=policy)
    assert plan([], idle).end == ["ready"]
    assert plan([], replace(idle, machines_to_hold=2)).end == []


def test_held_machines_are_launched_and_the_reason_names_them() -> None:
    found = plan([waiting(1)], fleet(busy(left=1.0), machines_to_hold=3))
    assert launched(found) == 2
    assert "jobs waited longer than with alarms on queue depth, which would have 3" in found.reason


def test_balanced_saves_like_cheap_while_it_is_overspent() -> None:
    work = [waiting(8)]
    cheap = plan(work, fleet(ready(), policy=Policy.CHEAP))
    balanced = fleet(ready(), policy=Policy.BALANCED)
    assert launched(plan(work, balanced)) > launched(cheap)
    assert launched(plan(work, replace(balanced, is_overspent=True))) == launched(cheap)
    fast = fleet(ready(), policy=Policy.FAST)
    assert launched(plan(work, replace(fast, is_overspent=True))) == launched(plan(work, fast))
