"""Observations, knowledge and decisions about the ComfyUI processes of a GPU."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean

from comfyrelay.domain.queue.memory import GIB

# A workflow, and the seconds between two completions of a process.
Span = tuple[str, float]
# A turn keeps its newest spans.
MAX_SPANS = 50


class PackingChange(StrEnum):
    NOTHING = "nothing"
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingLimits:
    max_processes: int = 8
    # Minimum gain over fewer processes that justifies the additional ones.
    min_gain: float = 0.10
    # A trial begins with this many processes, and doubles the number as long as that gains.
    first_size: int = 4
    # Comparisons are repeated if the gain is between `min_gain - unsure_gain` and `large_gain`.
    unsure_gain: float = 0.05
    large_gain: float = 0.25
    # Turns per number in a repeated comparison; up to `max_turns` if the gain is within `uncertainty` of `min_gain`.
    turns: int = 2
    max_turns: int = 4
    uncertainty: float = 0.03
    jobs_per_turn: int = 3
    idle_seconds: float = 120.0
    # Delay before a failed start or an inconclusive trial is retried.
    retry_seconds: float = 300.0
    # NVML counts any moment with a running kernel as load. Below this load, another process may use the rest.
    busy_load: float = 0.95
    # Share of the GPU memory reserved for unreported use.
    reserve: float = 0.05
    # A process is added only if the first amount of machine memory remains free, and removed below the second.
    machine_reserve_bytes: int = GIB
    machine_min_bytes: int = GIB // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedRun:
    """A job completed by one of the GPU's processes."""

    process: str
    workflow: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuObservation:
    """The state of a GPU at one moment; `None` means unknown.

    `processes` are running: first the pinned ones, which are never removed, then the others, oldest first. `restarting`
    processes may also be unreachable. `starting` processes were requested and are not up yet.
    """

    now: float
    processes: tuple[str, ...]
    pinned: int = 0
    restarting: frozenset[str] = frozenset()
    starting: int = 0
    waiting: int = 0
    running: int = 0
    # Workflows that are running or waiting, or ran recently.
    workflows: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    free_bytes: int | None = None
    # Memory that another process needs for the largest of the workflows, on the GPU and in the machine.
    copy_bytes: int | None = None
    machine_free_bytes: int | None = None
    machine_copy_bytes: int | None = None
    spare_cores: float | None = None
    load: float | None = None
    # Since the last observation: completed jobs, and workflows that ran out of memory next to others.
    completed: Sequence[CompletedRun] = ()
    out_of_memory: frozenset[str] = frozenset()
    # Why a requested process did not start.
    start_failure: str | None = None

    @property
    def total(self) -> int:
        """All processes, including starting and restarting ones."""
        return len(self.processes) + len(self.restarting) + self.starting


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A measurement while exactly `processes` get jobs."""

    processes: tuple[str, ...] = ()
    # All processes that are up, including resting ones.
    present: tuple[str, ...] = ()
    began_at: float = 0.0
    # The last completion of each process, and the number of completions.
    last_completed: Mapping[str, float] = field(default_factory=dict)
    completions: int = 0
    spans: tuple[Span, ...] = ()

    def restart(self, now: float) -> "Turn":
        return Turn(processes=self.processes, present=self.present, began_at=now)

    def is_over(self, limits: PackingLimits) -> bool:
        has_all_run = all(process in self.last_completed for process in self.processes)
        return has_all_run and len(self.spans) >= max(limits.jobs_per_turn, len(self.processes))

    def count_runs(self, runs: Sequence[CompletedRun], warm: Set[tuple[str, str]]) -> "Turn":
        """Add completed jobs. A span in which a process loads the models of a workflow does not count."""
        last, spans, completions = dict(self.last_completed), list(self.spans), self.completions
        for run in sorted(runs, key=lambda run: run.at):
            if run.process not in self.processes or run.at < self.began_at:
                continue
            if run.process in last and (run.process, run.workflow) in warm:
                spans.append((run.workflow, run.at - last[run.process]))
            last[run.process] = run.at
            completions += 1
        return replace(self, last_completed=last, completions=completions, spans=tuple(spans[-MAX_SPANS:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The spans with one number of processes. If `turns` is 0, they were measured while other processes started."""

    spans: tuple[Span, ...]
    turns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A search for the best number of processes: turns with different numbers."""

    # The number of processes being measured. The others rest.
    active: int
    # The number of processes requested so far, which is the largest number to measure.
    requested: int
    measured: Mapping[int, Measurement] = field(default_factory=dict)

    @property
    def compared_workflows(self) -> set[str]:
        """Workflows that were measured with at least two numbers."""
        ran = Counter(name for one in self.measured.values() for name in {workflow for workflow, _ in one.spans})
        return {workflow for workflow, numbers in ran.items() if numbers > 1}

    def with_turn(self, turn: Turn) -> "Trial":
        """Add a finished turn. It replaces spans that were measured while other processes started."""
        before = self.measured.get(len(turn.processes))
        if before is None or before.turns == 0:
            before = Measurement(spans=())
        added = Measurement(spans=(*before.spans, *turn.spans), turns=before.turns + 1)
        return replace(self, measured={**self.measured, len(turn.processes): added})


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryShortage:
    """The limit after a memory shortage: at most `count` processes until `until`, while these workflows run."""

    count: int
    workflows: frozenset[str]
    until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingResult:
    """The number of processes that a trial chose for a workflow, and the mean seconds between two jobs of each."""

    processes: int
    seconds: float
    # Whether more processes were measured and did not pay off.
    is_limit: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What is known about a GPU; counts and results are by workflow."""

    # More processes than this did not pay off.
    max_useful: Mapping[str, int] = field(default_factory=dict)
    # This many processes paid off.
    proven: Mapping[str, int] = field(default_factory=dict)
    # More processes than this ran out of memory.
    max_fitting: Mapping[str, int] = field(default_factory=dict)
    # Results of trials, and results from before a restart that have not been checked yet.
    results: Mapping[str, PackingResult] = field(default_factory=dict)
    remembered: Mapping[str, PackingResult] = field(default_factory=dict)
    # Time of the next trial, for workflows of an unsuccessful trial that were not measured themselves.
    retry_at: Mapping[str, float] = field(default_factory=dict)
    trial: Trial | None = None
    turn: Turn = field(default_factory=Turn)
    # Processes and workflows that they have completed, so their models are loaded.
    warm: frozenset[tuple[str, str]] = frozenset()
    idle_since: float | None = None
    # After a trial, processes are removed down to this number.
    shrink_to: int | None = None
    shortage: MemoryShortage | None = None
    # When a requested process last failed to start or exited.
    failed_at: float | None = None

    def known_count(self, workflow: str) -> int:
        """Return the number of processes that paid off, now or before a restart."""
        remembered = self.remembered.get(workflow)
        return self.proven.get(workflow, remembered.processes if remembered is not None else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingDecision:
    """The first `active` processes get jobs now. `number` processes are added, or the last `number` are removed."""

    change: PackingChange
    active: int
    reason: str
    number: int = 0


def gain_of(more: Sequence[Span], fewer: Sequence[Span], *, size: int, base: int) -> float | None:
    """Return the gain in throughput of `size` processes over `base`: 0.5 means 50 % more.

    Compare the mean time between two jobs of a process, for workflows that ran with both numbers.
    """
    common = {workflow for workflow, _ in more} & {workflow for workflow, _ in fewer}
    if not common:
        return None

    def seconds(spans: Sequence[Span]) -> float:
        return sum(mean_seconds(spans, workflow) for workflow in common)

    return size * seconds(fewer) / (base * max(seconds(more), 1e-9)) - 1


def mean_seconds(spans: Sequence[Span], workflow: str) -> float:
    return fmean(span for name, span in spans if name == workflow)
