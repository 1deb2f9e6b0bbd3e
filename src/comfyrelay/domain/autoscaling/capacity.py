"""Capacity of machines: how much work they can do, how long work waits, and how many machines arriving work needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from comfyrelay.domain.autoscaling.learning import UNKNOWN_SECONDS
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine, QueuedWork
from comfyrelay.domain.autoscaling.policies import Weights

# Arriving work that keeps a machine busy for less than this share of the time does not justify a machine.
MIN_LOAD = 0.1
# Tolerance for float sums: 2.0000000001 machines count as two.
ROUNDING = 1e-9


def is_capacity(machine: ObservedMachine) -> bool:
    return machine.state is not MachineState.DRAINING


def is_idle(machine: ObservedMachine) -> bool:
    return machine.state is MachineState.READY and machine.leases == 0


def can_terminate(machine: ObservedMachine) -> bool:
    return is_idle(machine) and not machine.is_foreign


def seconds_per_job(work: QueuedWork) -> float:
    if work.jobs > 0 and work.seconds > 0:
        return work.seconds / work.jobs
    return work.seconds_per_job or UNKNOWN_SECONDS


def queued_seconds(work: QueuedWork) -> float:
    return work.jobs * seconds_per_job(work) if work.jobs > 0 else 0.0


def arrival_rate(work: QueuedWork, boot_seconds: float) -> float:
    """Return the arrivals per second, or 0 if they have been observed for less than a boot time.

    Waiting jobs do not count, because they are staffed separately.
    """
    if work.arrivals_seconds < boot_seconds:
        return 0.0
    return max(0.0, work.jobs_per_second - work.jobs * work.one_arrival)


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Load of arriving work. `to_keep` is the number of machines with a speed of 1 that it keeps busy."""

    to_keep: float = 0.0
    jobs_per_second: float = 0.0
    one_arrival: float = 0.0
    is_waiting: bool = False

    @property
    def to_launch(self) -> float:
        """The load without the newest arrival, unless jobs are waiting.

        The newest arrival alone launches nothing: just after an arrival, a constant load looks higher by one arrival,
        and the decision would oscillate.
        """
        if self.is_waiting or self.jobs_per_second <= 0:
            return self.to_keep
        return self.to_keep * max(0.0, 1 - self.one_arrival / self.jobs_per_second)

    def __add__(self, other: "Load") -> "Load":
        return Load(
            to_keep=self.to_keep + other.to_keep,
            jobs_per_second=self.jobs_per_second + other.jobs_per_second,
            one_arrival=max(self.one_arrival, other.one_arrival),
            is_waiting=self.is_waiting or other.is_waiting,
        )


def arriving_load(work: QueuedWork, boot_seconds: float) -> Load:
    rate, seconds = arrival_rate(work, boot_seconds), work.seconds_per_job or seconds_per_job(work)
    return Load(
        to_keep=rate * seconds,
        jobs_per_second=rate,
        one_arrival=work.one_arrival,
        is_waiting=work.jobs > 0,
    )


def reserve(load: float, weights: Weights, *, is_bursty: bool) -> float:
    """Return the reserve for a load. It grows with the square root of the load, like random fluctuations.

    For a bursty load below one machine, the reserve is proportional to the load. A steady load below one machine has no
    reserve: an additional machine would double the cost, and a second one is launched when a job waits.
    """
    if is_bursty:
        return weights.spare * min(load, sqrt(load))
    return weights.steady_spare * sqrt(load) if load > 1 else 0.0


def machines_for(load: float, spare: float) -> int:
    """Return the number of machines for a load and its reserve."""
    return ceil(load + spare - ROUNDING) if load >= MIN_LOAD else 0


def slots_free_in(machine: ObservedMachine) -> Sequence[tuple[float, int]]:
    """Return pairs of seconds and the number of slots that become free after that time."""
    if machine.state is MachineState.BOOTING:
        return ((max(0.0, machine.boot_seconds_left), machine.slots),)
    running = _running_jobs(machine)
    if not running:
        return ((0.0, machine.slots),)
    return ((max(0.0, machine.busy_seconds_left), running), (0.0, machine.slots - running))


def free_slots(machine: ObservedMachine, within: float) -> int:
    """Return how many more jobs a machine can start now, after booting, or when its jobs end within this time."""
    if not is_capacity(machine):
        return 0
    if machine.state is MachineState.BOOTING or machine.busy_seconds_left < within:
        return machine.slots
    return machine.slots - _running_jobs(machine)


def _running_jobs(machine: ObservedMachine) -> int:
    return min(machine.slots, max(machine.leases, 1 if machine.state is MachineState.BUSY else 0))


def work_capacity(machines: Sequence[ObservedMachine], within: float) -> float:
    """Return how many seconds of work these machines can do within this time, in addition to their running jobs."""
    return sum(
        machine.speed * slots * max(0.0, within - start)
        for machine in machines
        if is_capacity(machine)
        for start, slots in slots_free_in(machine)
    )


def expected_wait(seconds: float, machines: Sequence[ObservedMachine]) -> float | None:
    """Return the seconds until all this work has started on these machines; `None` if there are no machines."""
    slots = sorted(
        (start, machine.speed * count)
        for machine in machines
        if is_capacity(machine)
        for start, count in slots_free_in(machine)
        if count
    )
    if not slots:
        return None
    left, speed, now = seconds, 0.0, slots[0][0]
    for start, more in slots:
        if speed and speed * (start - now) >= left:
            break
        left -= speed * (start - now)
        now = start
        speed += more
    return now + left / speed
