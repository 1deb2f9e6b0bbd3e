"""Simulated autoscaling policies compared with alarm-based scaling, on five seeds and five held-out seeds."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median

from bench.figure import Figure
from comfyrelay.autoscaling.simulation.generator import Workload, generate
from comfyrelay.autoscaling.simulation.scenarios import SCENARIOS
from comfyrelay.autoscaling.simulation.simulator import simulate
from comfyrelay.autoscaling.simulation.summary import SimulationSummary, summary
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.domain.autoscaling.spec import Policy

SEEDS = (1, 2, 3, 4, 5)
HELD_OUT_SEEDS = (11, 12, 13, 14, 15)
POLICIES = (Policy.REFERENCE, Policy.CHEAP, Policy.BALANCED)
DAYS = 23.0


def _simulate(seed: int, days: float) -> dict[Policy, SimulationSummary]:
    requests, setting = generate(Workload(days=days), seed), WorldSettings()
    return {policy: summary(policy, simulate(requests, policy, setting, seed=seed), setting) for policy in POLICIES}


def measure(scale: float) -> list[Figure]:
    """Simulate 23 days, or the share `scale` of them."""
    seeds = (*SEEDS, *HELD_OUT_SEEDS)
    found = []
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for seed, summaries in zip(
            seeds, processes.map(_simulate, seeds, [DAYS * min(scale, 1.0)] * len(seeds)), strict=True
        ):
            found.append(summaries)
            text = "  ".join(
                f"{policy} p95 {summaries[policy].wait_p95:.0f} s, {summaries[policy].machine_hours:.0f} h"
                for policy in POLICIES
            )
            print(f"seed {seed:>2}  {text}", flush=True)
    return [
        _speed(scale),
        *_loads(scale),
        *_figures("seeds 1-5", found[: len(SEEDS)]),
        *_figures("seeds 11-15", found[len(SEEDS) :]),
    ]


def _loads(scale: float) -> list[Figure]:
    """Simulate the named loads, and compare the hours and the p95 wait of each policy with the reference."""
    figures = []
    for name, scenario in SCENARIOS.items():
        requests, world = scenario.requests(1, min(scale, 1.0)), scenario.world
        found = {policy: summary(policy, simulate(requests, policy, world, seed=1), world) for policy in POLICIES}
        reference, cheap, balanced = (found[policy] for policy in POLICIES)
        text = "  ".join(
            f"{policy} {found[policy].machine_hours:.1f} h, p95 {found[policy].wait_p95:.0f} s, "
            f"{found[policy].launches} launches"
            for policy in POLICIES
        )
        print(f"{name:<26}{text}", flush=True)
        max_boot = world.boot_seconds * (1 + world.boot_spread) + 1
        for policy, result, limit, slack in (("cheap", cheap, 1.0, max_boot), ("balanced", balanced, 1.05, 1.0)):
            ratio = result.machine_hours / reference.machine_hours
            is_met = ratio <= limit and result.wait_p95 <= reference.wait_p95 + slack
            text = f"{policy}, machine-hours, {name} (p95 {result.wait_p95:.0f} s, {reference.wait_p95:.0f} s)"
            figures.append(Figure(text, ratio, "×", "reference", ratio, f"≤ {limit:g} ×", is_met))
    return figures


def _speed(scale: float) -> Figure:
    requests = generate(Workload(days=60), seed=7)[: int(30_000 * min(scale, 1.0))]
    begin = time.perf_counter()
    simulate(requests, Policy.BALANCED)
    seconds = time.perf_counter() - begin
    return Figure(f"{len(requests):,} requests simulated", seconds, "s", goal="≤ 20 s", is_met=seconds <= 20)


def _figures(seeds: str, found: list[dict[Policy, SimulationSummary]]) -> list[Figure]:
    """Return the medians over the seeds, with the worst values in parentheses."""
    figures = []
    for policy, max_wait, max_hours in ((Policy.BALANCED, 0.2, 1.0), (Policy.CHEAP, 1.0, 0.7)):
        waits = [summaries[policy].wait_p95 / summaries[Policy.REFERENCE].wait_p95 for summaries in found]
        hours = [summaries[policy].machine_hours / summaries[Policy.REFERENCE].machine_hours for summaries in found]
        for quantity, ratios, limit in (("p95 wait", waits, max_wait), ("machine-hours", hours, max_hours)):
            name = f"{policy}, {quantity}, {seeds} (worst {max(ratios):.2f} ×)"
            ratio = median(ratios)
            figures.append(Figure(name, ratio, "×", "reference", ratio, f"≤ {limit:g} ×", ratio <= limit))
    ended = sum(summaries[policy].busy_ended for summaries in found for policy in POLICIES)
    figures.append(Figure(f"busy machines terminated, {seeds}", ended, "", goal="0", is_met=ended == 0))
    return figures
