"""What is observed, known and decided about the ComfyUI processes of a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean

from comfyrelay.domain.queue.memory import GIB


class PackingChange(StrEnum):
    NOTHING = "nothing"
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingLimits:
    max_processes: int = 8
    # A larger gain over fewer processes keeps the additional ones.
    min_gain: float = 0.10
    # Below `min_gain`, a larger gain per additional process justifies trying one more.
    min_promise: float = 0.03
    # After a larger gain, the next trial adds two processes.
    large_gain: float = 0.25
    # Turns of each kind, with and without; up to `max_turns` if the gain is within `uncertainty` of `min_gain`.
    turns: int = 2
    max_turns: int = 4
    uncertainty: float = 0.03
    jobs_per_turn: int = 3
    idle_seconds: float = 120.0
    # Delay before a failed start or an inconclusive trial is retried.
    retry_seconds: float = 300.0
    # NVML counts any moment with a running kernel. Below this load, another process may use the rest.
    busy_load: float = 0.95
    # Share of GPU memory for unreported use.
    reserve: float = 0.05
    # A process is added only if this much machine memory stays free, and removed below the second value.
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

    `processes` run: first the pinned ones, which are never removed, then the oldest. `restarting` processes may also be
    unreachable. `starting` processes were requested and are not up yet.
    """

    now: float
    processes: tuple[str, ...]
    pinned: int = 0
    restarting: frozenset[str] = frozenset()
    starting: int = 0
    waiting: int = 0
    running: int = 0
    # Workflows that run, wait or ran recently.
    workflows: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    free_bytes: int | None = None
    # Memory another process needs for the largest of the workflows, on the GPU and in the machine.
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
class Trial:
    """A trial of `size` processes against `base`. Turns with all and with `base` alternate, all first."""

    base: int
    size: int
    # Number of processes that were requested so far.
    requested: int
    # Measured gain of `size - steps` processes over `base`.
    previous_gain: float = 0.0
    steps: int = 1
    # Processes that have completed a job. Nothing is measured until the others have loaded their models.
    warm: frozenset[str] = frozenset()
    turn: int = 0
    began_at: float = 0.0
    # In this turn: the last completion of each process, and workflow and seconds between two completions of a process.
    last_completed: Mapping[str, float] = field(default_factory=dict)
    spans: tuple[tuple[str, float], ...] = ()
    # Spans of earlier turns, by whether the turn had all processes.
    measured: Mapping[bool, tuple[tuple[str, float], ...]] = field(default_factory=lambda: {True: (), False: ()})

    @property
    def has_all(self) -> bool:
        return self.turn % 2 == 0

    @property
    def active(self) -> int:
        return self.size if self.has_all else self.base

    @property
    def gain(self) -> float | None:
        return gain_of(self.measured[True], self.measured[False], size=self.size, base=self.base)

    @property
    def measured_workflows(self) -> set[str]:
        """Workflows that ran in both kinds of turns."""
        with_all, without = ({workflow for workflow, _ in spans} for spans in self.measured.values())
        return with_all & without

    def restart_turn(self, now: float) -> "Trial":
        return replace(self, began_at=now, last_completed={}, spans=())


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryShortage:
    """After a memory shortage: at most `count` processes until `until`, while these workflows run."""

    count: int
    workflows: frozenset[str]
    until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What is known about a GPU; counts are by workflow."""

    # More processes than this did not pay off.
    max_useful: Mapping[str, int] = field(default_factory=dict)
    # This many processes paid off.
    proven: Mapping[str, int] = field(default_factory=dict)
    # More processes than this ran out of memory.
    max_fitting: Mapping[str, int] = field(default_factory=dict)
    # Next trial of workflows that took part in an unsuccessful trial but were not measured themselves.
    retry_at: Mapping[str, float] = field(default_factory=dict)
    trial: Trial | None = None
    # The next trial adds this many processes.
    step: int = 1
    idle_since: float | None = None
    # After an unsuccessful trial, processes are removed down to this number.
    shrink_to: int | None = None
    shortage: MemoryShortage | None = None
    # When a requested process last failed to start or exited.
    failed_at: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingDecision:
    """The first `active` processes get jobs now. `REMOVE` removes the last process."""

    change: PackingChange
    active: int
    reason: str


def gain_of(
    more: Sequence[tuple[str, float]], fewer: Sequence[tuple[str, float]], *, size: int, base: int
) -> float | None:
    """Return the gain in throughput of `size` processes over `base`: 0.5 means 50 % more.

    It compares the mean time between two jobs of a process, for workflows that ran in both kinds of turns.
    """
    common = {workflow for workflow, _ in more} & {workflow for workflow, _ in fewer}
    if not common:
        return None

    def seconds(spans: Sequence[tuple[str, float]]) -> float:
        return sum(fmean(span for name, span in spans if name == workflow) for workflow in common)

    return size * seconds(fewer) / (base * max(seconds(more), 1e-9)) - 1
