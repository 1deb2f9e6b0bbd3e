"""Decide which waiting jobs go to the cloud: self-hosted first, and within the budget.

The queue is simulated in order: each job takes the first free slot, so a job that goes to the cloud frees its place for
the next. BurstBudget is in integer millionths of the currency unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from comfyrelay.domain.autoscaling.capacity import free_from
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.queue.wait_reasons import format_duration

NO_CLOUD_WORKER = "Comes back from Comfy Cloud: no worker is left that runs it there."


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstRunner:
    """A worker or a booting machine, and what it may run."""

    machine: ObservedMachine
    workflows: frozenset[int]
    # hashes of jobs that failed there recently, or that it is missing requirements for
    refused_hashes: frozenset[str] = frozenset()
    # (workflow, hash) pairs that need a larger GPU
    oversized: frozenset[tuple[int, str]] = frozenset()

    def could_run(self, job: "WaitingJob") -> bool:
        is_oversized = (job.workflow, job.workflow_hash) in self.oversized
        return job.workflow in self.workflows and job.workflow_hash not in self.refused_hashes and not is_oversized


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingJob:
    """A queued dispatch."""

    id: int
    workflow: int
    workflow_hash: str = ""
    # on a machine with a speed of 1
    seconds: float
    waited_seconds: float = 0.0
    # the strictest limit of its effect, tenant and job; `None`: no limit
    accepts_seconds: float | None = None
    may_burst: bool = False
    # it has gone to the cloud before
    has_burst: bool = False
    cloud_micros_per_second: int | None = None

    @property
    def expected_cost_micros(self) -> int:
        """At least one millionth, because a budget cannot limit free jobs."""
        return max(1, ceil((self.cloud_micros_per_second or 0) * self.seconds))


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstBudget:
    """Hourly budget for bursts, and how much of it is spent or reserved. `None`: no limit."""

    limit_micros: int | None = None
    spent_micros: int = 0
    workflow_limit_micros: Mapping[int, int] = field(default_factory=dict)
    workflow_spent_micros: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstInput:
    """The observation of a stage. Both queues are in lease order."""

    here: Sequence[BurstRunner]
    cloud: Sequence[BurstRunner]
    queue: Sequence[WaitingJob]
    cloud_queue: Sequence[WaitingJob] = ()
    money: BurstBudget = field(default_factory=BurstBudget)


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstDecision:
    """Where a queued dispatch goes, and why. `wait_seconds` is its total wait here; `None` if it can never run here."""

    dispatch_id: int
    workflow: int
    to: Provider
    reason: str
    expected_cost_micros: int = 0
    wait_seconds: float | None = None
    cloud_wait_seconds: float | None = None
    accepts_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstPlan:
    moves: Sequence[BurstDecision]
    # jobs that wait longer than they accept: why they stay
    stays: Mapping[int, str]


def accepted_wait(*limits: float | None) -> float | None:
    """The strictest limit that is set."""
    return min((limit for limit in limits if limit is not None), default=None)


def decide_bursts(snapshot: BurstInput) -> BurstPlan:
    """Decide which jobs go to the cloud and which return. The same observation gives the same plan."""
    here, cloud = _Slots(snapshot.here), _Slots(snapshot.cloud)
    purse = _Purse(snapshot.money)
    moves: list[BurstDecision] = []
    stays: dict[int, str] = {}
    for job in snapshot.cloud_queue:
        if cloud.wait_of(job) == inf and job.has_burst:
            moves.append(
                BurstDecision(
                    dispatch_id=job.id, workflow=job.workflow, to=Provider.SELF_HOSTED, reason=NO_CLOUD_WORKER
                )
            )
            here.take(job)
        else:
            cloud.take(job)
    for job in snapshot.queue:
        wait = here.wait_of(job)
        total = job.waited_seconds + wait
        if job.accepts_seconds is None or total <= job.accepts_seconds or not job.may_burst or job.has_burst:
            here.take(job)
            continue
        why_not = _why_not(job, wait, cloud.wait_of(job), purse)
        if why_not is not None:
            stays[job.id] = why_not
            here.take(job)
            continue
        moves.append(
            BurstDecision(
                dispatch_id=job.id,
                workflow=job.workflow,
                to=Provider.CLOUD,
                reason=_reason(total, job.accepts_seconds),
                expected_cost_micros=job.expected_cost_micros,
                wait_seconds=None if total == inf else total,
                cloud_wait_seconds=cloud.wait_of(job),
                accepts_seconds=job.accepts_seconds,
            )
        )
        purse.spend(job)
        cloud.take(job)
    return BurstPlan(moves=moves, stays=stays)


def _why_not(job: WaitingJob, wait: float, cloud_wait: float, purse: "_Purse") -> str | None:
    if job.cloud_micros_per_second is None or not purse.has_limit(job):
        return "It stays here: no limit is set to what Comfy Cloud may cost for it."
    if cloud_wait == inf:
        return "It stays here: no worker that speaks to Comfy Cloud has this workflow."
    if cloud_wait >= wait:
        return "It stays here: in Comfy Cloud it would not begin sooner."
    if not purse.allows(job):
        return "It stays here: what Comfy Cloud may cost in an hour is spent."
    return None


def _reason(total: float, accepts: float) -> str:
    if total == inf:
        return f"Goes to Comfy Cloud: no machine here can run it, and you accept a wait of {format_duration(accepts)}."
    wait, accepted = format_duration(total), format_duration(accepts)
    return f"Goes to Comfy Cloud: the wait here would be about {wait}, and you accept {accepted}."


class _Slots:
    """When each slot becomes free in the simulated queue."""

    def __init__(self, runners: Sequence[BurstRunner]) -> None:
        self._runners = [runner for runner in runners if runner.machine.state is not MachineState.DRAINING]
        self._free = [sorted(free_from(runner.machine)) for runner in self._runners]
        # cache: indexes of the runners that can run each kind of job
        self._able: dict[tuple[int, str], list[int]] = {}

    def wait_of(self, job: WaitingJob) -> float:
        return min((self._free[number][0] for number in self._of(job)), default=inf)

    def take(self, job: WaitingJob) -> None:
        chosen = min(self._of(job), key=lambda number: (self._free[number][0], number), default=None)
        if chosen is not None:
            slots = self._free[chosen]
            slots[0] += job.seconds / max(self._runners[chosen].machine.speed, 0.01)
            slots.sort()

    def _of(self, job: WaitingJob) -> list[int]:
        kind = (job.workflow, job.workflow_hash)
        if kind not in self._able:
            self._able[kind] = [
                number for number, each in enumerate(self._runners) if each.could_run(job) and self._free[number]
            ]
        return self._able[kind]


class _Purse:
    def __init__(self, money: BurstBudget) -> None:
        self._money = money
        self._spent = money.spent_micros
        self._of_workflow = dict(money.workflow_spent_micros)

    def has_limit(self, job: WaitingJob) -> bool:
        return self._money.limit_micros is not None or job.workflow in self._money.workflow_limit_micros

    def allows(self, job: WaitingJob) -> bool:
        cost, limit = job.expected_cost_micros, self._money.workflow_limit_micros.get(job.workflow)
        for_all = self._money.limit_micros is None or self._spent + cost <= self._money.limit_micros
        return for_all and (limit is None or self._of_workflow.get(job.workflow, 0) + cost <= limit)

    def spend(self, job: WaitingJob) -> None:
        self._spent += job.expected_cost_micros
        self._of_workflow[job.workflow] = self._of_workflow.get(job.workflow, 0) + job.expected_cost_micros
