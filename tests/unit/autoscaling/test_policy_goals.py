"""The goals of the policies, against the reference, on named and generated loads."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyrelay.autoscaling.simulation.generator import Workload, generate
from comfyrelay.autoscaling.simulation.scenarios import SCENARIOS, batches, long_or_short, on_off, poisson, regular
from comfyrelay.autoscaling.simulation.simulator import simulate
from comfyrelay.autoscaling.simulation.summary import SimulationSummary, summary
from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.domain.autoscaling.spec import Policy
from tests.support import full

# The longest boot, and the second until a decision.
BOOT_SECONDS = 226.0
# With so few jobs the p95 is the wait of a single one, which differs by this much.
WAIT_SLACK_SECONDS = 10.0
# Decisions every 20 s make long loads slow.
REQUESTS, SIMULATED_HOURS = (300, 200.0) if full.is_enabled else (120, 12.0)
# The share by which generated loads may miss a goal. Where long and short jobs share a workflow, durations cannot be
# predicted, and the wait is up to 1.8 times the goal while they are learnt. In sessions with few jobs, the machine
# launched for an expected second job is often not needed.
TOLERANCE = {
    "random": 0.0,
    "two models": 0.0,
    "batches": 0.0,
    "regular": 0.0,
    "on and off": 0.1,
    "long and short": 0.9,
}


def compare(requests: Sequence[TraceRequest], world: WorldSettings, *, seed: int = 1) -> Sequence[SimulationSummary]:
    policies = (Policy.REFERENCE, Policy.CHEAP, Policy.BALANCED)
    return [summary(policy, simulate(requests, policy, world, seed=seed), world) for policy in policies]


def check(found: Sequence[SimulationSummary], *, tolerance: float = 0.0) -> None:
    """Check the goals. `tolerance` is the share by which hours and waits may exceed them."""
    reference, cheap, balanced = found
    assert cheap.machine_hours <= (1.0 + tolerance) * reference.machine_hours
    assert cheap.wait_p95 <= (1.0 + tolerance) * reference.wait_p95 + BOOT_SECONDS
    assert balanced.machine_hours <= (1.05 + tolerance) * reference.machine_hours
    assert balanced.wait_p95 <= (1.0 + tolerance) * reference.wait_p95 + WAIT_SLACK_SECONDS
    assert all(result.busy_ended == 0 for result in found)


def generated(kind: str, every: float, seed: int) -> Sequence[TraceRequest]:
    hours = min(REQUESTS * every / 3600, SIMULATED_HOURS)
    match kind:
        case "two models":
            return poisson(every, hours=hours, seed=seed, models=("m", "n"))
        case "on and off":
            return on_off(20 * every, 60 * every, every, hours=4 * hours, seed=seed)
        case "batches":
            return batches(10, 10 * every, hours=hours, seed=seed)
        case "regular":
            return regular(every, hours=hours)
        case "long and short":
            return poisson(every, hours=hours, seed=seed, seconds=long_or_short)
        case _:
            return poisson(every, hours=hours, seed=seed)


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


@given(kind=st.sampled_from(sorted(TOLERANCE)), magnitude=st.floats(0.5, 4.2), seed=st.integers(0, 99))
@settings(max_examples=60 if full.is_enabled else 6, deadline=None, derandomize=True)
def test_policies_reach_their_goals_on_generated_loads(kind: str, magnitude: float, seed: int) -> None:
    """The gap between arrivals is 3 s to 4 hours."""
    requests = generated(kind, 10**magnitude, seed)
    if requests:
        check(compare(requests, WorldSettings(max_machines=20)), tolerance=TOLERANCE[kind])


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
