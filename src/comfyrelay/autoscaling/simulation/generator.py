"""Generate realistic requests: sessions with long pauses, a few popular models and a long tail."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from random import Random

from comfyrelay.autoscaling.simulation.traces import DAY_SECONDS, TraceRequest

# The 95th percentile of the normal distribution.
Z95 = 1.6448536


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """`variation` is the coefficient of variation of the time between requests: 1 means no bursts.

    `gap_seconds` is the mean time between requests inside a burst. `first_model` and `first_five_models` are shares.
    """

    days: float = 23.0
    requests_per_day: float = 1160.0
    variation: float = 12.0
    gap_seconds: float = 30.0
    duration_mean_seconds: float = 29.0
    duration_p95_seconds: float = 69.0
    models: int = 80
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
    requests: list[TraceRequest] = []
    while True:
        mean = pause if draw.random() < ends_burst else workload.gap_seconds
        now += draw.expovariate(1 / mean)
        if now >= end:
            return requests
        model = draw.choices(models, weights)[0]
        requests.append(
            TraceRequest(now, draw.lognormvariate(mu, sigma), f"workflow{model % workload.workflows}", f"model{model}")
        )


def model_shares(workload: Workload) -> Sequence[float]:
    """Return the share of each model: the first, four that decrease by a third each, and a long tail."""
    if workload.models <= 5:
        return [1.0 / workload.models] * workload.models
    next_four = [(2 / 3) ** number for number in range(4)]
    tail = [1 / (number + 1) for number in range(workload.models - 5)]
    four, rest = workload.first_five_models - workload.first_model, 1 - workload.first_five_models
    return [
        workload.first_model,
        *(share * four / sum(next_four) for share in next_four),
        *(share * rest / sum(tail) for share in tail),
    ]


def _bursts(workload: Workload) -> tuple[float, float]:
    """Return the mean pause between bursts, and the probability that a request ends its burst.

    The time between requests is a mixture of two exponentials with the wanted mean and variation.
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
