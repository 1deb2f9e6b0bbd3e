"""What a decision sees: one snapshot of all fleets of a stage, so that what several serve is not staffed twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from comfyrelay.domain.autoscaling.spec import InstanceType, ScalingSpec


class MachineState(StrEnum):
    # ordered, or launched and not registered yet
    BOOTING = "booting"
    READY = "ready"
    BUSY = "busy"
    # takes nothing new: it is no capacity
    DRAINING = "draining"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenMachine:
    id: str
    state: MachineState
    instance_type: str | None = None
    price_per_hour: float = 0.0
    speed: float = 1.0
    slots: int = 1
    leases: int = 0
    # while it boots: how long that should still take
    boot_seconds_left: float = 0.0
    # while it is ready: how long it has had nothing to do
    idle_seconds: float = 0.0
    # while it is busy: how long what it runs should still take
    busy_seconds_left: float = 0.0
    # since when it is paid for
    age_seconds: float = 0.0
    # somebody else has started it: it is capacity, and nobody's to end
    is_foreign: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedWork:
    """What waits for one workflow, in jobs and in seconds on a machine with a speed of 1."""

    workflow: int
    jobs: int = 0
    seconds: float = 0.0
    seconds_per_job: float = 0.0
    # arrivals lately, and over how long they were seen
    jobs_per_second: float = 0.0
    arrivals_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """What alarms on published figures act on: how deep the queue was a minute before they last looked, and how long
    ago that look was."""

    depth: int
    seconds_ago: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenFleet:
    slug: str
    workflows: frozenset[int]
    scaling: ScalingSpec
    machines: Sequence[SeenMachine] = ()
    # those that could be launched; one whose launch was refused lately is not among them
    instance_types: Sequence[InstanceType] = ()
    # whether it names types, and each of them was refused lately
    all_refused: bool = False
    # what its provider said when it would launch nothing at all for the fleet, and when it is asked again
    refusal: str | None = None
    # whether a worker of the fleet could register: one that would get no workflow could not
    can_register: bool = True
    # workers that may register in it, and in all fleets together
    max_workers: int | None = None
    max_workers_of_all: int | None = None
    # its workers that are no machine here, as those that were not heard of lately; and what other fleets have or boot
    workers_beside: int = 0
    workers_elsewhere: int = 0
    # jobs that a machine to be launched runs at once
    slots: int = 1
    # learnt, or what the operator expects
    boot_seconds: float = 180.0
    # learnt: so many jobs usually follow, within a boot, one that found nothing up
    following_jobs: float = 0.0
    # whether anything can be launched and ended here, or only counted
    can_launch: bool = True
    # whether somebody else does what is decided: a cluster, which is told the number
    is_done_elsewhere: bool = False
    # how long ago each launch of the last minutes was ordered
    launches_ago: Sequence[float] = ()
    # launches in a row that never became a worker, and how long ago the last of them was given up
    failed_boots: int = 0
    failed_boot_seconds_ago: float | None = None
    # since when nothing was queued or leased for it; `None` while something is
    idle_seconds: float | None = None
    # for `reference` alone: what its alarms see, and since when the backlog was low; `None` where nobody keeps it
    alarm: Alarm | None = None
    low_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """`now` is for schedules alone: all else is said in seconds before or after it."""

    now: datetime
    work: Sequence[QueuedWork]
    fleets: Sequence[SeenFleet]
