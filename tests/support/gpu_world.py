"""A simulated GPU to test GPU sharing: processes start, load models and slow each other down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from comfyrelay.domain.packing.decide import decide
from comfyrelay.domain.packing.state import (
    CompletedRun,
    GpuObservation,
    Packing,
    PackingChange,
    PackingDecision,
    PackingLimits,
)
from comfyrelay.domain.queue.memory import GIB


@dataclass
class World:
    """A GPU on which a job takes `seconds(n)` if `n` jobs run, and each process needs `copy_bytes`."""

    seconds: Callable[[int], float]
    memory_bytes: int = 80 * GIB
    copy_bytes: int = 4 * GIB
    limits: PackingLimits = field(default_factory=PackingLimits)
    # The workflows, which take turns, and the factor by which each takes longer than the first.
    mix: Sequence[tuple[str, float]] = (("w", 1.0),)
    waiting: int = 1000
    cores: float = 16
    # The number of looks until a process has started, and the seconds in which its first job loads the models.
    start_looks: int = 0
    load_seconds: float = 0.0
    # The variation of job durations.
    noise: float = 0.0
    random: Random = field(default_factory=lambda: Random(1))
    # Whether the next job of a process already waits in its queue, so that it still runs after a pause.
    is_ahead: bool = False
    now: float = 0.0
    packing: Packing = field(default_factory=Packing)
    # The finished part of the job of each process; None while it has no job.
    processes: dict[str, float | None] = field(default_factory=lambda: {"p1": None})
    active: int = 1
    started: int = 1
    # Starting processes with their remaining looks, restarting processes, and the reason why the next one fails to
    # start.
    starting: dict[str, int] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    failure: str | None = None
    begun: int = 0
    jobs: dict[str, tuple[str, float]] = field(default_factory=dict)
    # The workflows that each process has loaded, the remaining seconds of loading processes, the processes with a
    # queued job, and the times at which jobs were completed.
    loaded: set[tuple[str, str]] = field(default_factory=set)
    loading: dict[str, float] = field(default_factory=dict)
    queued: set[str] = field(default_factory=set)
    completed_at: list[float] = field(default_factory=list)
    # For each look, the time and the number of jobs done by then, including parts of running jobs.
    work: list[tuple[float, float]] = field(default_factory=list)
    decisions: list[PackingDecision] = field(default_factory=list)

    def look(self, seconds: float = 1.0, **seen: Any) -> PackingDecision:
        done = self._advance(seconds)
        parts = sum(part or 0.0 for part in self.processes.values())
        self.work.append((self.now, len(self.completed_at) + parts))
        self._start()
        failed = self.failure if self.starting.pop("!", None) is not None else None
        self.failure = None if failed else self.failure
        view = GpuObservation(
            now=self.now,
            processes=tuple(self.processes),
            restarting=frozenset(self.away),
            starting=len(self.starting),
            waiting=self.waiting,
            running=sum(process is not None for process in self.processes.values()),
            workflows=frozenset(name for name, _ in self.mix) if self.waiting else frozenset(),
            memory_bytes=self.memory_bytes,
            free_bytes=self.memory_bytes - len(self.processes) * self.copy_bytes,
            # The memory of a copy is known after the first job.
            copy_bytes=self.copy_bytes if self.completed_at or not self.load_seconds else None,
            spare_cores=self.cores - len(self.processes) - len(self.starting),
            completed=done,
            start_failure=failed,
        )
        view = replace(view, **seen)
        self.packing, decision = decide(self.packing, view, self.limits)
        self.decisions.append(decision)
        self.active = decision.active
        if decision.change is PackingChange.ADD:
            assert decision.number > 0
            assert view.memory_bytes is None or (view.total + decision.number) * self.copy_bytes <= view.memory_bytes
            for _ in range(decision.number):
                self.started += 1
                self.starting["!" if self.failure is not None else f"p{self.started}"] = self.start_looks
            if self.failure is None and not self.start_looks:
                self._start()
        elif decision.change is PackingChange.REMOVE:
            assert 0 < decision.number < len(self.processes)
            for name in list(self.processes)[-decision.number :]:
                del self.processes[name]
        return decision

    def lose(self, name: str) -> None:
        """Crash a process, which then restarts."""
        if name in self.processes:
            del self.processes[name]
            self.away.add(name)

    def find(self) -> None:
        """Bring back all crashed processes."""
        found = {**self.processes, **dict.fromkeys(self.away)}
        self.processes = dict(sorted(found.items(), key=lambda item: int(item[0][1:])))
        self.away = set()

    def _start(self) -> None:
        for name, looks in list(self.starting.items()):
            if name != "!" and looks == 0:
                del self.starting[name]
                self.processes[name] = None
            elif name != "!":
                self.starting[name] = looks - 1

    def _advance(self, seconds: float) -> list[CompletedRun]:
        done: list[CompletedRun] = []
        until = self.now + seconds
        while True:
            for number, (name, part) in enumerate(self.processes.items()):
                if part is None and self.waiting and (number < self.active or name in self.queued):
                    self.processes[name] = 0.0
                    self.begun += 1
                    workflow, length = self.mix[self.begun % len(self.mix)]
                    self.jobs[name] = workflow, length * (1 + self.noise * self.random.uniform(-1, 1))
                    if self.load_seconds and (name, workflow) not in self.loaded:
                        self.loading[name] = self.load_seconds
                    self.queued.discard(name)
                    if self.is_ahead and number < self.active:
                        self.queued.add(name)
            busy = {name: part for name, part in self.processes.items() if part is not None}
            loading = {name: left for name, left in self.loading.items() if name in busy}
            computing = [name for name in busy if name not in loading]
            takes = {name: self.seconds(len(computing)) * self._job(name)[1] for name in computing}
            ends = [*loading.values(), *((1 - busy[name]) * seconds for name, seconds in takes.items())]
            step = min([until - self.now, *ends])
            self.now += step
            self.loading = {name: left - step for name, left in loading.items() if left - step > 1e-9}
            for name in computing:
                self.processes[name] = part = busy[name] + step / takes[name]
                if part >= 1 - 1e-9:
                    done.append(CompletedRun(process=name, workflow=self._job(name)[0], at=self.now))
                    self.loaded.add((name, self._job(name)[0]))
                    self.completed_at.append(self.now)
                    self.waiting = max(self.waiting - 1, 0)
                    self.processes[name] = None
            if self.now >= until - 1e-9:
                self.now = until
                return done

    def _job(self, name: str) -> tuple[str, float]:
        return self.jobs.get(name, self.mix[0])

    def run(self, looks: int, *, by: float = 1.0) -> int:
        for _ in range(looks):
            self.look(by)
        return len(self.processes)

    def run_until(self, words: str, *, looks: int = 600) -> None:
        """Look until the reason of a decision contains these words."""
        for _ in range(looks):
            if words in self.look().reason:
                return
        raise AssertionError(f"No decision said {words!r}: {self.reasons[-1000:]}")

    @property
    def changes(self) -> list[PackingChange]:
        return [decision.change for decision in self.decisions if decision.change is not PackingChange.NOTHING]

    @property
    def reasons(self) -> str:
        return " ".join(decision.reason for decision in self.decisions)


def shared(thread: float, gpu: float) -> Callable[[int], float]:
    return lambda running: thread + gpu * running


def rate(seconds: Callable[[int], float], count: int) -> float:
    return count / seconds(count)
