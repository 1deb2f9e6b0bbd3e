"""The goals of the policies, against the reference, on named and generated loads."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyrelay.autoscaling.simulation.scenarios import SCENARIOS, batches, on_off, poisson, regular
from comfyrelay.autoscaling.simulation.simulator import simulate
from comfyrelay.autoscaling.simulation.summary import SimulationSummary, summary
from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.domain.autoscaling.spec import Policy
from tests.support import full

# The longest boot, and the second until a decision.
BOOT_SECONDS = 226.0
# `balanced` exceeds its goal of 1.05 where short jobs wait behind long ones, and in the first hours of a load of about
# half a machine, where its reserve is a whole machine.
MAX_HOURS = {"5 s and 900 s jobs": 1.15}
MAX_HOURS_OF_NEW_LOADS = 1.35
# A wait of a single job differs by this much.
WAIT_SLACK_SECONDS = 10.0
# Decisions every 20 s make long loads slow.
REQUESTS, SIMULATED_HOURS = 120, 200.0 if full.is_enabled else 12.0
KINDS = ("random", "two models", "on and off", "batches", "regular")


def compare(requests: Sequence[TraceRequest], world: WorldSettings) -> Sequence[SimulationSummary]:
    policies = (Policy.REFERENCE, Policy.CHEAP, Policy.BALANCED)
    return [summary(policy, simulate(requests, policy, world, seed=3), world) for policy in policies]


def check(found: Sequence[SimulationSummary], *, max_hours: float = 1.05) -> None:
    reference, cheap, balanced = found
    assert cheap.machine_hours <= reference.machine_hours
    assert cheap.wait_p95 <= reference.wait_p95 + BOOT_SECONDS
    assert balanced.machine_hours <= max_hours * reference.machine_hours
    assert balanced.wait_p95 <= reference.wait_p95 + WAIT_SLACK_SECONDS
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
    found = compare(SCENARIOS[name].requests(1, scale), SCENARIOS[name].world)
    check(found, max_hours=MAX_HOURS.get(name, 1.05))


@given(kind=st.sampled_from(KINDS), magnitude=st.floats(0.5, 4.2), seed=st.integers(0, 99))
@settings(max_examples=200 if full.is_enabled else 4, deadline=None, derandomize=True)
def test_policies_reach_their_goals_on_generated_loads(kind: str, magnitude: float, seed: int) -> None:
    """The gap between arrivals is 3 s to 4 hours."""
    requests = generated(kind, 10**magnitude, seed)
    if requests:
        check(compare(requests, WorldSettings(max_machines=20)), max_hours=MAX_HOURS_OF_NEW_LOADS)


def test_scaling_out_with_three_data_points_is_later() -> None:
    requests = batches(12, 1800.0, hours=1.0, seed=2)
    one, three = (
        summary("reference", simulate(requests, Policy.REFERENCE, world, seed=1), world)
        for world in (WorldSettings(), WorldSettings(alarm_points=3))
    )
    assert three.wait_p95 > one.wait_p95
