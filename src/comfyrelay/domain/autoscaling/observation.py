"""The input of a decision: all fleets of a stage at once, so that shared work is not staffed twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from comfyrelay.domain.autoscaling.spec import InstanceType, ScalingSpec


class MachineState(StrEnum):
    # ordered or launched, not registered yet
    BOOTING = "booting"
    READY = "ready"
    BUSY = "busy"
    # accepts no jobs: not capacity
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
    # while booting: expected time left
    boot_seconds_left: float = 0.0
    # while ready: idle time
    idle_seconds: float = 0.0
    # while busy: expected time left of its job
    busy_seconds_left: float = 0.0
    # since when it is billed
    age_seconds: float = 0.0
    # started by another system: capacity, but never terminated by us
    is_foreign: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedWork:
    """Waiting work of one workflow, in jobs and in seconds on a machine with a speed of 1."""

    workflow: int
    jobs: int = 0
    seconds: float = 0.0
    seconds_per_job: float = 0.0
    # recent arrivals, and how long they were observed
    jobs_per_second: float = 0.0
    arrivals_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """Input of alarm-based scaling: queue depth a minute before the last evaluation, and the age of that evaluation."""

    depth: int
    seconds_ago: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenFleet:
    slug: str
    workflows: frozenset[int]
    scaling: ScalingSpec
    machines: Sequence[SeenMachine] = ()
    # launchable types; recently refused ones are left out
    instance_types: Sequence[InstanceType] = ()
    # whether it names types and all were refused recently
    all_refused: bool = False
    # the provider's refusal for the whole fleet, and when it is retried
    refusal: str | None = None
    # whether a worker of the fleet could register: it needs a workflow
    can_register: bool = True
    # workers that may register in it, and in all fleets
    max_workers: int | None = None
    max_workers_of_all: int | None = None
    # its workers without a machine here, such as silent ones, and machines of other fleets
    workers_beside: int = 0
    workers_elsewhere: int = 0
    # concurrent jobs of a new machine
    slots: int = 1
    # learnt, or expected by the operator
    boot_seconds: float = 180.0
    # learnt: jobs that usually follow within a boot one that found no machine
    following_jobs: float = 0.0
    # whether machines can be launched and terminated, or only counted
    can_launch: bool = True
    # whether another system acts on the decision: a cluster that reads the number
    is_done_elsewhere: bool = False
    # ages of recent launches
    launches_ago: Sequence[float] = ()
    # consecutive launches that never became a worker, and the age of the last failure
    failed_boots: int = 0
    failed_boot_seconds_ago: float | None = None
    # since when nothing was queued or leased for it; `None` while something is
    idle_seconds: float | None = None
    # for the `reference` policy only: what its alarms see, and since when the backlog was low
    alarm: Alarm | None = None
    low_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """`now` is for schedules only: other times are relative to it, in seconds."""

    now: datetime
    work: Sequence[QueuedWork]
    fleets: Sequence[SeenFleet]
