"""The simulated world: machines that boot, load models and work, and their queue."""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.domain.autoscaling.learning import run_seconds_left, seconds_left
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine

# As on the server, a warm workflow goes first within this window, unless the first job has waited too long.
WARM_LOOKAHEAD = 32
MAX_WARM_WAIT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldSettings:
    """Properties of the simulated machines. Boot times vary uniformly by up to the share `boot_spread` in either
    direction.

    For Spot instances: evictions per machine-hour, and the share of refused launches.
    """

    boot_seconds: float = 180.0
    boot_spread: float = 0.25
    load_seconds: float = 22.0
    price_per_hour: float = 0.20
    max_machines: int = 10
    evictions_per_hour: float = 0.0
    refused_share: float = 0.0
    last_idle_seconds: float | None = None
    # Number of high data points that the alarms of the reference need.
    alarm_points: int = 1


class WaitingRequest(NamedTuple):
    number: int
    request: TraceRequest


@dataclass(slots=True, eq=False)
class SimulatedMachine:
    id: str
    launched_at: float
    ready_at: float
    is_ready: bool = False
    model: str | None = None
    running: WaitingRequest | None = None
    started_at: float = 0.0
    done_at: float = 0.0
    idle_since: float = 0.0
    # An eviction was announced, so the machine accepts no jobs.
    is_draining: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class SimulatedQueue:
    """Jobs in order of arrival."""

    jobs: dict[int, WaitingRequest] = field(default_factory=dict)
    by_workflow: dict[str, int] = field(default_factory=dict)
    # Jobs of evicted machines go first.
    returned: list[WaitingRequest] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.jobs) + len(self.returned)

    def add(self, job: WaitingRequest) -> None:
        self.jobs[job.number] = job
        self._count(job, 1)

    def give_back(self, job: WaitingRequest) -> None:
        self.returned.append(job)
        self._count(job, 1)

    def take(self, model: str | None, now: float) -> WaitingRequest | None:
        job = self._choose(model, now)
        if job is not None:
            self._count(job, -1)
        return job

    def _choose(self, model: str | None, now: float) -> WaitingRequest | None:
        if self.returned:
            return self.returned.pop(0)
        if not self.jobs:
            return None
        first = next(iter(self.jobs.values()))
        chosen = first
        if first.request.model != model and now - first.request.arrival_seconds < MAX_WARM_WAIT_SECONDS:
            window = islice(self.jobs.values(), WARM_LOOKAHEAD)
            chosen = next((job for job in window if job.request.model == model), first)
        return self.jobs.pop(chosen.number)

    def _count(self, job: WaitingRequest, by: int) -> None:
        workflow = job.request.workflow
        self.by_workflow[workflow] = self.by_workflow.get(workflow, 0) + by


def observe(
    machine: SimulatedMachine, now: float, *, boot_seconds: float, run_seconds: float, price_per_hour: float
) -> ObservedMachine:
    """Describe a machine for the autoscaling loop, which expects typical boot and run times."""
    age, is_busy = now - machine.launched_at, machine.running is not None
    state = MachineState.BUSY if is_busy else MachineState.READY
    if not machine.is_ready:
        state = MachineState.BOOTING
    elif is_busy and machine.is_draining:
        state = MachineState.DRAINING
    return ObservedMachine(
        id=machine.id,
        state=state,
        price_per_hour=price_per_hour,
        leases=int(is_busy),
        boot_seconds_left=0.0 if machine.is_ready else seconds_left(boot_seconds, age),
        idle_seconds=now - machine.idle_since if state is MachineState.READY else 0.0,
        busy_seconds_left=run_seconds_left(run_seconds, now - machine.started_at) if is_busy else 0.0,
        age_seconds=age,
    )
