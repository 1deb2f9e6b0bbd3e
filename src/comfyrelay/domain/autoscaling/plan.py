"""The decision for a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """`instance_type` is `None` if the fleet names no types."""

    count: int
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """`desired` is the number of running and booting machines after this plan, without draining ones.

    `end` has the ids of idle or booting machines to terminate. `limit` is the limit that prevents further launches, if
    more machines are wanted. If `is_report`, no action is taken.
    """

    fleet: str
    desired: int
    reason: str
    launch: Sequence[Launch] = ()
    end: Sequence[str] = ()
    is_report: bool = False
    limit: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.launch and not self.end
