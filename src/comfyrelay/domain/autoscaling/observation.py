"""The input of a decision: all fleets of a stage at once, so that shared work is not staffed twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from comfyrelay.domain.autoscaling.learning import ONE_ARRIVAL
from comfyrelay.domain.autoscaling.spec import InstanceType, ScalingSpec


class MachineState(StrEnum):
    # Ordered or launched, but not registered yet.
    BOOTING = "booting"
    READY = "ready"
    BUSY = "busy"
    # A draining machine accepts no jobs, so it does not count as capacity.
    DRAINING = "draining"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedMachine:
    id: str
    state: MachineState
    instance_type: str | None = None
    price_per_hour: float = 0.0
    speed: float = 1.0
    slots: int = 1
    leases: int = 0
    # Expected seconds until it is ready, while booting.
    boot_seconds_left: float = 0.0
    idle_seconds: float = 0.0
    # Expected seconds until its job ends, while busy.
    busy_seconds_left: float = 0.0
    # Seconds for which it has been billed.
    age_seconds: float = 0.0
    # Another system launched it. It counts as capacity, but ComfyRelay never terminates it.
    is_foreign: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedWork:
    """Waiting work of one workflow, in jobs and in seconds on a machine with a speed of 1."""

    workflow: int
    jobs: int = 0
    seconds: float = 0.0
    seconds_per_job: float = 0.0
    # The recent arrival rate, and how long arrivals have been observed.
    jobs_per_second: float = 0.0
    arrivals_seconds: float = 0.0
    # The amount that one arrival adds to the rate.
    one_arrival: float = ONE_ARRIVAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """Input of alarm-based scaling: queue depth a minute before the last evaluation, and the age of that evaluation.

    `is_high` says whether enough consecutive data points were above the target.
    """

    depth: int
    seconds_ago: float = 0.0
    is_high: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedFleet:
    slug: str
    workflows: frozenset[int]
    scaling: ScalingSpec
    machines: Sequence[ObservedMachine] = ()
    # Types that may be launched, without recently refused ones.
    instance_types: Sequence[InstanceType] = ()
    # Whether the fleet names types and all of them were refused recently.
    all_types_refused: bool = False
    # The text of the provider's refusal for the whole fleet, with the time until the next attempt.
    refusal: str | None = None
    # Whether a worker of the fleet could register, which requires that the fleet has a workflow.
    can_register: bool = True
    max_workers: int | None = None
    max_workers_of_all_fleets: int | None = None
    # Online workers of the fleet without a machine in `machines`.
    workers_without_machine: int = 0
    # Workers and machines of other fleets.
    workers_elsewhere: int = 0
    # Concurrent jobs of a new machine.
    slots: int = 1
    # Learnt, or configured by the operator.
    boot_seconds: float = 180.0
    # Learnt: how many jobs usually follow within a boot time after a job that found no machine.
    following_jobs: float = 0.0
    # Learnt: squared coefficient of variation of the gaps between arrivals, from 0 (regular) to 1 (random).
    variation: float = 1.0
    # Learnt: the newest periods without any work, in seconds.
    idle_gaps: Sequence[float] = ()
    # Whether ComfyRelay can launch and terminate machines, not only count them.
    can_launch: bool = True
    # Whether another system, such as a Kubernetes cluster, acts on the decision.
    is_scaled_externally: bool = False
    # Ages of recent launches in seconds.
    launches_ago: Sequence[float] = ()
    # Number of consecutive rounds of launches without a worker, and the age of the last failure.
    failed_boots: int = 0
    failed_boot_seconds_ago: float | None = None
    # How long no job has been waiting or running. `None` if there is such a job.
    idle_seconds: float | None = None
    # For the `reference` policy only: the input of its alarms, and how long the backlog has been low.
    alarm: Alarm | None = None
    low_seconds: float | None = None

    @property
    def is_bursty(self) -> bool:
        """Whether jobs usually follow the first one within a boot time."""
        return self.following_jobs > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSnapshot:
    """`now` is only for schedules; all other times are in seconds, relative to `now`."""

    now: datetime
    work: Sequence[QueuedWork]
    fleets: Sequence[ObservedFleet]
