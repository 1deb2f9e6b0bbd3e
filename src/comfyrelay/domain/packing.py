"""Decide how many ComfyUI processes should share a GPU.

One ComfyUI leaves a large GPU partly idle, because a single thread feeds it. A trial measures whether another process
helps: turns with and without it alternate while the same workflows run. Results are remembered by workflow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean

GIB = 1024**3


class PackingChange(StrEnum):
    NOTHING = "nothing"
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingLimits:
    most: int = 8
    # gain over fewer processes that keeps the additional ones
    least_gain: float = 0.10
    # gain per additional process that justifies trying one more, while `least_gain` is not reached
    least_promise: float = 0.03
    # gain after which the next trial adds two processes
    large_gain: float = 0.25
    # turns of each kind, with and without; up to `most_turns` if the gain is within `unsure` of `least_gain`
    turns: int = 2
    most_turns: int = 4
    unsure: float = 0.03
    jobs_per_turn: int = 3
    idle_seconds: float = 120.0
    # delay before retrying after a failed start or an inconclusive trial
    again_seconds: float = 300.0
    # NVML counts any moment with a running kernel: below this load another process may use the rest
    busy_load: float = 0.95
    # share of GPU memory for unreported use
    reserve: float = 0.05
    # free machine memory required after adding a process, and below which one is removed
    machine_reserve_bytes: int = GIB
    machine_least_bytes: int = GIB // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedRun:
    """A job completed by one of the GPU's processes."""

    process: str
    workflow: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuObservation:
    """The state of a GPU at one moment; `None` means unknown."""

    now: float
    # running processes: first the pinned ones, which are never removed, then the oldest
    processes: tuple[str, ...]
    pinned: int = 0
    # processes that are restarting or unreachable
    away: frozenset[str] = frozenset()
    # requested processes that are not up yet
    starting: int = 0
    waiting: int = 0
    running: int = 0
    # workflows that run, wait or ran recently
    workflows: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    free_bytes: int | None = None
    # memory another process needs for the largest of the workflows, on the GPU and in the machine
    copy_bytes: int | None = None
    machine_free_bytes: int | None = None
    machine_copy_bytes: int | None = None
    spare_cores: float | None = None
    load: float | None = None
    # since the last observation: completed jobs, and workflows that ran out of memory next to others
    done: Sequence[CompletedRun] = ()
    out_of_memory: frozenset[str] = frozenset()
    # why a requested process did not start
    failed: str | None = None

    @property
    def total(self) -> int:
        """All processes, including starting and restarting ones."""
        return len(self.processes) + len(self.away) + self.starting


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial of `size` processes against `base`. Turns with all and with `base` alternate, all first."""

    base: int
    size: int
    # processes that were requested so far
    asked: int
    # measured gain of `size - steps` processes over `base`
    before: float = 0.0
    steps: int = 1
    # processes that have completed a job; nothing is measured until the others have loaded their models
    warm: frozenset[str] = frozenset()
    turn: int = 0
    began_at: float = 0.0
    # last completion of each process in this turn
    last: Mapping[str, float] = field(default_factory=dict)
    # workflow and seconds between two completions of a process in this turn
    spans: tuple[tuple[str, float], ...] = ()
    # spans of earlier turns, by whether the turn had all processes
    measured: Mapping[bool, tuple[tuple[str, float], ...]] = field(default_factory=lambda: {True: (), False: ()})

    @property
    def has_all(self) -> bool:
        return self.turn % 2 == 0

    @property
    def active(self) -> int:
        return self.size if self.has_all else self.base

    def restart_turn(self, now: float) -> "Trial":
        return replace(self, began_at=now, last={}, spans=())


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryShortage:
    """After a memory shortage: at most `count` processes until `until`, while these workflows run."""

    count: int
    workflows: frozenset[str]
    until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What is known about a GPU; counts are by workflow."""

    # more processes than this did not pay off
    most: Mapping[str, int] = field(default_factory=dict)
    # this many processes paid off
    proven: Mapping[str, int] = field(default_factory=dict)
    # with more processes than this, it ran out of memory
    holds: Mapping[str, int] = field(default_factory=dict)
    # workflows of an unsuccessful trial that were not measured themselves, with the time of their next trial
    later: Mapping[str, float] = field(default_factory=dict)
    trial: Trial | None = None
    # how many processes the next trial adds
    step: int = 1
    idle_since: float | None = None
    # remove processes down to this number after an unsuccessful trial
    back_to: int | None = None
    short: MemoryShortage | None = None
    # when a requested process last failed to start or exited
    failed_at: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingDecision:
    """The first `active` processes get jobs now. `REMOVE` removes the last process."""

    change: PackingChange
    active: int
    reason: str


def decide(
    packing: Packing, seen: GpuObservation, limits: PackingLimits | None = None
) -> tuple[Packing, PackingDecision]:
    """Return the updated knowledge about a GPU, and what to change."""
    limits = limits or PackingLimits()
    count = len(seen.processes)
    packing = _observe(packing, seen)
    if count == 0 or seen.failed is not None:
        failed = f"Another ComfyUI did not start: {seen.failed}"
        return packing, _stay(count, "No ComfyUI is running on this GPU." if seen.failed is None else failed)
    if count > 1 and not seen.starting and (taken := _maybe_remove(packing, seen, limits)) is not None:
        return taken
    trial = packing.trial
    if trial is None:
        return _maybe_add(packing, seen, limits)
    if trial.asked < trial.size:
        if _reason_against(packing, seen, limits) is None:
            packing = replace(packing, trial=replace(trial, asked=trial.asked + 1))
            return packing, PackingDecision(
                change=PackingChange.ADD, active=count, reason=f"Trying {trial.size} processes: starting one more."
            )
        trial = replace(trial, size=trial.asked, steps=trial.steps - trial.size + trial.asked)
    if count < trial.size:
        trial = replace(trial.restart_turn(seen.now), warm=trial.warm - seen.away)
        why = "one is restarting" if seen.away else "another one is starting"
        return replace(packing, trial=trial), _stay(count, _sentence(count, why))
    return _continue_trial(packing, trial, seen, limits)


def copies_that_fit(memory_bytes: int, copy_bytes: int, limits: PackingLimits | None = None) -> int:
    """How many copies fit in the GPU's memory; at least one, because the job has to run somewhere."""
    usable = memory_bytes * (1 - (limits or PackingLimits()).reserve)
    return max(int(usable // max(copy_bytes, 1)), 1)


def gain_of(
    more: Sequence[tuple[str, float]], fewer: Sequence[tuple[str, float]], *, size: int, base: int
) -> float | None:
    """Gain in throughput of `size` processes over `base`: 0.5 means 50 % more.

    It compares the mean time between two jobs of a process, for workflows that ran in both kinds of turns.
    """
    common = {workflow for workflow, _ in more} & {workflow for workflow, _ in fewer}
    if not common:
        return None

    def seconds(spans: Sequence[tuple[str, float]]) -> float:
        return sum(fmean(span for name, span in spans if name == workflow) for workflow in common)

    return size * seconds(fewer) / (base * max(seconds(more), 1e-9)) - 1


def _observe(packing: Packing, seen: GpuObservation) -> Packing:
    """Update what is known from the observation alone."""
    count = len(seen.processes)
    is_idle = not seen.waiting and not seen.running
    since = (packing.idle_since if packing.idle_since is not None else seen.now) if is_idle else None
    trial = packing.trial
    is_gone = trial is not None and seen.total < trial.asked
    if is_gone or seen.failed is not None or (trial is not None and seen.total > trial.asked):
        trial = None
    return replace(
        packing,
        idle_since=since,
        trial=trial,
        failed_at=seen.now if is_gone or seen.failed is not None else packing.failed_at,
        holds={**packing.holds, **dict.fromkeys(seen.out_of_memory, max(count - 1, 1))},
        later={each: until for each, until in packing.later.items() if until > seen.now},
        back_to=None if packing.back_to is None or count <= max(packing.back_to, seen.pinned) else packing.back_to,
    )


def _maybe_remove(
    packing: Packing, seen: GpuObservation, limits: PackingLimits
) -> tuple[Packing, PackingDecision] | None:
    """Remove a process that is not worth keeping or does not fit."""
    count = len(seen.processes)
    idle = packing.idle_since
    if (why := _shortage(packing, seen, limits)) is not None:
        until = seen.now + limits.again_seconds
        packing = replace(packing, short=MemoryShortage(count=count - 1, workflows=seen.workflows, until=until))
    elif count <= seen.pinned:
        return None
    elif packing.back_to is not None:
        why = "Removed another process that did not pay off."
    elif idle is not None and seen.now - idle >= limits.idle_seconds:
        why = f"No jobs for {seen.now - idle:.0f} s: one ComfyUI is enough."
    elif count > max((packing.most.get(workflow, limits.most) for workflow in seen.workflows), default=count):
        why = "Removed one process: it did not pay off for the current workflows."
    else:
        return None
    return replace(packing, trial=None), PackingDecision(change=PackingChange.REMOVE, active=count - 1, reason=why)


def _shortage(packing: Packing, seen: GpuObservation, limits: PackingLimits) -> str | None:
    count = len(seen.processes)
    if any(packing.holds.get(workflow, count) < count for workflow in seen.workflows | seen.out_of_memory):
        return f"A job ran out of memory next to others: {_processes(count - 1)} instead of {count}."
    if seen.machine_free_bytes is not None and seen.machine_free_bytes < limits.machine_least_bytes:
        return f"The machine is low on memory: {_gib(seen.machine_free_bytes)} free."
    if seen.memory_bytes is None or seen.copy_bytes is None:
        return None
    fitting = copies_that_fit(seen.memory_bytes, seen.copy_bytes, limits)
    if count <= fitting:
        return None
    need = f"each process takes {_gib(seen.copy_bytes)} of the GPU's {_gib(seen.memory_bytes)}"
    return f"GPU memory is low: {need}, so {fitting} fit{'s' if fitting == 1 else ''}."


def _maybe_add(packing: Packing, seen: GpuObservation, limits: PackingLimits) -> tuple[Packing, PackingDecision]:
    count, total = len(seen.processes), seen.total
    known = max((packing.proven.get(each, 1) for each in _triable(packing, seen)), default=total)
    base = max(known, seen.pinned)
    if total == count > base and seen.waiting and _may_pay_off(packing, seen, limits, count):
        # this many processes were never measured for the current workflows
        packing = replace(packing, trial=Trial(base=base, size=count, asked=count, steps=count - base))
        return packing, _stay(count, _sentence(base, f"trying {count}"))
    why_not = _reason_against(packing, seen, limits)
    if why_not is not None:
        return packing, _stay(count, why_not)
    free, copy = _gib(seen.free_bytes or 0), _gib(seen.copy_bytes or 0)
    what = f"{_jobs(seen.waiting)}, and another process needs {copy} of {free} free"
    if known > total:
        reason = f"{what}: {_processes(known)} paid off before."
        return packing, PackingDecision(change=PackingChange.ADD, active=count, reason=reason)
    if seen.starting:
        return packing, _stay(count, _sentence(count, "another one is starting"))
    size = count + _step(packing, seen, limits)
    trial = Trial(base=count, size=size, asked=count + 1, steps=size - count, warm=frozenset(seen.processes))
    reason = f"{what}: trying {_processes(size)}."
    return replace(packing, trial=trial), PackingDecision(change=PackingChange.ADD, active=count, reason=reason)


def _step(packing: Packing, seen: GpuObservation, limits: PackingLimits) -> int:
    """Add two processes after a large gain, if memory and cores allow it."""
    if packing.step == 1 or seen.memory_bytes is None or seen.copy_bytes is None or seen.free_bytes is None:
        return 1
    size = len(seen.processes) + packing.step
    has_memory = size <= copies_that_fit(seen.memory_bytes, seen.copy_bytes, limits) and (
        packing.step * seen.copy_bytes <= seen.free_bytes
    )
    has_memory = has_memory and not _is_machine_full(seen, limits, more=packing.step)
    has_cores = seen.spare_cores is None or seen.spare_cores >= packing.step
    is_allowed = size <= limits.most and _may_pay_off(packing, seen, limits, size)
    return packing.step if has_memory and has_cores and is_allowed else 1


def _triable(packing: Packing, seen: GpuObservation) -> list[str]:
    return [workflow for workflow in seen.workflows if workflow not in packing.later]


def _may_pay_off(packing: Packing, seen: GpuObservation, limits: PackingLimits, count: int) -> bool:
    """Whether this many processes may still pay off."""
    return any(packing.most.get(each, limits.most) >= count for each in _triable(packing, seen))


def _reason_against(packing: Packing, seen: GpuObservation, limits: PackingLimits) -> str | None:
    total = seen.total
    why = None
    short = packing.short
    failed_at = packing.failed_at
    if seen.away:
        why = "one is restarting"
    elif total >= limits.most:
        why = "this is the limit for one GPU"
    elif not seen.waiting or not seen.workflows:
        why = "no jobs are waiting"
    elif failed_at is not None and seen.now - failed_at < limits.again_seconds:
        why = f"another one did not start and is retried after {limits.again_seconds:.0f} s"
    elif any(packing.holds.get(workflow, limits.most) <= total for workflow in seen.workflows):
        why = "a job ran out of memory next to others"
    elif short is not None and total >= short.count and seen.now < short.until and seen.workflows >= short.workflows:
        why = "memory was low for the current workflows"
    elif all(packing.most.get(workflow, limits.most) <= total for workflow in seen.workflows):
        why = "more did not pay off for the current workflows"
    elif not _may_pay_off(packing, seen, limits, total + 1):
        why = "more did not pay off recently"
    elif (problem := _memory_problem(seen, limits)) is not None:
        why = problem
    elif _is_machine_full(seen, limits):
        free, copy = _gib(seen.machine_free_bytes or 0), _gib(seen.machine_copy_bytes or 0)
        reserve = _gib(limits.machine_reserve_bytes)
        why = f"another one takes {copy} of machine memory, with {free} free and {reserve} in reserve"
    elif seen.spare_cores is not None and seen.spare_cores < 1:
        why = "no CPU core is free"
    elif seen.load is not None and seen.load >= limits.busy_load:
        why = f"the GPU is busy {seen.load:.0%} of the time"
    return None if why is None else _sentence(len(seen.processes), why)


def _memory_problem(seen: GpuObservation, limits: PackingLimits) -> str | None:
    """Why another process does not fit in the GPU's memory, if it does not."""
    if seen.memory_bytes is None or seen.free_bytes is None:
        return "the GPU's memory is unknown"
    if seen.copy_bytes is None:
        return "the memory use of its jobs is not known yet"
    if seen.total + 1 > copies_that_fit(seen.memory_bytes, seen.copy_bytes, limits):
        return f"the GPU has {_gib(seen.memory_bytes)}, and each process takes {_gib(seen.copy_bytes)}"
    # starting processes have not allocated their memory yet
    if seen.free_bytes < (seen.starting + 1) * seen.copy_bytes:
        return f"another one takes {_gib(seen.copy_bytes)}, but {_gib(seen.free_bytes)} are free"
    return None


def _is_machine_full(seen: GpuObservation, limits: PackingLimits, *, more: int = 1) -> bool:
    """Whether machine memory, through which models are loaded, is too small for `more` processes; false if unknown."""
    if seen.machine_free_bytes is None or seen.machine_copy_bytes is None:
        return False
    # starting processes have not allocated their memory yet
    needed = (seen.starting + more) * seen.machine_copy_bytes + limits.machine_reserve_bytes
    return seen.machine_free_bytes < needed


def _continue_trial(
    packing: Packing, trial: Trial, seen: GpuObservation, limits: PackingLimits
) -> tuple[Packing, PackingDecision]:
    """Advance a trial: count completed jobs, start the next turn, or conclude it."""
    up = frozenset(seen.processes)
    if not up <= trial.warm:
        trial = replace(trial.restart_turn(seen.now), warm=trial.warm | {each.process for each in seen.done})
        is_warm = up <= trial.warm
        why = _trial_text(trial) if is_warm else f"trying {trial.size}; the new one is loading its models"
        return replace(packing, trial=trial), _stay(trial.active if is_warm else trial.size, _sentence(trial.base, why))
    is_starved = not seen.waiting and seen.running < trial.active
    if is_starved or seen.running > trial.active:
        # measure only while exactly the active processes are busy
        trial = trial.restart_turn(seen.now)
        return replace(packing, trial=trial), _stay(trial.active, _sentence(trial.base, _trial_text(trial)))
    trial = _count_runs(trial, seen)
    if not _is_turn_over(trial, seen, limits):
        return replace(packing, trial=trial), _stay(trial.active, _sentence(trial.base, _trial_text(trial)))
    measured = {**trial.measured, trial.has_all: (*trial.measured[trial.has_all], *trial.spans)}
    trial = replace(trial.restart_turn(seen.now), turn=trial.turn + 1, measured=measured)
    if _needs_more_turns(trial, limits):
        return replace(packing, trial=trial), _stay(trial.active, _sentence(trial.base, _trial_text(trial)))
    return _conclude_trial(packing, trial, seen, limits)


def _needs_more_turns(trial: Trial, limits: PackingLimits) -> bool:
    if trial.turn % 2 or trial.turn < 2 * limits.turns:
        return True
    gain = _gain(trial)
    is_unsure = gain is not None and abs(gain - limits.least_gain) < limits.unsure
    return is_unsure and trial.turn < 2 * limits.most_turns


def _count_runs(trial: Trial, seen: GpuObservation) -> Trial:
    active = seen.processes[: trial.active]
    last, spans = dict(trial.last), list(trial.spans)
    for each in sorted(seen.done, key=lambda done: done.at):
        if each.process not in active or each.at < trial.began_at:
            continue
        if each.process in last:
            spans.append((each.workflow, each.at - last[each.process]))
        last[each.process] = each.at
    return replace(trial, last=last, spans=tuple(spans))


def _is_turn_over(trial: Trial, seen: GpuObservation, limits: PackingLimits) -> bool:
    has_all_run = all(process in trial.last for process in seen.processes[: trial.active])
    return has_all_run and len(trial.spans) >= max(limits.jobs_per_turn, trial.active)


def _conclude_trial(
    packing: Packing, trial: Trial, seen: GpuObservation, limits: PackingLimits
) -> tuple[Packing, PackingDecision]:
    gain = _gain(trial)
    packing = replace(packing, trial=None, step=1)
    if gain is None:
        packing = replace(_limit_to(packing, trial, seen, limits, count=trial.base), back_to=trial.base)
        reason = f"No workflow ran with both {trial.size} and {_processes(trial.base)}, so nothing could be measured."
        return packing, PackingDecision(change=PackingChange.REMOVE, active=trial.size - 1, reason=reason)
    result = (
        f"{_processes(trial.size)} complete {abs(gain):.0%} {'more' if gain >= 0 else 'fewer'} jobs than {trial.base}"
    )
    if gain >= limits.least_gain:
        proven = {**packing.proven, **{each: max(packing.proven.get(each, 1), trial.size) for each in _ran(trial)}}
        most = {each: max(number, proven.get(each, 1)) for each, number in packing.most.items()}
        packing = replace(packing, proven=proven, most=most, step=2 if gain >= limits.large_gain else 1)
        return packing, _stay(trial.size, f"{result}: kept.")
    # one more may reach the gain that this one does not
    is_promising = gain - trial.before >= trial.steps * limits.least_promise
    if is_promising and _reason_against(packing, seen, limits) is None:
        further = Trial(
            base=trial.base, size=trial.size + 1, asked=trial.size + 1, before=gain, warm=frozenset(seen.processes)
        )
        packing = replace(packing, trial=further)
        return packing, PackingDecision(
            change=PackingChange.ADD, active=trial.size, reason=f"{result}: trying {trial.size + 1}."
        )
    too_many = f"{result}, below the required {limits.least_gain:.0%}"
    if trial.steps == 2 and trial.size == trial.base + 2:
        # two may have been one too many
        one = Trial(base=trial.base, size=trial.base + 1, asked=trial.base + 1)
        packing = replace(_limit_to(packing, trial, seen, limits, count=one.size), trial=one)
        reason = f"{too_many}: trying {one.size}."
        return packing, PackingDecision(change=PackingChange.REMOVE, active=one.size, reason=reason)
    packing = replace(_limit_to(packing, trial, seen, limits, count=trial.base), back_to=trial.base)
    reason = f"{too_many}: back to {trial.base}."
    return packing, PackingDecision(change=PackingChange.REMOVE, active=trial.size - 1, reason=reason)


def _gain(trial: Trial) -> float | None:
    return gain_of(trial.measured[True], trial.measured[False], size=trial.size, base=trial.base)


def _ran(trial: Trial) -> set[str]:
    """The measured workflows: those in both kinds of turns."""
    with_all, without = ({workflow for workflow, _ in spans} for spans in trial.measured.values())
    return with_all & without


def _limit_to(packing: Packing, trial: Trial, seen: GpuObservation, limits: PackingLimits, *, count: int) -> Packing:
    """Never try more than `count` again for the measured workflows.

    For other workflows, and for workflows that gained from more before, the next trial is only delayed.
    """
    judged = {each for each in _ran(trial) if packing.proven.get(each, 1) <= count}
    others = (seen.workflows | _ran(trial)) - judged
    return replace(
        packing,
        most={**packing.most, **dict.fromkeys(judged, count)},
        later={**packing.later, **dict.fromkeys(others, seen.now + limits.again_seconds)},
    )


def _stay(active: int, reason: str) -> PackingDecision:
    return PackingDecision(change=PackingChange.NOTHING, active=active, reason=reason)


def _sentence(count: int, why: str) -> str:
    return f"{_processes(count)}: {why}."


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _trial_text(trial: Trial) -> str:
    return f"trying {trial.size}, turn {trial.turn + 1}"


def _jobs(waiting: int) -> str:
    return f"{waiting} job{'s' if waiting != 1 else ''} wait{'s' if waiting == 1 else ''}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
