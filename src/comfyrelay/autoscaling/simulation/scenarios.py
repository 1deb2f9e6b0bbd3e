"""Named loads for comparing the policies with the reference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from random import Random

from comfyrelay.autoscaling.simulation.generator import Workload, generate
from comfyrelay.autoscaling.simulation.traces import DAY_SECONDS, TraceRequest
from comfyrelay.autoscaling.simulation.world import WorldSettings

HOUR_SECONDS = 3600.0
Draw = Callable[[Random], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A named load. `requests` takes a seed and a share of the full length."""

    requests: Callable[[int, float], Sequence[TraceRequest]]
    max_machines: int = 10

    @property
    def world(self) -> WorldSettings:
        return WorldSettings(max_machines=self.max_machines)


def regular(every: float, *, hours: float, seconds: float = 20.0) -> Sequence[TraceRequest]:
    count = max(1, int(hours * HOUR_SECONDS / every))
    return [TraceRequest(number * every, seconds, "w", "m") for number in range(count)]


def arrivals(draw: Random, per_second: float, *, begin: float = 0.0, end: float) -> Iterator[float]:
    """Yield random (Poisson) arrivals."""
    now = begin + draw.expovariate(per_second)
    while now < end:
        yield now
        now += draw.expovariate(per_second)


def poisson(
    every: float, *, hours: float, seed: int, seconds: Draw = lambda _draw: 30.0, models: Sequence[str] = ("m",)
) -> Sequence[TraceRequest]:
    draw = Random(seed)
    times = arrivals(draw, 1 / every, end=hours * HOUR_SECONDS)
    return [TraceRequest(at, seconds(draw), "w", draw.choice(models)) for at in times]


def day_and_night(every: float, *, days: float, seed: int) -> Sequence[TraceRequest]:
    """Return arrivals that follow the time of day. `every` is the mean gap at noon; there are none at midnight."""
    draw = Random(seed)
    times = arrivals(draw, 1 / every, end=days * DAY_SECONDS)
    return [
        TraceRequest(at, 30.0, "w", "m") for at in times if draw.random() < 0.5 - 0.5 * cos(2 * pi * at / DAY_SECONDS)
    ]


def on_off(on: float, off: float, every: float, *, hours: float, seed: int) -> Sequence[TraceRequest]:
    """Return random arrivals for `on` seconds on average, followed by none for `off` seconds on average."""
    draw, now, found = Random(seed), 0.0, []
    while now < hours * HOUR_SECONDS:
        end = now + draw.expovariate(1 / on)
        found += [TraceRequest(at, 30.0, "w", "m") for at in arrivals(draw, 1 / every, begin=now, end=end)]
        now = end + draw.expovariate(1 / off)
    return found


def batches(size: int, every: float, *, hours: float, seed: int, seconds: float = 30.0) -> Sequence[TraceRequest]:
    draw = Random(seed)
    times = [0.0, *arrivals(draw, 1 / every, end=hours * HOUR_SECONDS)]
    return [TraceRequest(at, seconds, "w", "m") for at in times for _ in range(size)]


def long_or_short(draw: Random) -> float:
    return 900.0 if draw.random() < 0.1 else 5.0


SCENARIOS: Mapping[str, Scenario] = {
    "one job a second": Scenario(
        requests=lambda _seed, scale: regular(1.0, hours=4 * scale, seconds=20.0), max_machines=40
    ),
    "random, every 22 s": Scenario(requests=lambda seed, scale: poisson(22.0, hours=24 * scale, seed=seed)),
    "day and night": Scenario(
        requests=lambda seed, scale: day_and_night(6.0, days=3 * scale, seed=seed), max_machines=20
    ),
    "every 16 minutes": Scenario(requests=lambda _seed, scale: regular(960.0, hours=168 * scale, seconds=30.0)),
    "once a day": Scenario(requests=lambda _seed, scale: regular(DAY_SECONDS, hours=336 * scale, seconds=30.0)),
    "500 at once": Scenario(
        requests=lambda _seed, scale: [TraceRequest(0.0, 60.0, "w", "m")] * int(500 * scale), max_machines=100
    ),
    "5 s and 900 s jobs": Scenario(
        requests=lambda seed, scale: poisson(120.0, hours=48 * scale, seed=seed, seconds=long_or_short)
    ),
    "two models": Scenario(requests=lambda seed, scale: poisson(20.0, hours=24 * scale, seed=seed, models=("m", "n"))),
    "on and off": Scenario(requests=lambda seed, scale: on_off(1200.0, 3600.0, 10.0, hours=72 * scale, seed=seed)),
    "batches of 20": Scenario(requests=lambda seed, scale: batches(20, 1800.0, hours=48 * scale, seed=seed)),
    "random, every 3 s": Scenario(
        requests=lambda seed, scale: poisson(3.0, hours=8 * scale, seed=seed), max_machines=40
    ),
    "random, every 100 s": Scenario(requests=lambda seed, scale: poisson(100.0, hours=48 * scale, seed=seed)),
    "random, every 10 minutes": Scenario(requests=lambda seed, scale: poisson(600.0, hours=160 * scale, seed=seed)),
    "random, every 50 minutes": Scenario(requests=lambda seed, scale: poisson(3000.0, hours=480 * scale, seed=seed)),
    "bursts": Scenario(requests=lambda seed, scale: generate(Workload(days=6 * scale), seed)),
    "bursts, 80 workflows": Scenario(
        requests=lambda seed, scale: generate(Workload(days=6 * scale, workflows=80), seed)
    ),
}
