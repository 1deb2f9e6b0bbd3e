"""Simulated autoscaling policies against alarm-based scaling: five seeds, and five held-out ones."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median

from bench.figure import Figure
from comfyrelay.autoscaling.simulation.generator import Workload, generate
from comfyrelay.autoscaling.simulation.simulator import simulate
from comfyrelay.autoscaling.simulation.summary import SimulationSummary, summary
from comfyrelay.autoscaling.simulation.world import WorldSettings
from comfyrelay.domain.autoscaling.spec import Policy

SEEDS = (1, 2, 3, 4, 5)
FURTHER_SEEDS = (11, 12, 13, 14, 15)
POLICIES = (Policy.REFERENCE, Policy.CHEAP, Policy.BALANCED)
DAYS = 23.0


def _one(seed: int, days: float) -> dict[Policy, SimulationSummary]:
    requests, setting = generate(Workload(days=days), seed), WorldSettings()
    return {each: summary(each, simulate(requests, each, setting, seed=seed), setting) for each in POLICIES}


def measure(scale: float) -> list[Figure]:
    """`scale` shortens the 23 days."""
    seeds = (*SEEDS, *FURTHER_SEEDS)
    found = []
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for seed, each in zip(seeds, processes.map(_one, seeds, [DAYS * min(scale, 1.0)] * len(seeds)), strict=True):
            found.append(each)
            text = "  ".join(
                f"{policy} p95 {each[policy].wait_p95:.0f} s, {each[policy].machine_hours:.0f} h" for policy in POLICIES
            )
            print(f"seed {seed:>2}  {text}", flush=True)
    return [
        _speed(scale),
        *_figures("seeds 1-5", found[: len(SEEDS)]),
        *_figures("seeds 11-15", found[len(SEEDS) :]),
    ]


def _speed(scale: float) -> Figure:
    requests = generate(Workload(days=60), seed=7)[: int(30_000 * min(scale, 1.0))]
    begin = time.perf_counter()
    simulate(requests, Policy.BALANCED)
    seconds = time.perf_counter() - begin
    return Figure(f"{len(requests):,} requests simulated", seconds, "s", reach="≤ 20 s", holds=seconds <= 20)


def _figures(which: str, found: list[dict[Policy, SimulationSummary]]) -> list[Figure]:
    """The median of the seeds counts; the worst is shown next to it."""
    figures = []
    for policy, most_wait, most_hours in ((Policy.BALANCED, 0.25, 1.0), (Policy.CHEAP, 1.0, 0.7)):
        waits = [each[policy].wait_p95 / each[Policy.REFERENCE].wait_p95 for each in found]
        hours = [each[policy].machine_hours / each[Policy.REFERENCE].machine_hours for each in found]
        for what, ratios, most in (("p95 wait", waits, most_wait), ("machine-hours", hours, most_hours)):
            name = f"{policy}, {what}, {which} (worst {max(ratios):.2f} ×)"
            ratio = median(ratios)
            figures.append(Figure(name, ratio, "×", "reference", ratio, f"≤ {most:g} ×", ratio <= most))
    ended = sum(each[policy].busy_ended for each in found for policy in POLICIES)
    figures.append(Figure(f"busy workers ended, {which}", ended, "", reach="0", holds=ended == 0))
    return figures
