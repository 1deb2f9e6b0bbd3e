"""Decide which waiting jobs go to the cloud: jobs that self-hosted workers cannot run in time, within the budget.

The queue is simulated in order. Each job takes the first free slot, so a job that goes to the cloud frees its slot for
the next one. Costs are in integer millionths of the currency unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from comfyrelay.domain.autoscaling.capacity import slots_free_in
from comfyrelay.domain.autoscaling.observation import MachineState, ObservedMachine
from comfyrelay.domain.queue.states import Provider
from comfyrelay.domain.queue.wait_reasons import format_duration

NO_CLOUD_WORKER = "Moved back from Comfy Cloud: no cloud worker can run it."


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingJob:
    """A queued dispatch. `seconds` is its run time on a machine with a speed of 1."""

    id: int
    workflow: int
    workflow_hash: str = ""
    seconds: float
    waited_seconds: float = 0.0
    # The shortest limit of its effect, tenant and job. `None` means no limit.
    accepts_seconds: float | None = None
    may_burst: bool = False
    # Whether it has gone to the cloud before.
    has_burst: bool = False
    cloud_micros_per_second: int | None = None

    @property
    def expected_cost_micros(self) -> int:
        """The expected cost. At least one millionth, because a budget cannot limit free jobs."""
        return max(1, ceil((self.cloud_micros_per_second or 0) * self.seconds))


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstRunner:
    """A worker or a booting machine, and the workflows that it may run."""

    machine: ObservedMachine
    workflows: frozenset[int]
    # Hashes that failed on this runner recently, or whose requirements it does not meet.
    refused_hashes: frozenset[str] = frozenset()
    # (workflow, hash) pairs that need a larger GPU.
    oversized: frozenset[tuple[int, str]] = frozenset()

    def could_run(self, job: WaitingJob) -> bool:
        is_oversized = (job.workflow, job.workflow_hash) in self.oversized
        return job.workflow in self.workflows and job.workflow_hash not in self.refused_hashes and not is_oversized


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstBudget:
    """Hourly cost limits for bursts, and the amounts spent or reserved. `None` means no limit."""

    limit_micros: int | None = None
    spent_micros: int = 0
    workflow_limit_micros: Mapping[int, int] = field(default_factory=dict)
    workflow_spent_micros: Mapping[int, int] = field(default_factory=dict)

    def has_limit(self, job: WaitingJob) -> bool:
        return self.limit_micros is not None or job.workflow in self.workflow_limit_micros

    def allows(self, job: WaitingJob) -> bool:
        after = self.spend(job)
        limit = self.workflow_limit_micros.get(job.workflow)
        is_within_limit = self.limit_micros is None or after.spent_micros <= self.limit_micros
        return is_within_limit and (limit is None or after.workflow_spent_micros[job.workflow] <= limit)

    def spend(self, job: WaitingJob) -> "BurstBudget":
        """Return the budget that is left after this job."""
        workflow_micros = self.workflow_spent_micros.get(job.workflow, 0) + job.expected_cost_micros
        return replace(
            self,
            spent_micros=self.spent_micros + job.expected_cost_micros,
            workflow_spent_micros={**self.workflow_spent_micros, job.workflow: workflow_micros},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstInput:
    """The input of a decision for one stage. `queue` and `cloud_queue` are in lease order."""

    self_hosted: Sequence[BurstRunner]
    cloud: Sequence[BurstRunner]
    queue: Sequence[WaitingJob]
    cloud_queue: Sequence[WaitingJob] = ()
    budget: BurstBudget = field(default_factory=BurstBudget)


@dataclass(frozen=True, kw_only=True, slots=True)
class BurstDecision:
    """Where a queued dispatch goes, and why.

    `wait_seconds` is its total wait if it stays; `None` if no self-hosted worker can run it.
    """

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
    """`stays` has the reasons why jobs that wait longer than they accept are not moved, by dispatch id."""

    moves: Sequence[BurstDecision]
    stays: Mapping[int, str]


def accepted_wait(*limits: float | None) -> float | None:
    """Return the shortest limit that is set."""
    return min((limit for limit in limits if limit is not None), default=None)


def decide_bursts(given: BurstInput) -> BurstPlan:
    """Decide which jobs go to the cloud and which return. The same input gives the same plan."""
    self_hosted, cloud = _Slots(given.self_hosted), _Slots(given.cloud)
    budget = given.budget
    moves: list[BurstDecision] = []
    stays: dict[int, str] = {}
    for job in given.cloud_queue:
        if cloud.wait_of(job) == inf and job.has_burst:
            to, reason = Provider.SELF_HOSTED, NO_CLOUD_WORKER
            moves.append(BurstDecision(dispatch_id=job.id, workflow=job.workflow, to=to, reason=reason))
            self_hosted.take(job)
        else:
            cloud.take(job)
    for job in given.queue:
        wait, cloud_wait = self_hosted.wait_of(job), cloud.wait_of(job)
        total = job.waited_seconds + wait
        if job.accepts_seconds is None or total <= job.accepts_seconds or not job.may_burst or job.has_burst:
            self_hosted.take(job)
            continue
        why_not = _why_not(job, wait, cloud_wait, budget)
        if why_not is not None:
            stays[job.id] = f"Not sent to Comfy Cloud: {why_not}."
            self_hosted.take(job)
            continue
        moves.append(
            BurstDecision(
                dispatch_id=job.id,
                workflow=job.workflow,
                to=Provider.CLOUD,
                reason=_reason(total, job.accepts_seconds),
                expected_cost_micros=job.expected_cost_micros,
                wait_seconds=None if total == inf else total,
                cloud_wait_seconds=cloud_wait,
                accepts_seconds=job.accepts_seconds,
            )
        )
        budget = budget.spend(job)
        cloud.take(job)
    return BurstPlan(moves=moves, stays=stays)


def _why_not(job: WaitingJob, wait: float, cloud_wait: float, budget: BurstBudget) -> str | None:
    if job.cloud_micros_per_second is None or not budget.has_limit(job):
        return "its workflow has no cloud price or no cost limit"
    if cloud_wait == inf:
        return "no cloud worker has this workflow"
    if cloud_wait >= wait:
        return "it would not start sooner there"
    if not budget.allows(job):
        return "the hourly cost limit is reached"
    return None


def _reason(total: float, accepts: float) -> str:
    accepted = format_duration(accepts)
    if total == inf:
        return f"Sent to Comfy Cloud: no self-hosted worker can run it, and it accepts a wait of {accepted}."
    return f"Sent to Comfy Cloud: the wait would be about {format_duration(total)}, and it accepts {accepted}."


class _Slots:
    """The times at which the slots become free in the simulated queue."""

    def __init__(self, runners: Sequence[BurstRunner]) -> None:
        self._runners = [runner for runner in runners if runner.machine.state is not MachineState.DRAINING]
        self._free_in = [
            sorted(seconds for seconds, count in slots_free_in(runner.machine) for _ in range(count))
            for runner in self._runners
        ]
        # Cache: the indexes of the runners that can run a kind of job.
        self._able: dict[tuple[int, str], list[int]] = {}

    def wait_of(self, job: WaitingJob) -> float:
        return min((self._free_in[number][0] for number in self._able_runners(job)), default=inf)

    def take(self, job: WaitingJob) -> None:
        chosen = min(self._able_runners(job), key=lambda number: (self._free_in[number][0], number), default=None)
        if chosen is not None:
            slots = self._free_in[chosen]
            slots[0] += job.seconds / max(self._runners[chosen].machine.speed, 0.01)
            slots.sort()

    def _able_runners(self, job: WaitingJob) -> list[int]:
        kind = (job.workflow, job.workflow_hash)
        if kind not in self._able:
            runners = enumerate(self._runners)
            self._able[kind] = [number for number, runner in runners if runner.could_run(job) and self._free_in[number]]
        return self._able[kind]
