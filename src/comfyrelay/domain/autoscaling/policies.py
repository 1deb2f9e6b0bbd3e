"""How our policies weigh waiting against machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.spec import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights of a policy.

    Waiting work should be done `drain_seconds` after a new machine could start. The reserve is the square root of the
    arriving work times `spare` in a fleet that is used in bursts. In other fleets it is times `steady_spare`, from one
    machine on. A machine other than the last stays idle for `idle_boots` boot times. For the last one, an avoided cold
    start is worth its boot time and `cold_start_seconds` of idling. If jobs wait and no machine runs, a share
    `following` of the jobs that usually follow counts as waiting.
    """

    drain_seconds: float
    spare: float
    steady_spare: float
    idle_boots: float
    cold_start_seconds: float
    following: float


WEIGHTS: Mapping[Policy, Weights] = {
    Policy.CHEAP: Weights(
        drain_seconds=120.0, spare=0.0, steady_spare=0.0, idle_boots=0.5, cold_start_seconds=240.0, following=0.3
    ),
    Policy.BALANCED: Weights(
        drain_seconds=30.0, spare=1.35, steady_spare=0.85, idle_boots=0.8, cold_start_seconds=780.0, following=1.0
    ),
    Policy.FAST: Weights(
        drain_seconds=20.0, spare=2.0, steady_spare=1.5, idle_boots=3.0, cold_start_seconds=1600.0, following=1.0
    ),
}
