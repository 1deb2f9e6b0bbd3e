"""Autoscaling decisions, rule by rule."""

from dataclasses import replace
from datetime import UTC, datetime, time

import pytest

from comfyrelay.domain.autoscaling.capacity import Load, arriving_load
from comfyrelay.domain.autoscaling.learning import ONE_ARRIVAL
from comfyrelay.domain.autoscaling.limits import pause_left
from comfyrelay.domain.autoscaling.observation import ObservedFleet, ObservedMachine, QueuedWork
from comfyrelay.domain.autoscaling.plan import Launch
from comfyrelay.domain.autoscaling.spec import InstanceType, Policy, Schedule, scheduled_minimum
from comfyrelay.errors import InvalidInput
from tests.support.observations import (
    OURS,
    booting,
    busy,
    draining,
    fleet,
    launched,
    plan,
    plans,
    ready,
    waiting,
)

WORKDAYS = Schedule(days=frozenset(range(5)), begins=time(9), ends=time(18), at_least=2, timezone="Europe/Berlin")


def types(price: float, speed: float = 1.0) -> list[InstanceType]:
    return [InstanceType(name="g", price_per_hour=price, speed=speed)]


@pytest.mark.parametrize("policy", Policy)
def test_machine_is_launched_only_for_a_job(policy: Policy) -> None:
    assert plan([waiting(1)], fleet(policy=policy)).launch == (Launch(count=1),)
    assert plan([], fleet(policy=policy)).is_empty


@pytest.mark.parametrize("policy", OURS)
def test_booting_machine_counts_as_capacity_and_draining_one_does_not(policy: Policy) -> None:
    assert plan([waiting(1)], fleet(booting(), policy=policy)).is_empty
    assert launched(plan([waiting(1)], fleet(draining(), policy=policy))) == 1


def test_work_is_counted_in_seconds_not_in_jobs() -> None:
    """Twenty short jobs end before another machine could boot; twenty long jobs do not."""
    one = fleet(ready())
    assert plan([waiting(20, seconds_each=5)], one).is_empty
    assert launched(plan([waiting(20, seconds_each=600)], one)) == 9


def test_nearly_booted_machine_reduces_the_desired_count() -> None:
    work = [waiting(8)]
    assert plan(work, fleet(booting(left=5))).desired < plan(work, fleet(booting(left=175))).desired


@pytest.mark.parametrize("policy", OURS)
def test_booting_machine_is_canceled_when_no_job_waits(policy: Policy) -> None:
    """The machine with the longest remaining boot time ends first. The last machine continues to boot."""
    seen = fleet(busy(), booting("soon", left=5), booting("late", left=170), policy=policy)
    found = plan([], seen)
    assert found.end == ["late", "soon"]
    assert "no jobs are waiting: terminating 2 machines still booting" in found.reason
    assert plan([waiting(1)], seen).end == []
    assert plan([], replace(seen, following_jobs=2.0)).end == []
    assert plan([], fleet(booting(), policy=policy)).is_empty
    assert plan([], fleet(booting("late"), booting("soon", left=5), policy=policy)).end == ["late"]


def test_booting_machine_needed_for_arrivals_or_the_minimum_is_not_canceled() -> None:
    """Jobs of 30 s at 0.1 per second keep 3 machines busy. With the reserve, 5 machines are needed."""
    machines = [busy(), *(booting(str(number), left=10.0 * number) for number in range(1, 6))]
    assert plan([waiting(0, jobs_per_second=0.1)], fleet(*machines)).end == ["5"]
    assert plan([], fleet(*machines, min_machines=6)).end == []


def test_unknown_workflow_gets_machines() -> None:
    assert launched(plan([replace(waiting(12), seconds=0.0, seconds_per_job=0.0)], fleet())) > 1


def test_reserve_for_arrivals_grows_with_their_square_root() -> None:
    """Jobs of 30 s keep 9 machines busy at 0.3 per second, and 36 at 1.2 per second."""
    many = fleet(max_machines=100, launches_per_minute=100)
    assert plan([waiting(0, jobs_per_second=0.3)], many).desired == 12
    assert plan([waiting(0, jobs_per_second=1.2)], many).desired == 42


def test_bursty_fleet_has_a_larger_reserve() -> None:
    bursty = fleet(max_machines=100, launches_per_minute=100, following_jobs=3.0)
    assert plan([waiting(0, jobs_per_second=0.3)], bursty).desired == 14


def test_steady_load_below_one_machine_has_no_reserve() -> None:
    """Jobs of 30 s at 0.03 per second keep 0.9 machines busy."""
    work = [waiting(0, jobs_per_second=0.03)]
    assert plan(work, fleet()).desired == 0
    assert plan(work, fleet(following_jobs=3.0)).desired == 3


def test_regular_arrivals_need_no_reserve() -> None:
    regular = fleet(max_machines=50, launches_per_minute=50, variation=0.0)
    assert plan([waiting(0, jobs_per_second=0.3)], regular).desired == 9


def test_arrivals_of_many_workflows_count_together() -> None:
    """The newest arrival is left out once per fleet, not once per workflow."""
    seen = fleet(workflows=range(1, 31), max_machines=50, launches_per_minute=50)
    many = [replace(waiting(0, jobs_per_second=0.01), workflow=number) for number in seen.workflows]
    assert plan(many, seen).desired == plan([waiting(0, jobs_per_second=0.3)], seen).desired


@pytest.mark.parametrize("policy", OURS)
def test_first_machine_is_launched_only_for_waiting_jobs(policy: Policy) -> None:
    assert plan([waiting(0, jobs_per_second=0.01)], fleet(policy=policy)).desired == 0


def test_job_that_starts_sooner_than_a_boot_launches_no_machine() -> None:
    """A new machine could not start the job earlier."""
    soon, late = (busy(left=left) for left in (100.0, 400.0))
    assert launched(plan([waiting(1, seconds_each=600.0)], fleet(soon))) == 0
    assert launched(plan([waiting(1, seconds_each=600.0)], fleet(late))) == 1


def test_single_new_job_launches_one_machine() -> None:
    """One arrival does not predict another."""
    assert launched(plan([waiting(1, seconds_each=60.0, jobs_per_second=0.0023)], fleet())) == 1


def test_arrivals_during_the_boot_count_while_jobs_wait() -> None:
    seen = fleet(busy(), max_machines=50)
    assert plan([waiting(6)], seen).is_empty
    assert launched(plan([waiting(6, jobs_per_second=0.03)], seen)) > 1


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("jobs", [1, 2, 40])
def test_fleet_without_history_launches_at_most_one_machine_per_job(policy: Policy, jobs: int) -> None:
    """Several ten-minute jobs arrive within one second: no rate and no following jobs are known yet."""
    work = [waiting(jobs, seconds_each=600.0, jobs_per_second=jobs * ONE_ARRIVAL, arrivals_seconds=1.0)]
    empty = fleet(policy=policy, max_machines=500, launches_per_minute=500)
    assert plan(work, empty).desired <= jobs
    launched_before = fleet(*(booting(str(number)) for number in range(jobs)), policy=policy, max_machines=500)
    assert plan(work, launched_before).is_empty


def test_machines_for_following_jobs_are_launched_with_the_first() -> None:
    seen = fleet(following_jobs=6.0, max_machines=50, launches_per_minute=50, policy=Policy.FAST)
    found = plan([waiting(2)], seen)
    assert launched(found) == 7
    assert "2 for waiting jobs, 5 for jobs that usually follow; launching 7" in found.reason
    assert plan([waiting(2)], replace(seen, machines=[booting(str(number)) for number in range(7)])).is_empty
    assert launched(plan([waiting(1)], seen)) == 7
    assert launched(plan([waiting(1)], replace(seen, following_jobs=0.0))) == 1
    assert plan([waiting(2)], replace(seen, machines=[ready(), ready("b")])).is_empty
    assert launched(plan([waiting(20)], replace(seen, machines=[]))) == 20


def test_following_jobs_are_weighted_by_their_duration() -> None:
    seen = fleet(following_jobs=6.0, policy=Policy.FAST)
    assert launched(plan([waiting(2, seconds_each=1.0)], seen)) == 1


def test_rate_observed_for_less_than_a_boot_is_ignored() -> None:
    many = fleet(max_machines=50, launches_per_minute=50)
    assert plan([waiting(0, jobs_per_second=0.3, arrivals_seconds=179.0)], many).desired == 0
    assert plan([waiting(0, jobs_per_second=0.3, arrivals_seconds=180.0)], many).desired == 12


def test_waiting_jobs_do_not_predict_arrivals() -> None:
    """Forty at once after a quiet hour need forty machines, not eighty."""
    many = fleet(max_machines=500, launches_per_minute=500)
    work = waiting(40, seconds_each=600.0, jobs_per_second=40 * ONE_ARRIVAL)
    assert plan([work], many).desired == 40


def test_faster_policy_never_has_fewer_machines() -> None:
    for jobs in (1, 5, 12, 40):
        for rate in (0.0, 0.05, 0.2):
            desired = [plan([waiting(jobs, jobs_per_second=rate)], fleet(policy=policy)).desired for policy in OURS]
            assert desired == sorted(desired)


def test_reason_states_the_observation_and_the_action() -> None:
    seen = fleet(busy(), booting(left=80))
    reason = plan([waiting(30)], seen).reason
    assert reason.startswith("30 jobs, 900 s of work, 1 busy + 1 booting (80 s left): ")
    assert "machines would keep the wait near" in reason
    assert "; launching 8 of " in reason
    assert reason.endswith("the limit is 10 machines")


def test_stated_wait_is_for_the_stated_number_of_machines() -> None:
    unlimited, limited = (plan([waiting(30)], fleet(max_machines=number)).reason for number in (1000, 2))
    assert "machines would keep the wait near" in limited
    assert limited.partition("; launching")[0] == unlimited.partition("; launching")[0]


# Scale-in.


def test_each_machine_is_stopped_after_its_own_idle_time() -> None:
    seen = fleet(ready("long", idle=2000), ready("short", idle=20), busy())
    assert plan([], seen).end == ["long"]


@pytest.mark.parametrize(("policy", "seconds"), [(Policy.CHEAP, 420.0), (Policy.BALANCED, 960.0)])
def test_last_machine_of_a_new_fleet_idles_as_long_as_a_restart_costs(policy: Policy, seconds: float) -> None:
    assert plan([], fleet(ready(idle=seconds - 1), policy=policy)).is_empty
    assert plan([], fleet(ready(idle=seconds), policy=policy)).end == ["ready"]


def test_last_machine_stays_for_jobs_at_regular_intervals() -> None:
    assert plan([], fleet(ready(idle=959), idle_gaps=[930.0] * 10)).is_empty
    assert plan([], fleet(ready(idle=960), idle_gaps=[930.0] * 10)).end == ["ready"]


def test_last_machine_stops_early_if_gaps_are_long() -> None:
    assert plan([], fleet(ready(idle=480), idle_gaps=[86_000.0] * 10)).end == ["ready"]


def test_operator_sets_how_long_the_last_machine_stays() -> None:
    assert plan([], fleet(ready(idle=60), last_idle_seconds=60)).end == ["ready"]


@pytest.mark.parametrize("policy", Policy)
def test_busy_machine_is_never_ended(policy: Policy) -> None:
    seen = fleet(
        replace(busy(), idle_seconds=10_000.0), policy=policy, max_machines=0, cost_per_hour=0.0, idle_seconds=10_000.0
    )
    assert plan([], seen).end == []


def test_ready_machine_with_a_lease_is_busy() -> None:
    assert plan([], fleet(replace(ready(idle=10_000), leases=1))).end == []


def test_idle_machine_needed_by_waiting_jobs_is_not_stopped() -> None:
    seen = fleet(ready("a", idle=5000), ready("b", idle=5000))
    assert plan([waiting(2)], seen).is_empty
    assert plan([waiting(1)], seen).end == ["a"]


def test_machines_needed_by_arrivals_stay() -> None:
    seen = fleet(*(ready(str(number), idle=5000) for number in range(5)))
    assert plan([waiting(0, jobs_per_second=0.05)], seen).desired == 3


# Limits.


def test_machine_limit_includes_draining_machines() -> None:
    assert launched(plan([waiting(100)], fleet(draining(), max_machines=3))) == 2


def test_launch_rate_is_limited() -> None:
    seen = fleet(launches_per_minute=4, launches_ago=[5.0, 59.0, 61.0])
    assert launched(plan([waiting(100)], seen)) == 2


def test_hourly_cost_is_limited() -> None:
    seen = fleet(
        busy(price_per_hour=0.3), cost_per_hour=1.0, instance_types=[InstanceType(name="g", price_per_hour=0.3)]
    )
    found = plan([waiting(100)], seen)
    assert found.launch == (Launch(count=2, instance_type="g"),)
    assert "the cost limit is 1 per hour" in found.reason


def test_next_type_is_launched_if_the_first_exceeds_the_cost_limit() -> None:
    types = [InstanceType(name="dear", price_per_hour=2.0), InstanceType(name="cheap", price_per_hour=0.5)]
    assert plan([waiting(1)], fleet(instance_types=types)).launch == (Launch(count=1, instance_type="dear"),)
    found = plan([waiting(1)], fleet(instance_types=types, cost_per_hour=1.0))
    assert found.launch == (Launch(count=1, instance_type="cheap"),)


def test_machines_beyond_a_lowered_limit_are_stopped_once_idle() -> None:
    found = plan([waiting(50)], fleet(busy(), ready("idle"), booting("boots"), max_machines=1))
    assert found.end == ["idle", "boots"]
    dear = fleet(busy(price_per_hour=1.0), ready("idle", price_per_hour=1.0), cost_per_hour=1.0)
    assert plan([waiting(50)], dear).end == ["idle"]


def test_over_budget_stops_the_most_expensive_idle_machines_first() -> None:
    dear = ready("dear", price_per_hour=9.0)
    others = [ready(name, idle=500.0, price_per_hour=1.0) for name in ("a", "b")]
    found = plan([], fleet(*others, dear, cost_per_hour=3.0, min_machines=3))
    assert found.end == ["dear"]
    assert "1 machine over the limits: terminating 1" in found.reason
    # Busy machines are never stopped. Of the idle ones, paid machines come first.
    with_busy = fleet(busy(price_per_hour=9.0), *others, ready("free"), cost_per_hour=3.0, min_machines=4)
    assert plan([], with_busy).end == ["a", "b"]


@pytest.mark.parametrize("policy", Policy)
def test_external_machines_are_never_stopped(policy: Policy) -> None:
    external = [ready(f"external{number}", idle=10_000.0, is_foreign=True) for number in range(2)]
    found = plan([], fleet(*external, booting("own"), policy=policy, max_machines=1, idle_seconds=10_000.0))
    assert found.end == ["own"]
    reason = "2 machines over the limits: terminating 1 (never busy or foreign ones)"
    assert reason in found.reason
    assert plan([], fleet(*external, policy=policy, idle_seconds=10_000.0, last_idle_seconds=0.0)).end == []


def test_worker_limits_restrict_launches() -> None:
    found = plan([waiting(100)], fleet(ready(), max_workers=3))
    assert launched(found) == 2
    assert "3 workers may register in the fleet" in found.reason
    assert launched(plan([waiting(100)], fleet(ready(), max_workers=3, workers_without_machine=1))) == 1
    found = plan([waiting(100)], fleet(ready(), max_workers_of_all_fleets=9, workers_elsewhere=7))
    assert launched(found) == 1
    assert "9 workers may register in all fleets together" in found.reason


def test_fleet_without_workflows_launches_no_machine() -> None:
    found = plan([], fleet(workflows=(), can_register=False, min_machines=2))
    assert found.is_empty
    assert "no workflow is mapped to it, so no worker could register" in found.reason


def test_refused_types_are_not_requested_again() -> None:
    found = plan([waiting(5)], fleet(all_types_refused=True))
    assert found.is_empty
    assert "launching 0 of 5: none of its instance types is currently available" in found.reason


def test_failed_boots_stop_launches_until_a_single_retry() -> None:
    broken = fleet(failed_boots=3, failed_boot_seconds_ago=10.0)
    found = plan([waiting(50)], broken)
    assert found.is_empty
    assert "none of the machines from the last 3 launch rounds became a worker (next attempt in 290 s)" in found.reason
    after_pause = replace(broken, failed_boot_seconds_ago=301.0)
    assert launched(plan([waiting(50)], after_pause)) == 1
    assert plan([waiting(50)], replace(after_pause, machines=[booting()])).is_empty
    assert launched(plan([waiting(50)], replace(broken, failed_boots=2))) > 1


def test_each_further_failure_doubles_the_pause_up_to_an_hour() -> None:
    pauses = [pause_left(fleet(failed_boots=number, failed_boot_seconds_ago=0.0)) for number in (2, 3, 4, 5, 900)]
    assert pauses == [None, 300, 600, 1200, 3600]


# Schedules.


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (datetime(2026, 3, 4, 7, 59, tzinfo=UTC), 0),
        (datetime(2026, 3, 4, 8, 0, tzinfo=UTC), 2),
        (datetime(2026, 3, 4, 16, 59, tzinfo=UTC), 2),
        (datetime(2026, 3, 4, 17, 0, tzinfo=UTC), 0),
        # Daylight saving time in Berlin.
        (datetime(2026, 7, 1, 7, 0, tzinfo=UTC), 2),
        # A Saturday.
        (datetime(2026, 3, 7, 12, 0, tzinfo=UTC), 0),
    ],
)
def test_schedule_sets_the_minimum_at_its_hours(now: datetime, expected: int) -> None:
    assert plan([], fleet(schedules=[WORKDAYS]), now=now).desired == expected


def test_schedule_keeps_idle_machines_at_its_hours() -> None:
    seen = fleet(ready("a", idle=9000), ready("b", idle=8000), ready("c", idle=7000), schedules=[WORKDAYS])
    assert plan([], seen).end == ["a"]


def test_schedule_ending_before_its_start_ends_on_the_next_day() -> None:
    night = Schedule(days=frozenset({4}), begins=time(22), ends=time(6), at_least=1)
    friday, saturday = datetime(2026, 3, 6, 23, tzinfo=UTC), datetime(2026, 3, 7, 5, 59, tzinfo=UTC)
    assert [scheduled_minimum([night], moment) for moment in (friday, saturday)] == [1, 1]
    assert scheduled_minimum([night], datetime(2026, 3, 6, 5, tzinfo=UTC)) == 0
    assert scheduled_minimum([night], datetime(2026, 3, 7, 23, tzinfo=UTC)) == 0


def test_schedule_from_midnight_to_midnight_has_no_gap() -> None:
    wednesday = Schedule(days=frozenset({2}), begins=time(0), ends=time(0), at_least=1)
    minutes = [datetime(2026, 3, 4, hour, minute, 59, tzinfo=UTC) for hour in range(24) for minute in range(60)]
    assert {scheduled_minimum([wednesday], moment) for moment in minutes} == {1}
    assert scheduled_minimum([wednesday], datetime(2026, 3, 5, tzinfo=UTC)) == 0
    assert scheduled_minimum([wednesday], datetime(2026, 3, 3, 23, 59, 59, tzinfo=UTC)) == 0


def test_error_names_the_unknown_time_zone() -> None:
    with pytest.raises(InvalidInput, match="no time zone 'Mars/Base'"):
        scheduled_minimum([replace(WORKDAYS, timezone="Mars/Base")], datetime(2026, 3, 4, tzinfo=UTC))


# Plans that are only reported.


def test_paused_fleet_is_not_scaled() -> None:
    found = plan([waiting(9)], fleet(ready(idle=9999), is_paused=True))
    assert found.is_empty
    assert "paused: no action taken" in found.reason


@pytest.mark.parametrize("seen", [fleet(is_dry_run=True), fleet(can_launch=False)])
def test_report_states_the_planned_action(seen: ObservedFleet) -> None:
    found = plan([waiting(9)], seen)
    assert found.is_report
    assert launched(found) > 0
    assert "no action taken" in found.reason


# Several fleets.


def test_cheaper_of_two_fleets_serves_a_shared_workflow() -> None:
    dear = fleet(slug="dear", instance_types=types(1.0))
    cheap = fleet(slug="cheap", instance_types=types(0.5), max_machines=50, launches_per_minute=50)
    work = [waiting(20, jobs_per_second=0.05)]
    alone = plan(work, cheap).desired
    assert [fleet_plan.desired for fleet_plan in plans(work, dear, cheap)] == [0, alone]


@pytest.mark.parametrize("following", [0.0, 6.0])
def test_jobs_served_by_two_fleets_get_the_machines_of_one(following: float) -> None:
    """The cheaper fleet may have only one machine, so the other fleet launches only the remaining ones."""
    attic = fleet(slug="attic", instance_types=types(0.1), max_machines=1, following_jobs=following)
    boxes = fleet(slug="boxes", instance_types=types(0.5), following_jobs=following)
    work = [waiting(2, seconds_each=60.0)]
    first, second = plans(work, attic, boxes)
    assert (first.desired, first.desired + second.desired) == (1, plan(work, boxes).desired)
    free = replace(attic, scaling=boxes.scaling)
    assert [fleet_plan.desired for fleet_plan in plans(work, free, boxes)] == [plan(work, boxes).desired, 0]


def test_work_of_a_cluster_fleet_is_not_launched_twice() -> None:
    dear = fleet(slug="dear", instance_types=types(1.0))
    cheap = fleet(slug="cheap", instance_types=types(0.5), can_launch=False, is_scaled_externally=True)
    work = [waiting(4, jobs_per_second=0.01)]
    found = plans(work, dear, cheap)
    assert [launched(fleet_plan) > 0 for fleet_plan in found] == [False, True]
    assert "the cluster acts on this decision" in found[1].reason


def test_faster_fleet_wins_at_equal_price() -> None:
    slow, quick = fleet(slug="a", instance_types=types(1.0)), fleet(slug="b", instance_types=types(1.0, speed=2.0))
    assert [fleet_plan.desired > 0 for fleet_plan in plans([waiting(5)], slow, quick)] == [False, True]


def test_next_fleet_serves_the_overflow_of_the_cheaper() -> None:
    work = [waiting(20)]
    cheap = fleet(slug="cheap", instance_types=types(0.5), max_machines=2)
    dear = fleet(slug="dear", instance_types=types(1.0), max_machines=50, launches_per_minute=50)
    first, second = plans(work, cheap, dear)
    assert first.desired == 2
    assert second.desired == plan(work, dear).desired - 2
    paused = replace(cheap, scaling=replace(cheap.scaling, is_paused=True))
    assert plans(work, paused, dear)[1].desired == plan(work, dear).desired
    dry_run = replace(cheap, scaling=replace(cheap.scaling, is_dry_run=True))
    assert plans(work, dry_run, dear)[1].desired == plan(work, dear).desired


def test_existing_machines_are_used_before_a_cheaper_one_is_launched() -> None:
    cheap = fleet(slug="cheap", instance_types=types(0.5))
    dear = fleet(ready(), slug="dear", instance_types=types(1.0))
    assert all(fleet_plan.is_empty for fleet_plan in plans([waiting(3, jobs_per_second=0.01)], cheap, dear))


def test_workflow_of_one_fleet_is_not_assigned_to_the_other() -> None:
    first = fleet(slug="first", workflows=(1,), instance_types=types(0.5))
    second = fleet(slug="second", workflows=(2,), instance_types=types(1.0))
    assert [fleet_plan.desired for fleet_plan in plans([waiting(1), waiting(1, workflow=2)], first, second)] == [1, 1]


# The reference policy.


def test_reference_policy_steps_from_none_to_one() -> None:
    assert plan([waiting(40)], fleet(policy=Policy.REFERENCE)).desired == 1


def test_reference_policy_tracks_a_backlog_of_two() -> None:
    assert plan([waiting(11)], fleet(busy(), policy=Policy.REFERENCE)).desired == 6
    assert plan([waiting(3)], fleet(busy(), busy("b"), policy=Policy.REFERENCE)).desired == 3


def test_reference_policy_stops_all_after_fifteen_idle_minutes() -> None:
    seen = fleet(ready("a", idle=899), ready("b", idle=899), policy=Policy.REFERENCE, idle_seconds=899.0)
    assert plan([], seen).is_empty
    assert plan([], replace(seen, idle_seconds=900.0)).end == ["a", "b"]


def test_reference_policy_stops_idle_machines_after_fifteen_low_minutes() -> None:
    seen = fleet(busy(), ready("b", idle=5), ready("c", idle=6), policy=Policy.REFERENCE, low_seconds=899.0)
    assert plan([], seen).is_empty
    assert plan([], replace(seen, low_seconds=900.0)).end == ["c", "b"]


def test_arrivals_shared_by_fleets_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing them per pair of fleets would take too much CPU time."""
    calls = 0

    def counted(work: QueuedWork, boot_seconds: float) -> Load:
        nonlocal calls
        calls += 1
        return arriving_load(work, boot_seconds)

    monkeypatch.setattr("comfyrelay.domain.autoscaling.decide.arriving_load", counted)
    work = [waiting(1, workflow=number, jobs_per_second=0.01) for number in range(20)]
    plans(work, *(fleet(ready(), slug=f"f{number}", workflows=range(20)) for number in range(10)))
    assert calls == len(work)


class TestUnknownPrices:
    """Without named types, the price of a machine is unknown until one exists."""

    def test_first_machine_without_a_price_is_launched_alone(self) -> None:
        first = plan([], fleet(min_machines=8, cost_per_hour=4.0))
        assert launched(first) == 1
        assert "the price of the first machine is not yet known" in first.reason
        assert launched(plan([], fleet(booting(), min_machines=8, cost_per_hour=4.0))) == 0

    def test_cost_limit_uses_the_highest_known_price(self) -> None:
        seen = fleet(booting(price_per_hour=1.0), booting("b", price_per_hour=0.5), min_machines=8, cost_per_hour=4.0)
        assert launched(plan([], seen)) == 2

    @pytest.mark.parametrize("machines", [(), (ready(),)])
    def test_zero_budget_launches_no_machine(self, machines: tuple[ObservedMachine, ...]) -> None:
        found = plan([], fleet(*machines, min_machines=8, cost_per_hour=0.0))
        assert found.is_empty
        assert "the cost limit is 0 per hour" in found.reason

    def test_machines_without_any_price_count_as_free(self) -> None:
        assert launched(plan([], fleet(ready(), min_machines=8, cost_per_hour=4.0))) == 7
