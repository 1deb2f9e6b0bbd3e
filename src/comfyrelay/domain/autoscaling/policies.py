"""How our policies weigh waiting against machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.spec import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights of a policy.

    Waiting work should be done `drain_seconds` after a new machine could start. `spare` times the square root of the
    arriving work is the reserve. A machine other than the last stays idle for `idle_boots` boot times. If jobs wait and
    no machine runs, a share `following` of the jobs that usually follow counts as waiting.
    """

    drain_seconds: float
    spare: float
    idle_boots: float
    following: float


WEIGHTS: Mapping[Policy, Weights] = {
    Policy.CHEAP: Weights(drain_seconds=120.0, spare=0.0, idle_boots=0.5, following=0.3),
    Policy.BALANCED: Weights(drain_seconds=30.0, spare=1.3, idle_boots=1.45, following=1.0),
    Policy.FAST: Weights(drain_seconds=20.0, spare=1.5, idle_boots=3.0, following=1.0),
}
