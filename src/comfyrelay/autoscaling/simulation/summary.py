"""Summarize a simulation, and compute lower bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import ceil

from comfyrelay.autoscaling.simulation.simulator import SimulationOutcome
from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.autoscaling.simulation.world import WorldSettings

CLAIRVOYANT = "clairvoyant"


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationSummary:
    policy: str
    jobs: int
    wait_p50: float
    wait_p95: float
    wait_p99: float
    machine_hours: float
    busy_hours: float
    launches: int
    cold_starts: int
    cost_per_job: float
    peak_machines: int
    evictions: int = 0
    lost_hours: float = 0.0
    refusals: int = 0
    busy_ended: int = 0
    decisions: int = 0


def summary(policy: str, outcome: SimulationOutcome, setting: WorldSettings) -> SimulationSummary:
    jobs, hours = len(outcome.waits), outcome.machine_seconds / 3600
    waits = sorted(outcome.waits)
    return SimulationSummary(
        policy=policy,
        jobs=jobs,
        wait_p50=quantile(waits, 0.50),
        wait_p95=quantile(waits, 0.95),
        wait_p99=quantile(waits, 0.99),
        machine_hours=hours,
        busy_hours=outcome.busy_seconds / 3600,
        launches=outcome.launches,
        cold_starts=outcome.cold_starts,
        cost_per_job=hours * setting.price_per_hour / jobs if jobs else 0.0,
        peak_machines=outcome.peak_machines,
        evictions=outcome.evictions,
        lost_hours=outcome.lost_seconds / 3600,
        refusals=outcome.refusals,
        busy_ended=outcome.busy_ended,
        decisions=outcome.decisions,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all values does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def lower_bound(requests: Sequence[TraceRequest], settings: WorldSettings) -> SimulationSummary:
    """Return the lower bounds of a clairvoyant policy.

    For the wait, all allowed machines always run, with the model that a request needs. For the cost, machines are paid
    only while they work, without boots and idle time. No policy that keeps the order beats either bound, and none
    reaches both.
    """
    free_at = [0.0] * settings.max_machines
    outcome = SimulationOutcome(peak_machines=settings.max_machines)
    for request in requests:
        start = max(request.arrival_seconds, free_at[0])
        heapreplace(free_at, start + request.duration_seconds)
        outcome.waits.append(start - request.arrival_seconds)
        outcome.busy_seconds += request.duration_seconds
    outcome.machine_seconds = outcome.busy_seconds
    return summary(CLAIRVOYANT, outcome, settings)
