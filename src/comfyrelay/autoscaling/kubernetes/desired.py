"""What a cluster is told of a fleet."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from comfyrelay.domain.autoscaling.observation import MachineState, SeenMachine
from comfyrelay.domain.queue.states import Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Desired:
    """How many machines a fleet should have, why, and those that it has; each is called as its pod is."""

    count: int
    reason: str
    machines: Sequence[SeenMachine] = ()

    @property
    def present(self) -> int:
        return sum(each.state is not MachineState.DRAINING for each in self.machines)


# `NotFound` when there is no such fleet; any other error when it cannot be known now
DesiredOf = Callable[[Stage, str], Awaitable[Desired]]
