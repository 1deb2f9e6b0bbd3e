"""The baseline policy: CloudWatch alarms on queue depth.

They scale from zero to one machine while jobs wait, then to a target backlog of 2 per worker, and to zero after 15
minutes without work. Metrics are published once a minute. An alarm acts one minute later, and at most once a minute.
Beyond the first machine, it can require several consecutive high data points. Target tracking scales in only after 15
consecutive low minutes. Busy machines are protected.
"""

from dataclasses import dataclass, field
from math import ceil, floor

from comfyrelay.domain.autoscaling.capacity import can_terminate, is_capacity
from comfyrelay.domain.autoscaling.limits import UP
from comfyrelay.domain.autoscaling.observation import Alarm, ObservedFleet, ObservedMachine

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
    idle_since: float
    low_since: float | None
    high_points: int = 0


@dataclass(slots=True)
class Alarms:
    """Published metrics of a fleet as its alarms read them: one minute late. Times are in seconds.

    Target tracking scales out after `points` consecutive data points above the target. The description of this policy
    can be read as requiring one; the alarms that AWS creates need three.
    """

    points: int = 1
    _minute: float | None = None
    _published: list[_Published] = field(default_factory=list)

    def publish(self, now: float, *, depth: int, workers: int) -> None:
        """Publish the metrics. Call this at least once a minute; the first call of a minute counts."""
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
            high_points=last.high_points + 1 if backlog(depth, workers) > BACKLOG_TARGET else 0,
            low_since=(now if last.low_since is None else last.low_since) if is_low else None,
        )
        self._published = [last, new]

    def alarm(self, now: float) -> Alarm:
        read = self._published[0]
        is_high = self.points <= 1 or read.high_points >= self.points
        return Alarm(depth=read.depth, seconds_ago=now - self._published[1].at, is_high=is_high)

    def idle_seconds(self, now: float) -> float | None:
        read = self._published[0]
        return max(0.0, now - METRIC_SECONDS - read.idle_since) if read.depth == 0 else None

    def low_seconds(self, now: float) -> float:
        since = self._published[0].low_since
        return 0.0 if since is None else max(0.0, now - METRIC_SECONDS - since)


def backlog(depth: int, workers: int) -> float:
    return depth / workers if workers else float(depth)


def wanted(fleet: ObservedFleet, queued: int) -> int:
    """Return the number of machines that the alarms request."""
    leases = sum(machine.leases for machine in fleet.machines)
    depth = queued + leases if fleet.alarm is None else max(fleet.alarm.depth, leases)
    if depth == 0:
        return 0
    if not any(is_capacity(machine) for machine in fleet.machines):
        return 1
    workers = sum(machine.state in UP for machine in fleet.machines)
    return ceil(max(1, workers) * backlog(depth, workers) / BACKLOG_TARGET)


def is_unconfirmed(fleet: ObservedFleet) -> bool:
    """Whether target tracking needs more high data points. The first machine needs none."""
    has_machine = any(is_capacity(machine) for machine in fleet.machines)
    return fleet.alarm is not None and has_machine and not fleet.alarm.is_high


def has_acted(fleet: ObservedFleet) -> bool:
    """Whether the alarms have already acted on the current metrics. They act only once."""
    alarm = fleet.alarm
    return alarm is not None and any(ago <= alarm.seconds_ago for ago in fleet.launches_ago)


def to_end(fleet: ObservedFleet, queued: int, minimum: int) -> list[ObservedMachine]:
    """Return the machines to terminate when scaling in."""
    capacity = [machine for machine in fleet.machines if is_capacity(machine)]
    idle = [machine for machine in capacity if can_terminate(machine)]
    idle.sort(key=lambda machine: (-machine.idle_seconds, machine.id))
    if fleet.idle_seconds is not None and fleet.idle_seconds >= ZERO_AFTER_SECONDS:
        return idle[: max(0, len(capacity) - minimum)]
    excess = len(capacity) - max(1, minimum, wanted(fleet, queued))
    if excess <= 0:
        return []
    if fleet.low_seconds is None:
        idle = [machine for machine in idle if machine.idle_seconds >= LOW_SECONDS]
    elif fleet.low_seconds < LOW_SECONDS:
        return []
    return idle[:excess]
