"""The replica count of a fleet, as reported to KEDA."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.capacity import is_capacity
from comfyrelay.domain.autoscaling.observation import ObservedMachine
from comfyrelay.domain.queue.states import Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class DesiredReplicas:
    """The replica count for KEDA. `machines` are the current pods of the fleet; their ids are the names of the pods."""

    count: int
    reason: str
    machines: Sequence[ObservedMachine] = ()

    @property
    def present(self) -> int:
        return sum(is_capacity(machine) for machine in self.machines)


# Raises `NotFound` if the fleet does not exist, and another `ComfyRelayError` if the count is currently unknown.
GetDesired = Callable[[Stage, str], Awaitable[DesiredReplicas]]
