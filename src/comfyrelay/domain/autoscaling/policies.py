"""How the policies weigh waiting time against the cost of machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.spec import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights of a policy.

    Waiting work should be done `drain_seconds` after a new machine could start. In a bursty fleet, the reserve is
    `spare` times the square root of the load. In other fleets it is `steady_spare` times the square root, for loads
    above one machine. Machines other than the last one may idle for `idle_boots` boot times. For the last one, avoiding
    a cold start is worth its boot time plus `cold_start_seconds` of idling. If jobs wait and no machine is running, the
    share `following` of the jobs that usually follow counts as waiting.
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
