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
def test_plan_never_exceeds_a_limit(snapshot: StageSnapshot) -> None:
    for fleet, plan in zip(snapshot.fleets, decide(snapshot), strict=True):
        limits, count = fleet.scaling.limits, launched(plan)
        if not count:
            continue
        assert len(fleet.machines) + count <= limits.max_machines
        assert sum(ago < 60 for ago in fleet.launches_ago) + count <= limits.launches_per_minute
        if limits.cost_per_hour is not None:
            price = {
                instance_type.name: instance_type.price_per_hour for instance_type in reversed(fleet.instance_types)
            }
            cost = sum(machine.price_per_hour for machine in fleet.machines)
            cost += sum(launch.count * price.get(launch.instance_type or "", 0.0) for launch in plan.launch)
            assert cost <= limits.cost_per_hour + MONEY_ERROR
        assert not fleet.scaling.is_paused
        assert not fleet.all_types_refused
        assert pause_left(fleet) in (None, 0)


@given(snapshots())
def test_plan_is_deterministic_and_ends_only_idle_and_booting_machines(snapshot: StageSnapshot) -> None:
    plans = decide(snapshot)
    for fleet, plan in zip(snapshot.fleets, plans, strict=True):
        seen = {machine.id: machine for machine in fleet.machines}
        assert len(set(plan.end)) == len(plan.end)
        for machine_id in plan.end:
            assert seen[machine_id].state in (MachineState.READY, MachineState.BOOTING)
            assert seen[machine_id].leases == 0
        assert plan.fleet == fleet.slug
        assert not (plan.launch and plan.end)
        present = sum(machine.state is not MachineState.DRAINING for machine in fleet.machines)
        assert plan.desired == present + launched(plan) - len(plan.end)
        assert plan.reason
    copy = replace(snapshot, fleets=[replace(fleet, machines=tuple(fleet.machines)) for fleet in snapshot.fleets])
    assert decide(copy) == plans


@given(works, any_fleet(), st.integers(0, 3), st.integers(1, 30))
def test_more_waiting_work_never_means_fewer_machines(
    work: list[QueuedWork], fleet: ObservedFleet, which: int, more: int
) -> None:
    if not work:
        return
    chosen = work[which % len(work)]
    longer = [replace(queued, jobs=queued.jobs + more) if queued is chosen else queued for queued in work]
    # The fleet was not idle while its queue was not empty.
    fleet = replace(fleet, idle_seconds=None)
    before, after = (decide(StageSnapshot(now=NOW, work=queue, fleets=[fleet]))[0] for queue in (work, longer))
    assert after.desired >= before.desired


@given(works, any_fleet(), st.integers(0, MIN_ARRIVALS - 1), st.integers(0, MIN_BURSTS - 1))
def test_fleet_without_history_never_has_more_machines_than_jobs(
    work: list[QueuedWork], fleet: ObservedFleet, arrivals: int, bursts: int
) -> None:
    """A few arrivals are not a rate, and a few bursts do not predict the next."""
    rate, following = Rate(), FollowingJobs()
    for number in range(arrivals):
        rate.add(NOW - timedelta(seconds=50 * number))
    for number in range(bursts + 1):
        for seconds in (0, 1, 2):
            at = NOW - timedelta(hours=bursts + 1 - number) + timedelta(seconds=seconds)
            following.add(at, boot_seconds=180.0, silence_seconds=900.0)
    known = [replace(queued, jobs_per_second=rate.at(NOW), arrivals_seconds=rate.observed_seconds()) for queued in work]
    limits = Limits(max_machines=1000, launches_per_minute=1000)
    policy = Policy.BALANCED if fleet.scaling.policy is Policy.REFERENCE else fleet.scaling.policy
    scaling = ScalingSpec(policy=policy, limits=limits)
    fleet = replace(fleet, following_jobs=following.jobs(), scaling=scaling)
    [plan] = decide(StageSnapshot(now=NOW, work=known, fleets=[fleet]))
    jobs = sum(queued.jobs for queued in work if queued.workflow in fleet.workflows)
    boots = sum(machine.slots for machine in fleet.machines if machine.state is MachineState.BOOTING)
    assert launched(plan) * fleet.slots <= max(0, jobs - boots) + fleet.slots - 1


@given(snapshots())
def test_pending_orders_are_not_repeated(snapshot: StageSnapshot) -> None:
    """A launch that a limit prevented may follow later."""
    fleets = []
    for fleet, plan in zip(snapshot.fleets, decide(snapshot), strict=True):
        speed = {instance_type.name: instance_type for instance_type in reversed(fleet.instance_types)}
        ordered = [
            ObservedMachine(
                id=f"new{number}",
                state=MachineState.BOOTING,
                speed=speed[launch.instance_type].speed if launch.instance_type else 1.0,
                price_per_hour=speed[launch.instance_type].price_per_hour if launch.instance_type else 0.0,
                slots=fleet.slots,
                boot_seconds_left=fleet.boot_seconds,
            )
            for launch in plan.launch
            for number in range(launch.count)
        ]
        remaining = [machine for machine in fleet.machines if machine.id not in plan.end]
        after = fleet if plan.is_report else replace(fleet, machines=(*remaining, *ordered))
        fleets.append(after)
    again = decide(replace(snapshot, fleets=fleets))
    for fleet, first, second in zip(snapshot.fleets, decide(snapshot), again, strict=True):
        if first.is_report or first.limit is not None or any(fleet_plan.limit is not None for fleet_plan in again):
            continue
        assert launched(second) == 0, (fleet, first, second)
