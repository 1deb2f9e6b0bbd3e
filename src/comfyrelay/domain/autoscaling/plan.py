"""What is decided for a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """`instance_type` is `None` where the fleet names none."""

    count: int
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """`desired` counts the machines that are there and booting, draining ones aside, once this is done."""

    fleet: str
    desired: int
    reason: str
    launch: Sequence[Launch] = ()
    # ids of idle or booting machines
    end: Sequence[str] = ()
    # this is what would be done: nobody is to do it
    is_report: bool = False
    # what keeps more machines from being launched, if more are wanted
    limit: str | None = None

    @property
    def is_nothing(self) -> bool:
        return not self.launch and not self.end
