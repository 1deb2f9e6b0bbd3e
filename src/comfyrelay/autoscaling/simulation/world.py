"""The simulated world: machines that boot, load models and work, and their queue."""

from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from comfyrelay.autoscaling.simulation.traces import TraceRequest
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine

# Like the server: a warm workflow goes first within this window, unless the first job has waited too long.
WARM_LOOKAHEAD = 32
WARM_WAIT_SECONDS = 120.0
# Like the server: a job that takes longer than expected is about to end.
MIN_SECONDS_LEFT = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldSettings:
    """Where requests run. Boot times vary uniformly by `boot_spread` to both sides."""

    boot_seconds: float = 180.0
    boot_spread: float = 0.25
    load_seconds: float = 22.0
    price_per_hour: float = 0.20
    max_machines: int = 10
    # Spot: evictions per machine-hour, and the share of refused launches
    evictions_per_hour: float = 0.0
    refused_share: float = 0.0
    last_idle_seconds: float = 900.0


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
    # an eviction was announced: it accepts nothing new
    is_draining: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class SimulatedQueue:
    """Jobs in order of arrival; jobs leased out of order are skipped later."""

    jobs: dict[int, WaitingRequest] = field(default_factory=dict)
    by_workflow: dict[str, int] = field(default_factory=dict)
    # jobs of evicted machines: they go first
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
        if first.request.model != model and now - first.request.arrival_seconds < WARM_WAIT_SECONDS:
            for each in islice(self.jobs.values(), WARM_LOOKAHEAD):
                if each.request.model == model:
                    chosen = each
                    break
        return self.jobs.pop(chosen.number)

    def _count(self, job: WaitingRequest, by: int) -> None:
        workflow = job.request.workflow
        self.by_workflow[workflow] = self.by_workflow.get(workflow, 0) + by


def seen(
    machine: SimulatedMachine, now: float, boot_seconds: float, run_seconds: float, setting: WorldSettings
) -> ObservedMachine:
    """A machine as the autoscaling loop sees it: its job ends after the usual time."""
    age = now - machine.launched_at
    if not machine.is_ready:
        return ObservedMachine(
            id=machine.id,
            state=MachineState.BOOTING,
            price_per_hour=setting.price_per_hour,
            boot_seconds_left=max(MIN_SECONDS_LEFT, boot_seconds - age),
            age_seconds=age,
        )
    if machine.running is not None:
        return ObservedMachine(
            id=machine.id,
            state=MachineState.DRAINING if machine.is_draining else MachineState.BUSY,
            price_per_hour=setting.price_per_hour,
            leases=1,
            busy_seconds_left=max(MIN_SECONDS_LEFT, machine.started_at + run_seconds - now),
            age_seconds=age,
        )
    return ObservedMachine(
        id=machine.id,
        state=MachineState.READY,
        price_per_hour=setting.price_per_hour,
        idle_seconds=now - machine.idle_since,
        age_seconds=age,
    )
