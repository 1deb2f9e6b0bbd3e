"""Policies meet their goals relative to the reference policy, on named and generated loads."""

from collections.abc import Sequence
from itertools import product

import pytest

from comfyrelay.autoscaling.simulation.generator import Workload, generate
from comfyrelay.autoscaling.simulation.scenarios import SCENARIOS, batches, long_or_short, on_off, poisson, regular
from comfyrelay.autoscaling.simulation.simulator import simulate
from comfyrelay.autoscaling.simulation.summary import SimulationSummary, summary
from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.domain.autoscaling.spec import Policy
from tests.support import full

# The longest boot, plus the one-second debounce before a decision.
BOOT_SECONDS = 226.0
# With so few jobs, the p95 is the wait of a single job, which may vary by this much.
WAIT_SLACK_SECONDS = 10.0
# Long loads take long to simulate, because there is a decision every 20 s.
REQUESTS, SIMULATED_HOURS = (300, 200.0) if full.is_enabled else (120, 12.0)
KINDS = ("batches", "long and short", "on and off", "random", "regular", "two models")
# Mean seconds between arrivals: 3 s to 3 hours.
GAPS = tuple(10 ** (exponent / 2) for exponent in range(1, 9))
# Loads that miss a goal: machines that stay up so that no job waits, although a restart would cost a little less, and a
# p95 wait that 15 of 300 jobs decide: with 20 seeds it is below the reference's on average, with 0.84 of the hours, but
# with seed 0 it is 11 s above.
MISSED = (("regular", GAPS[4]), ("two models", GAPS[3]))


def compare(requests: Sequence[TraceRequest], world: WorldSettings, *, seed: int = 1) -> Sequence[SimulationSummary]:
    policies = (Policy.REFERENCE, Policy.CHEAP, Policy.BALANCED)
    return [summary(policy, simulate(requests, policy, world, seed=seed), world) for policy in policies]


def check(found: Sequence[SimulationSummary]) -> None:
    reference, cheap, balanced = found
    assert cheap.machine_hours <= reference.machine_hours
    assert cheap.wait_p95 <= reference.wait_p95 + BOOT_SECONDS
    assert balanced.machine_hours <= 1.05 * reference.machine_hours
    assert balanced.wait_p95 <= reference.wait_p95 + WAIT_SLACK_SECONDS
    assert all(result.busy_ended == 0 for result in found)


def generated(kind: str, every: float) -> Sequence[TraceRequest]:
    hours = min(REQUESTS * every / 3600, SIMULATED_HOURS)
    match kind:
        case "two models":
            return poisson(every, hours=hours, seed=0, models=("m", "n"))
        case "on and off":
            return on_off(20 * every, 60 * every, every, hours=4 * hours, seed=0)
        case "batches":
            return batches(10, 10 * every, hours=hours, seed=0)
        case "regular":
            return regular(every, hours=hours)
        case "long and short":
            return poisson(every, hours=hours, seed=0, seconds=long_or_short)
        case _:
            return poisson(every, hours=hours, seed=0)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("every 16 minutes", 0.2),
        ("once a day", 0.3),
        ("500 at once", 0.2),
        ("one job a second", 0.25),
        ("5 s and 900 s jobs", 0.3),
        *full.full_only(*((name, 1.0) for name in SCENARIOS)),
    ],
)
def test_policies_reach_their_goals_on_named_loads(name: str, scale: float) -> None:
    check(compare(SCENARIOS[name].requests(1, scale), SCENARIOS[name].world))


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("batches", GAPS[1]),
        ("long and short", GAPS[1]),
        ("long and short", GAPS[3]),
        ("on and off", GAPS[1]),
        ("random", GAPS[2]),
        ("regular", GAPS[3]),
        ("two models", GAPS[2]),
        *full.full_only(*(load for load in product(KINDS, GAPS) if load not in MISSED)),
    ],
)
def test_policies_reach_their_goals_on_generated_loads(kind: str, every: float) -> None:
    check(compare(generated(kind, every), WorldSettings(max_machines=20)))


@pytest.mark.parametrize(("kind", "every"), [MISSED[0], *full.full_only(*MISSED[1:])])
def test_listed_loads_miss_a_goal(kind: str, every: float) -> None:
    with pytest.raises(AssertionError):
        check(compare(generated(kind, every), WorldSettings(max_machines=20)))


@pytest.mark.parametrize(
    ("days", "seed", "max_wait"), [(1.0, 1, 0.6), *full.full_only((23.0, 2, 0.2), (23.0, 11, 0.2))]
)
def test_balanced_waits_a_fifth_as_long_in_bursts_at_the_same_cost(days: float, seed: int, max_wait: float) -> None:
    """It takes some days until bursts are learnt: on the first day it waits half as long."""
    reference, _, balanced = compare(generate(Workload(days=days), seed), WorldSettings(), seed=seed)
    assert balanced.wait_p95 <= max_wait * reference.wait_p95
    assert balanced.machine_hours <= reference.machine_hours


def test_scaling_out_with_three_data_points_is_later() -> None:
    requests = batches(12, 1800.0, hours=1.0, seed=2)
    one, three = (
        summary("reference", simulate(requests, Policy.REFERENCE, world, seed=1), world)
        for world in (WorldSettings(), WorldSettings(alarm_points=3))
    )
    assert three.wait_p95 > one.wait_p95
