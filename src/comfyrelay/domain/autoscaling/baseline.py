"""The baseline policy: CloudWatch alarms on queue depth.

From zero to one machine while anything waits, then a target backlog of 2 per worker, and zero after 15 minutes without
work. An alarm sees metrics that are published once a minute, acts after another minute, and at most once a minute.
Target tracking scales in only after 15 low minutes in a row, and busy machines are protected.
"""

from dataclasses import dataclass, field
from math import ceil, floor

from comfyrelay.domain.autoscaling.capacity import can_terminate, is_capacity
from comfyrelay.domain.autoscaling.observation import Alarm, MachineState, ObservedFleet, ObservedMachine

BACKLOG_TARGET = 2.0
# Target tracking counts a backlog below nine tenths of its target as low.
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
    """Published metrics of a fleet as its alarms see them, a minute late. Times are in seconds."""

    _minute: float | None = None
    _published: list[_Published] = field(default_factory=list)

    def publish(self, now: float, *, depth: int, workers: int) -> None:
        """Call at least once a minute; the first call of a minute counts."""
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


def wanted(fleet: ObservedFleet, queued: int) -> int:
    """Machines that the two policies request for scaling out."""
    leases = sum(machine.leases for machine in fleet.machines)
    depth = queued + leases if fleet.alarm is None else max(fleet.alarm.depth, leases)
    if depth == 0:
        return 0
    if not any(is_capacity(machine) for machine in fleet.machines):
        return 1
    workers = sum(machine.state in (MachineState.READY, MachineState.BUSY) for machine in fleet.machines)
    return ceil(max(1, workers) * backlog(depth, workers) / BACKLOG_TARGET)


def has_acted(fleet: ObservedFleet) -> bool:
    """Whether the alarms have acted on the present metrics: they act once."""
    alarm = fleet.alarm
    return alarm is not None and any(ago <= alarm.seconds_ago for ago in fleet.launches_ago)


def to_end(fleet: ObservedFleet, queued: int, floor: int) -> list[ObservedMachine]:
    capacity = [machine for machine in fleet.machines if is_capacity(machine)]
    idle = sorted((each for each in capacity if can_terminate(each)), key=lambda each: (-each.idle_seconds, each.id))
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
