"""How the policies of our own weigh waiting against machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.spec import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    # what waits should be done so long after a machine that is launched now could begin
    drain_seconds: float
    # how many machines beyond the arriving work are kept, times its square root
    spare: float
    # a machine beyond the last one stays so many boot times without work
    idle_boots: float
    # what waits while no machine is up begins a burst: this share of what usually follows counts as if it waited
    following: float


WEIGHTS: Mapping[Policy, Weights] = {
    Policy.CHEAP: Weights(drain_seconds=120.0, spare=0.0, idle_boots=0.5, following=0.3),
    Policy.BALANCED: Weights(drain_seconds=30.0, spare=1.3, idle_boots=1.45, following=1.0),
    Policy.FAST: Weights(drain_seconds=20.0, spare=1.5, idle_boots=3.0, following=1.0),
}
