"""The decision for a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """`instance_type` is `None` if the fleet names none."""

    count: int
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """`desired` counts running and booting machines, without draining ones, after this plan."""

    fleet: str
    desired: int
    reason: str
    launch: Sequence[Launch] = ()
    # ids of idle or booting machines
    end: Sequence[str] = ()
    # dry run: nothing is done
    is_report: bool = False
    # the limit that prevents further launches, if more are wanted
    limit: str | None = None

    @property
    def is_nothing(self) -> bool:
        return not self.launch and not self.end
