"""Generate realistic requests: sessions with long pauses, a few popular models and a long tail."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from random import Random

from comfyrelay.autoscaling.simulation.traces import DAY_SECONDS, TraceRequest

# the 95th percentile of the normal distribution
Z95 = 1.6448536


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    days: float = 23.0
    requests_per_day: float = 1160.0
    # coefficient of variation of the time between requests: 1 means no bursts
    variation: float = 12.0
    # mean time between requests inside a burst
    gap_seconds: float = 30.0
    duration_mean_seconds: float = 29.0
    duration_p95_seconds: float = 69.0
    models: int = 80
    # share of the first model, and of the first five
    first_model: float = 0.31
    first_five_models: float = 0.70
    workflows: int = 4


def generate(workload: Workload, seed: int) -> Sequence[TraceRequest]:
    draw = Random(seed)
    pause, ends_burst = _bursts(workload)
    mu, sigma = _log_normal(workload.duration_mean_seconds, workload.duration_p95_seconds)
    models = list(range(workload.models))
    weights = model_shares(workload)
    end = workload.days * DAY_SECONDS
    now = 0.0
    found: list[TraceRequest] = []
    while True:
        mean = pause if draw.random() < ends_burst else workload.gap_seconds
        now += draw.expovariate(1 / mean)
        if now >= end:
            return found
        model = draw.choices(models, weights)[0]
        found.append(
            TraceRequest(now, draw.lognormvariate(mu, sigma), f"workflow{model % workload.workflows}", f"model{model}")
        )


def model_shares(workload: Workload) -> Sequence[float]:
    """The first, four that decrease by a third each, and a long tail."""
    if workload.models <= 5:
        return [1.0 / workload.models] * workload.models
    next_four = [(2 / 3) ** number for number in range(4)]
    tail = [1 / (number + 1) for number in range(workload.models - 5)]
    four, rest = workload.first_five_models - workload.first_model, 1 - workload.first_five_models
    return [
        workload.first_model,
        *(each * four / sum(next_four) for each in next_four),
        *(each * rest / sum(tail) for each in tail),
    ]


def _bursts(workload: Workload) -> tuple[float, float]:
    """Mean pause between bursts and probability that a request ends its burst, for the wanted mean and variation:

    a mixture of two exponentials.
    """
    mean = DAY_SECONDS / workload.requests_per_day
    gap = workload.gap_seconds
    square = (workload.variation**2 + 1) * mean**2 / 2
    # mean = (1 - p) gap + p pause, square = (1 - p) gap² + p pause²
    pause = (square - mean * gap) / (mean - gap)
    return pause, (mean - gap) / (pause - gap)


def _log_normal(mean: float, p95: float) -> tuple[float, float]:
    sigma = Z95 - sqrt(max(0.0, Z95**2 - 2 * log(p95 / mean)))
    return log(mean) - sigma**2 / 2, sigma
