"""A model of what the reference policy would have done with the jobs of a fleet.

It has its own queue and machines, follows the same alarms, and needs only what a decision observes. Our policies
compare themselves with it: they hold its machines while their jobs wait longer, as long as they have used fewer hours,
and save when they have used more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from math import ceil, exp, floor, inf, log
from typing import NamedTuple

from comfyrelay.domain.autoscaling import baseline
from comfyrelay.domain.autoscaling.learning import UNKNOWN_SECONDS
from comfyrelay.domain.autoscaling.limits import UP
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedFleet, ObservedMachine
from comfyrelay.domain.autoscaling.spec import Policy, ScalingSpec

# Hours one half-life ago count half, so that a month of savings does not pay for a day of waste.
HALF_LIFE_SECONDS = 86_400.0
# The shadow launches its first machine two minutes later than we do. This many machine-seconds are no waste.
HOURS_SLACK_SECONDS = 900.0
# Up to this multiple of the shadow's hours is no waste either. They are estimated within some percent.
MAX_HOURS_SHARE = 1.02
# Machines are held up to this share of the shadow's hours, because a held machine may idle for 15 minutes. The hours
# should stay below 1 and 1.05 of the hours of the reference.
HOLD_SHARE = {Policy.CHEAP: 0.9, Policy.BALANCED: 0.95}
# `cheap` may wait a boot longer, and boots differ by this factor from the typical one.
LONGEST_BOOT = 1.4
# Number of newest waits that count.
NEWEST_WAITS = 250
# The goal is the p95 of the shadow. Holding its machines from the p98 on leaves room for the waits until they boot.
OWN_SHARE, SHADOW_SHARE = 0.98, 0.95
# Starts are observed within a second or two.
WAIT_ERROR_SECONDS = 2.0
# After a longer time without observations the comparison starts again.
MAX_GAP_SECONDS = 2 * 86_400.0
MAX_QUEUE = 10_000
# `fast` may cost more, and the reference is the same.
COMPARED_POLICIES = (Policy.CHEAP, Policy.BALANCED)
_NO_LIMITS = ScalingSpec()


@dataclass(slots=True)
class _Machine:
    ready_at: float
    # When each slot becomes free, as a heap.
    free_at: list[float]

    def leases(self, now: float) -> int:
        return sum(at > now for at in self.free_at) if self.ready_at <= now else 0

    def observe(self, number: int, now: float) -> ObservedMachine:
        leases = self.leases(now)
        state = MachineState.BUSY if leases else MachineState.READY
        return ObservedMachine(
            id=str(number),
            state=state if self.ready_at <= now else MachineState.BOOTING,
            leases=leases,
            idle_seconds=max(0.0, now - max(self.free_at)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetState:
    """What the shadow needs of an observation.

    `machines` are all that cost. A new one runs `slots` jobs at once. `seconds_of` returns the duration of a workflow's
    jobs on it, as it is known now: many jobs may arrive before the first one ends.
    """

    queued: int
    machines: int
    boot_seconds: float
    seconds_of: Callable[[int], float]
    minimum: int = 0
    maximum: int
    slots: int = 1


class ShadowJob(NamedTuple):
    """The workflow of a job that waited before the first observation is unknown."""

    at: float
    workflow: int | None = None


@dataclass(slots=True)
class Shadow:
    """Times are in seconds. The state is lost with the process: a new one starts with the machines that are there."""

    _now: float = -inf
    _minute: float = 0.0
    _alarms: baseline.Alarms = field(default_factory=baseline.Alarms)
    _machines: list[_Machine] = field(default_factory=list)
    # Jobs that wait, in the shadow and in the fleet.
    _queue: deque[ShadowJob] = field(default_factory=lambda: deque(maxlen=MAX_QUEUE))
    _own_queue: deque[ShadowJob] = field(default_factory=lambda: deque(maxlen=MAX_QUEUE))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST_WAITS))
    _own_waits: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST_WAITS))
    # Decaying machine-seconds.
    _used: float = 0.0
    _own_used: float = 0.0

    def observe(self, now: float, fleet: FleetState, arrivals: Iterable[ShadowJob]) -> None:
        """Call this with each observation, and with the arrivals since the last one, in order."""
        if abs(now - self._now) > MAX_GAP_SECONDS:
            self._restart(now, fleet)
            return
        # An observation that began earlier may end later.
        before, now = self._now, max(now, self._now)
        for arrival in arrivals:
            self._advance(min(max(arrival.at, self._now), now), fleet)
            self._queue.append(arrival)
            self._own_queue.append(arrival)
        self._advance(now, fleet)
        started = max(0, len(self._own_queue) - fleet.queued)
        for number in range(started):
            # They started at unknown times since the last observation: assume equal distances.
            start = before + (number + 0.5) / started * (now - before)
            self._own_waits.append(max(0.0, start - self._own_queue.popleft().at))
        decay = exp(-log(2) / HALF_LIFE_SECONDS * (now - before))
        self._used *= decay
        self._own_used = self._own_used * decay + fleet.machines * (now - before)

    def is_overspent(self) -> bool:
        """Whether the fleet has used more machine-hours than the shadow."""
        return self._own_used > MAX_HOURS_SHARE * self._used + HOURS_SLACK_SECONDS

    def machines_to_hold(self, policy: Policy, boot_seconds: float) -> int:
        """Return the machines of the shadow if jobs of the fleet wait longer, for `cheap` by a boot. Else 0."""
        if self._own_used > HOLD_SHARE.get(policy, 0.0) * self._used + HOURS_SLACK_SECONDS:
            return 0
        allowed = LONGEST_BOOT * boot_seconds if policy is Policy.CHEAP else WAIT_ERROR_SECONDS
        is_longer = _quantile(self._own_waits, OWN_SHARE) > _quantile(self._waits, SHADOW_SHARE) + allowed
        return len(self._machines) if is_longer else 0

    def _restart(self, now: float, fleet: FleetState) -> None:
        """Start with the machines and waiting jobs of the fleet. Earlier arrivals do not count."""
        self._now, self._minute = now, _next_minute(now)
        self._alarms = baseline.Alarms()
        self._machines = [_Machine(now, [now] * fleet.slots) for _ in range(fleet.machines)]
        for queue in (self._queue, self._own_queue):
            queue.clear()
            queue.extend([ShadowJob(now)] * fleet.queued)
        self._waits.clear()
        self._own_waits.clear()
        self._used = self._own_used = 0.0

    def _advance(self, now: float, fleet: FleetState) -> None:
        # Metrics include the jobs that arrive at the same time.
        while self._minute < now:
            if not self._machines and not self._queue and self._minute + 2 * baseline.METRIC_SECONDS < now:
                # Nothing happens until the next arrival, except that the metrics become zero.
                self._alarms.publish(self._minute, depth=0, workers=0)
                self._minute = _next_minute(now) - 2 * baseline.METRIC_SECONDS
            self._serve(self._minute, fleet)
            self._follow_alarms(self._minute, fleet)
            self._minute += baseline.METRIC_SECONDS
        self._serve(now, fleet)

    def _serve(self, now: float, fleet: FleetState) -> None:
        """Start waiting jobs on the machine that was busy last, or that is free first."""
        self._used += len(self._machines) * (now - self._now)
        self._now = now
        while self._queue and self._machines:
            arrival = self._queue[0]
            machine = max(self._machines, key=lambda machine: _preference(machine.free_at[0], arrival.at))
            start = max(arrival.at, machine.free_at[0])
            if start > now:
                return
            self._queue.popleft()
            self._waits.append(start - arrival.at)
            seconds = UNKNOWN_SECONDS if arrival.workflow is None else fleet.seconds_of(arrival.workflow)
            heapreplace(machine.free_at, start + seconds)

    def _follow_alarms(self, now: float, fleet: FleetState) -> None:
        machines = [machine.observe(number, now) for number, machine in enumerate(self._machines)]
        depth = len(self._queue) + sum(machine.leases for machine in machines)
        self._alarms.publish(now, depth=depth, workers=sum(machine.state in UP for machine in machines))
        seen = ObservedFleet(
            slug="",
            workflows=frozenset(),
            scaling=_NO_LIMITS,
            machines=machines,
            alarm=self._alarms.alarm(now),
            idle_seconds=self._alarms.idle_seconds(now),
            low_seconds=self._alarms.low_seconds(now),
        )
        wanted = max(baseline.wanted(seen, len(self._queue)), fleet.minimum)
        more = min(wanted, fleet.maximum) - len(machines)
        ready_at = now + fleet.boot_seconds
        self._machines += [_Machine(ready_at, [ready_at] * fleet.slots) for _ in range(more)]
        if wanted <= len(machines):
            ended = {machine.id for machine in baseline.to_end(seen, len(self._queue), fleet.minimum)}
            self._machines = [machine for number, machine in enumerate(self._machines) if str(number) not in ended]


def _next_minute(now: float) -> float:
    return (floor(now / baseline.METRIC_SECONDS) + 1) * baseline.METRIC_SECONDS


def _preference(free_at: float, arrival: float) -> tuple[bool, float]:
    return (True, free_at) if free_at <= arrival else (False, -free_at)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else 0.0
