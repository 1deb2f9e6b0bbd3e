"""How our policies weigh waiting against machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.spec import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    # waiting work should be done this long after a new machine could start
    drain_seconds: float
    # reserve beyond the arriving work, times its square root
    spare: float
    # boot times that a machine beyond the last stays idle
    idle_boots: float
    # waiting jobs without a machine start a burst: this share of the usual followers counts as waiting
    following: float


WEIGHTS: Mapping[Policy, Weights] = {
    Policy.CHEAP: Weights(drain_seconds=120.0, spare=0.0, idle_boots=0.5, following=0.3),
    Policy.BALANCED: Weights(drain_seconds=30.0, spare=1.3, idle_boots=1.45, following=1.0),
    Policy.FAST: Weights(drain_seconds=20.0, spare=1.5, idle_boots=3.0, following=1.0),
}
