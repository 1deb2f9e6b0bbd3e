"""Learning from the past: durations, rates, boots, and refusals."""

from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.autoscaling.learning import (
    HALF_LIFE_SECONDS,
    MIN_GAPS,
    MIN_IDLE,
    NEWEST_GAPS,
    NO_RUNS,
    SILENT_ARRIVALS,
    UNKNOWN_DURATION,
    UNKNOWN_SECONDS,
    Duration,
    FailedLaunches,
    FollowingJobs,
    IdleGaps,
    Rate,
    Regularity,
    available_types,
    boot_seconds,
    failed_launches,
    idle_cost,
    idle_limit,
    launches_ago,
    refusal_reason,
    run_seconds_left,
    seconds_ago,
    seconds_left,
)
from comfyrelay.domain.autoscaling.machines import MachineEndReason, MachineRecord
from comfyrelay.domain.autoscaling.spec import InstanceType, MachineProviderName, MachineSpec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def machine(ordered: float = 0, *, booted_in: float | None = None, **more: Any) -> MachineRecord:
    registered = None if booted_in is None else ago(ordered - booted_in)
    return MachineRecord(key="k", fleet_id=1, ordered_at=ago(ordered), registered_at=registered, **more)


def refused(kind: str, instance_type: str | None, *, seconds: float = 5) -> MachineRecord:
    return machine(
        seconds, ended_at=ago(seconds), reason=refusal_reason(kind, "No: none."), instance_type=instance_type
    )


def test_rate_of_a_steady_stream_is_learned() -> None:
    rate = Rate()
    for second in range(5000, 0, -20):
        rate.add(ago(second))
    assert rate.at(NOW) == pytest.approx(1 / 20, rel=0.05)


def test_arrival_counts_half_after_its_half_life_in_any_order() -> None:
    one, other = Rate(), Rate()
    for seconds in (HALF_LIFE_SECONDS, 0.0):
        one.add(ago(seconds))
    for seconds in (0.0, HALF_LIFE_SECONDS):
        other.add(ago(seconds))
    assert one.at(NOW) == pytest.approx(other.at(NOW))
    single = Rate()
    single.add(NOW)
    assert one.at(NOW) == pytest.approx(1.5 * single.at(NOW))


def test_rate_needs_a_few_arrivals_and_restarts_after_a_silence() -> None:
    rate = Rate()
    for seconds in (400, 300, 200, 100):
        rate.add(ago(seconds))
    assert rate.observed_seconds() == 0.0
    rate.add(NOW)
    assert rate.observed_seconds() == 400.0
    rate.add(ago(-901))
    assert rate.observed_seconds() == 0.0


def bursts(*followed: int) -> FollowingJobs:
    """Record bursts an hour apart, each with `followed` jobs within the boot time of 180 s, and one job after it."""
    learnt = FollowingJobs()
    learnt.add(ago(3600 * (len(followed) + 1)), boot_seconds=180.0, silence_seconds=900.0)
    for number, jobs in enumerate(followed):
        for seconds in (0, *(10 + job for job in range(jobs)), 200):
            at = ago(3600 * (len(followed) - number) - seconds)
            learnt.add(at, boot_seconds=180.0, silence_seconds=900.0)
    return learnt


def test_following_jobs_are_known_after_five_bursts() -> None:
    assert bursts(6, 6, 6, 6).jobs() == 0.0
    assert bursts(6, 6, 6, 6, 6).jobs() == 6.0


def test_single_flood_does_not_change_the_following_jobs() -> None:
    assert bursts(2, 2, 90, 2, 2).jobs() == 2.0
    assert bursts(*([2] * 30), *([9] * 15)).jobs() == 9.0


def test_mostly_single_jobs_predict_no_following_jobs() -> None:
    assert bursts(6, 0, 0, 0, 6, 0, 0).jobs() == 0.0
    assert bursts(6, 0, 6, 0, 6, 6, 0).jobs() == 6.0


def test_single_following_job_is_no_burst() -> None:
    assert bursts(1, 1, 1, 1, 1).jobs() == 0.0
    assert bursts(2, 2, 2, 1, 1).jobs() == 2.0


def test_first_durations_are_averaged_and_later_changes_are_followed() -> None:
    learnt = NO_RUNS
    for seconds in (10.0, 20.0, 30.0):
        learnt = learnt.including(seconds)
    assert learnt.jobs == 3
    assert learnt.mean_seconds == pytest.approx(20.0)
    for _ in range(300):
        learnt = learnt.including(100.0)
    assert learnt.mean_seconds > 95


def test_overrunning_jobs_count_before_they_complete() -> None:
    learnt = Duration(jobs=8, mean_seconds=5.0)
    assert learnt.expected_seconds([905.0, 905.0]) == pytest.approx((8 * 5.0 + 2 * 905.0) / 10)


def test_running_jobs_within_the_mean_do_not_change_it() -> None:
    learnt = Duration(jobs=8, mean_seconds=60.0)
    assert learnt.expected_seconds([0.0, 30.0, 60.0]) == 60.0


def test_running_jobs_hardly_change_a_duration_learnt_from_many_jobs() -> None:
    learnt = Duration(jobs=1000, mean_seconds=60.0)
    assert learnt.expected_seconds([600.0]) == pytest.approx(60.0, rel=0.01)


def test_unknown_duration_is_at_least_the_time_of_a_running_job() -> None:
    assert UNKNOWN_DURATION.expected_seconds() == UNKNOWN_SECONDS
    assert UNKNOWN_DURATION.expected_seconds([10.0]) == UNKNOWN_SECONDS
    assert UNKNOWN_DURATION.expected_seconds([600.0]) == 600.0


def test_mean_of_long_and_short_jobs_is_stable() -> None:
    """Every tenth job takes 900 s, the others 5 s: 94.5 s on average."""
    learnt, means = NO_RUNS, []
    for number in range(1000):
        learnt = learnt.including(900.0 if number % 10 == 9 else 5.0)
        means.append(learnt.mean_seconds)
    assert max(means[200:]) < 1.1 * 94.5
    assert min(means[200:]) > 0.9 * 94.5


def test_boot_time_is_the_third_quartile_of_recent_boots() -> None:
    assert boot_seconds([], MachineSpec(provider=MachineProviderName.LOCAL)) == 30.0
    spec = MachineSpec(options={"boot_seconds": 90})
    assert boot_seconds([], MachineSpec()) == 180.0
    assert boot_seconds([], spec) == 90.0
    assert boot_seconds([machine(500, booted_in=40)], spec) == 40.0
    booted = [machine(500, booted_in=seconds) for seconds in (10, 20, 30, 40, 50)]
    assert boot_seconds([machine(5), *booted], spec) == 40.0


BOOT_FAILED = f"{MachineEndReason.BOOT_FAILED}: no worker after 400 s"


def test_failed_rounds_are_counted_since_the_last_success() -> None:
    failed = machine(500, ended_at=ago(100), reason=BOOT_FAILED)
    gone = machine(1000, ended_at=ago(600), reason=str(MachineEndReason.GONE_BOOTING))
    unneeded = machine(550, ended_at=NOW, reason=str(MachineEndReason.UNNEEDED))
    older = machine(3000, ended_at=ago(2600), reason=BOOT_FAILED)
    rows = [machine(5), failed, unneeded, refused("capacity", None), gone, machine(2000, booted_in=9), older]
    assert failed_launches(rows, NOW) == FailedLaunches(rounds=2, last_at=ago(100))
    assert failed_launches(rows, NOW, since=ago(600)).rounds == 1
    assert failed_launches(rows, NOW, since=ago(100)) == FailedLaunches()


def test_machines_launched_before_the_first_failure_are_one_round() -> None:
    first = [machine(1000 - number, ended_at=ago(500 - number), reason=BOOT_FAILED) for number in range(10)]
    assert failed_launches(first, NOW) == FailedLaunches(rounds=1, last_at=ago(491))
    # The group works: one of the machines became a worker.
    assert failed_launches([*first, machine(991, booted_in=60)], NOW).rounds == 0
    second = [machine(490, ended_at=ago(90), reason=BOOT_FAILED)] * 10
    assert failed_launches([*second, *first], NOW).rounds == 2


def test_clock_set_back_does_not_block_launches() -> None:
    """Records from a day ahead count as long past. Otherwise, they would count for a whole day."""
    ahead = -86_400
    failed = machine(ahead, ended_at=ago(ahead), reason=BOOT_FAILED)
    types = [InstanceType(name="a")]
    assert failed_launches([failed], NOW) == FailedLaunches()
    assert launches_ago([machine(ahead)], NOW) == []
    assert available_types(types, [refused("setup", None, seconds=ahead)], NOW).types == types
    assert seconds_ago(ago(ahead), NOW) == inf
    assert seconds_ago(ago(-1), NOW) == 0.0


def test_rate_adapts_after_the_clock_is_set_back() -> None:
    rate = Rate()
    for seconds in range(0, 600, 20):
        rate.add(ago(seconds - 86_400))
    before = rate.at(NOW)
    assert rate.at(ago(-HALF_LIFE_SECONDS)) == pytest.approx(before / 2)
    assert rate.observed_seconds() >= 0.0
    rate.add(ago(-HALF_LIFE_SECONDS))
    assert rate.at(ago(-HALF_LIFE_SECONDS)) > before / 2


def test_refusals_do_not_count_as_launches() -> None:
    assert launches_ago([machine(5), refused("capacity", "a"), machine(299), machine(301)], NOW) == [5.0, 299.0]


@pytest.mark.parametrize(
    ("row", "left", "all_types_refused"),
    [
        (refused("capacity", "a"), ["b"], False),
        (refused("capacity", "a", seconds=61), ["a", "b"], False),
        (refused("setup", "a"), [], True),
        (refused("quota", "a", seconds=299), [], True),
        (refused("throttled", None, seconds=16), ["a", "b"], False),
    ],
)
def test_recently_refused_type_is_not_available(row: MachineRecord, left: list[str], all_types_refused: bool) -> None:
    types = [InstanceType(name="a"), InstanceType(name="b")]
    found = available_types(types, [row], NOW)
    assert ([type_.name for type_ in found.types], found.all_types_refused) == (left, all_types_refused)


def test_fleet_without_types_waits_after_a_refusal() -> None:
    assert available_types([], [refused("capacity", None)], NOW).all_types_refused
    assert not available_types([], [], NOW).all_types_refused


@given(st.lists(st.floats(0, 5_000), min_size=MIN_GAPS, max_size=NEWEST_GAPS), st.floats(10, 2_000), st.booleans())
def test_idling_costs_at_most_twice_as_much_as_with_a_known_future(
    gaps: list[float], restart: float, is_bursty: bool
) -> None:
    """With known gaps, a machine would idle in short gaps, and stop at once before long gaps."""
    cost = idle_cost(gaps, idle_limit(gaps, restart, is_bursty=is_bursty), restart)
    assert cost <= 2 * sum(min(gap, restart) for gap in gaps) + 1e-6


def test_last_machine_idles_as_long_as_a_restart_costs_until_gaps_are_known() -> None:
    rare = [900.0] * MIN_GAPS
    assert idle_limit(rare[1:], 720.0) == 720.0
    assert idle_limit(rare, 720.0) < 720.0


def test_last_machine_idles_as_long_as_a_restart_costs_if_nearly_all_gaps_are_shorter() -> None:
    gaps = [100.0] * 49 + [900.0]
    assert idle_limit(gaps, 720.0) == 720.0
    assert idle_limit([*gaps[2:], 900.0, 900.0], 720.0) < 720.0


def test_long_gap_ends_a_burst() -> None:
    assert idle_limit([100.0] * 50, 720.0, is_bursty=True) == MIN_IDLE * 720.0


def test_idle_gap_lasts_from_the_last_job_to_the_next() -> None:
    gaps = IdleGaps()
    for now, is_busy in ((0.0, False), (5.0, True), (20.0, True), (21.0, False), (60.0, False), (80.0, True)):
        gaps.observe(now, is_busy=is_busy)
    assert gaps.newest() == (60.0,)


def test_variation_is_zero_for_regular_arrivals_and_at_most_one() -> None:
    clock, batches, few = Regularity(), Regularity(), Regularity()
    for number in range(NEWEST_GAPS + 1):
        clock.add(ago(-60.0 * number))
        batches.add(ago(-600.0 * (number // 10)))
    few.add(ago(0.0))
    assert (clock.variation(), batches.variation(), few.variation()) == (0.0, 1.0, 1.0)


def test_rate_of_a_young_load_is_its_average() -> None:
    """Ten minutes after a load began, the decaying rate is still far too low."""
    rate = Rate()
    for number in range(60):
        rate.add(ago(600.0 - 10.0 * number))
    assert rate.at(NOW) < 0.05
    assert rate.at(NOW) * rate.correction(NOW) == pytest.approx(0.1, rel=0.15)


def test_rate_falls_with_the_silence_after_the_last_arrival() -> None:
    rate = Rate()
    for number in range(60):
        rate.add(ago(600.0 - 10.0 * number))
    later = ago(-290.0)
    assert rate.at(later) * rate.correction(later) == pytest.approx(SILENT_ARRIVALS / 300.0)


def test_remaining_time_of_an_overrunning_job_grows() -> None:
    assert [run_seconds_left(60.0, passed) for passed in (0.0, 50.0, 60.0, 100.0, 900.0)] == [60, 10, 1, 40, 840]


def test_overdue_boot_is_expected_to_finish_within_a_second() -> None:
    assert [seconds_left(180.0, passed) for passed in (0.0, 60.0, 179.9, 500.0)] == [180.0, 120.0, 1.0, 1.0]
