"""What alarms on queue depth do: from none to one while anything waits, then a backlog of 2 for each worker, and none
after 15 minutes without work.

An alarm sees what was published, once a minute, and acts when it has looked at it for a minute more: once, and then not
before the next minute. Target tracking takes machines away only after 15 low minutes in a row, and those that run
something are protected.
"""

from dataclasses import dataclass, field
from math import ceil, floor

from comfyrelay.domain.autoscaling.capacity import is_capacity, may_end
from comfyrelay.domain.autoscaling.observation import Alarm, MachineState, SeenFleet, SeenMachine

BACKLOG_TARGET = 2.0
# Target tracking calls a backlog low below nine tenths of its target.
LOW_BACKLOG = 0.9 * BACKLOG_TARGET
LOW_SECONDS = 900.0
ZERO_AFTER_SECONDS = 900.0
METRIC_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Published:
    at: float
    depth: int
    # since when nothing was queued or leased, and since when the backlog was low
    idle_since: float
    low_since: float | None


@dataclass(slots=True)
class Alarms:
    """The figures that a fleet has published, as its alarms see them: those of the minute before. Times are seconds."""

    _minute: float | None = None
    _published: list[_Published] = field(default_factory=list)

    def publish(self, now: float, *, depth: int, workers: int) -> None:
        """To be called at least once a minute; the figures of a minute are those of its first call."""
        minute = floor(now / METRIC_SECONDS)
        if minute == self._minute:
            return
        self._minute = minute
        last = self._published[-1] if self._published else _Published(now, 0, now, now)
        is_low = backlog(depth, workers) < LOW_BACKLOG
        new = _Published(
            at=now,
            depth=depth,
            idle_since=last.idle_since if depth == 0 else now,
            low_since=(now if last.low_since is None else last.low_since) if is_low else None,
        )
        self._published = [last, new]

    def alarm(self, now: float) -> Alarm:
        return Alarm(depth=self._published[0].depth, seconds_ago=now - self._published[1].at)

    def idle_seconds(self, now: float) -> float | None:
        seen = self._published[0]
        return max(0.0, now - METRIC_SECONDS - seen.idle_since) if seen.depth == 0 else None

    def low_seconds(self, now: float) -> float:
        since = self._published[0].low_since
        return 0.0 if since is None else max(0.0, now - METRIC_SECONDS - since)


def backlog(depth: int, workers: int) -> float:
    return depth / workers if workers else float(depth)


def wanted(fleet: SeenFleet, queued: int) -> int:
    """How many machines the two policies ask for while they scale out."""
    leases = sum(each.leases for each in fleet.machines)
    depth = queued + leases if fleet.alarm is None else max(fleet.alarm.depth, leases)
    if depth == 0:
        return 0
    if not any(is_capacity(each) for each in fleet.machines):
        return 1
    workers = sum(each.state in (MachineState.READY, MachineState.BUSY) for each in fleet.machines)
    return ceil(max(1, workers) * backlog(depth, workers) / BACKLOG_TARGET)


def has_acted(fleet: SeenFleet) -> bool:
    """Whether the alarms have launched something since they last looked: they act on the same figures once."""
    alarm = fleet.alarm
    return alarm is not None and any(ago <= alarm.seconds_ago for ago in fleet.launches_ago)


def to_end(fleet: SeenFleet, queued: int, floor: int) -> list[SeenMachine]:
    capacity = [each for each in fleet.machines if is_capacity(each)]
    idle = sorted((each for each in capacity if may_end(each)), key=lambda each: (-each.idle_seconds, each.id))
    if fleet.idle_seconds is not None and fleet.idle_seconds >= ZERO_AFTER_SECONDS:
        return idle[: max(0, len(capacity) - floor)]
    excess = len(capacity) - max(1, floor, wanted(fleet, queued))
    if excess <= 0:
        return []
    if fleet.low_seconds is None:
        idle = [each for each in idle if each.idle_seconds >= LOW_SECONDS]
    elif fleet.low_seconds < LOW_SECONDS:
        return []
    return idle[:excess]
