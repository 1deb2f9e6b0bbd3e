"""Properties of decisions for any observation."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.autoscaling.decide import decide
from comfyrelay.domain.autoscaling.learning import MIN_ARRIVALS, MIN_BURSTS, FollowingJobs, Rate
from comfyrelay.domain.autoscaling.limits import pause_left
from comfyrelay.domain.autoscaling.observation import (
    MachineState,
    ObservedFleet,
    ObservedMachine,
    QueuedWork,
    StageSnapshot,
)
from comfyrelay.domain.autoscaling.spec import Limits, Policy, ScalingSpec
from tests.support.observations import NOW, any_fleet, launched, snapshots, works

MONEY_ERROR = 1e-6


@given(snapshots())
def test_no_plan_goes_beyond_a_limit(snapshot: StageSnapshot) -> None:
    for fleet, plan in zip(snapshot.fleets, decide(snapshot), strict=True):
        limits, count = fleet.scaling.limits, launched(plan)
        if not count:
            continue
        assert len(fleet.machines) + count <= limits.max_machines
        assert sum(ago < 60 for ago in fleet.launches_ago) + count <= limits.launches_per_minute
        if limits.cost_per_hour is not None:
            price = {
                instance_type_.name: instance_type_.price_per_hour for instance_type_ in reversed(fleet.instance_types)
            }
            cost = sum(machine.price_per_hour for machine in fleet.machines)
            cost += sum(each.count * price.get(each.instance_type or "", 0.0) for each in plan.launch)
            assert cost <= limits.cost_per_hour + MONEY_ERROR
        assert not fleet.scaling.is_paused
        assert not fleet.all_types_refused
        assert pause_left(fleet) in (None, 0)


@given(snapshots())
def test_only_idle_and_booting_machines_are_ended_and_each_once(snapshot: StageSnapshot) -> None:
    for fleet, plan in zip(snapshot.fleets, decide(snapshot), strict=True):
        seen = {machine.id: machine for machine in fleet.machines}
        assert len(set(plan.end)) == len(plan.end)
        for each in plan.end:
            assert seen[each].state in (MachineState.READY, MachineState.BOOTING)
            assert seen[each].leases == 0


@given(snapshots())
def test_plan_launches_or_stops_and_states_the_resulting_count(snapshot: StageSnapshot) -> None:
    for fleet, plan in zip(snapshot.fleets, decide(snapshot), strict=True):
        assert plan.fleet == fleet.slug
        assert not (plan.launch and plan.end)
        there = sum(machine.state is not MachineState.DRAINING for machine in fleet.machines)
        assert plan.desired == there + launched(plan) - len(plan.end)
        assert plan.reason


@given(snapshots())
def test_same_snapshot_gives_the_same_plan(snapshot: StageSnapshot) -> None:
    other = replace(snapshot, fleets=[replace(fleet, machines=tuple(fleet.machines)) for fleet in snapshot.fleets])
    assert decide(snapshot) == decide(other)


@given(works, any_fleet(), st.integers(0, 3), st.integers(1, 30))
def test_more_waiting_work_never_means_fewer_machines(
    work: list[QueuedWork], fleet: ObservedFleet, which: int, more: int
) -> None:
    if not work:
        return
    chosen = work[which % len(work)]
    longer = [replace(each, jobs=each.jobs + more) if each is chosen else each for each in work]
    # the fleet was not idle while its queue was not empty
    fleet = replace(fleet, idle_seconds=None)
    before, after = (decide(StageSnapshot(now=NOW, work=each, fleets=[fleet]))[0] for each in (work, longer))
    assert after.desired >= before.desired


@given(works, any_fleet(), st.integers(0, MIN_ARRIVALS - 1), st.integers(0, MIN_BURSTS - 1))
def test_fleet_without_history_never_has_more_machines_than_jobs(
    work: list[QueuedWork], fleet: ObservedFleet, arrivals: int, bursts: int
) -> None:
    """Or with a short history: a few arrivals are no rate, and a few bursts do not predict the next."""
    rate, following = Rate(), FollowingJobs()
    for number in range(arrivals):
        rate.add(NOW - timedelta(seconds=50 * number))
    for number in range(bursts + 1):
        for seconds in (0, 1, 2):
            at = NOW - timedelta(hours=bursts + 1 - number) + timedelta(seconds=seconds)
            following.add(at, boot_seconds=180.0, silence_seconds=900.0)
    known = [replace(each, jobs_per_second=rate.at(NOW), arrivals_seconds=rate.observed_seconds()) for each in work]
    limits = Limits(max_machines=1000, launches_per_minute=1000)
    policy = Policy.BALANCED if fleet.scaling.policy is Policy.REFERENCE else fleet.scaling.policy
    scaling = ScalingSpec(policy=policy, limits=limits)
    fleet = replace(fleet, following_jobs=following.jobs(), scaling=scaling)
    [plan] = decide(StageSnapshot(now=NOW, work=known, fleets=[fleet]))
    jobs = sum(each.jobs for each in work if each.workflow in fleet.workflows)
    boots = sum(machine.slots for machine in fleet.machines if machine.state is MachineState.BOOTING)
    assert launched(plan) * fleet.slots <= max(0, jobs - boots) + fleet.slots - 1


@given(snapshots())
def test_pending_orders_are_not_repeated(snapshot: StageSnapshot) -> None:
    """A plan that was carried out needs no second one. A launch that a limit prevented may follow."""
    fleets = []
    for fleet, plan in zip(snapshot.fleets, decide(snapshot), strict=True):
        speed = {instance_type_.name: instance_type_ for instance_type_ in reversed(fleet.instance_types)}
        ordered = [
            ObservedMachine(
                id=f"new{number}",
                state=MachineState.BOOTING,
                speed=speed[each.instance_type].speed if each.instance_type else 1.0,
                price_per_hour=speed[each.instance_type].price_per_hour if each.instance_type else 0.0,
                slots=fleet.slots,
                boot_seconds_left=fleet.boot_seconds,
            )
            for each in plan.launch
            for number in range(each.count)
        ]
        kept = [machine for machine in fleet.machines if machine.id not in plan.end]
        after = fleet if plan.is_report else replace(fleet, machines=(*kept, *ordered))
        fleets.append(after)
    again = decide(replace(snapshot, fleets=fleets))
    for fleet, first, second in zip(snapshot.fleets, decide(snapshot), again, strict=True):
        if first.is_report or first.limit is not None or any(each.limit is not None for each in again):
            continue
        assert launched(second) == 0, (fleet, first, second)
