"""How the policies of our own weigh waiting against machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.scaling.spec import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    # what waits should be done so long after a machine that is launched now could begin
    drain_seconds: float
    # how many machines beyond the arriving work are kept, times its square root
    spare: float
    # a machine beyond the last one stays so many boot times without work
    idle_boots: float
    # two that wait while no machine is up are the begin of a burst: so many are launched for it
    burst: int = 1


WEIGHTS: Mapping[Policy, Weights] = {
    Policy.CHEAP: Weights(drain_seconds=240.0, spare=0.25, idle_boots=1.0),
    Policy.BALANCED: Weights(drain_seconds=60.0, spare=1.0, idle_boots=2.0),
    Policy.FAST: Weights(drain_seconds=20.0, spare=2.0, idle_boots=5.0),
}
