"""How many ComfyUI processes one GPU is worth. Pure: it looks at what a GPU does, and says what to change and why.

One ComfyUI leaves a large GPU idle, because a single thread feeds it. Whether another one helps is tried out: with it
and without it, in turns, while the same workflows run. What was found out once is not asked again.
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
    """`least_gain` is what more processes must bring over fewer, to stay; `least_promise` is what each further one must
    add for the next to be tried, while they do not bring as much. After `large_gain` two more are tried at once."""

    most: int = 8
    least_gain: float = 0.10
    least_promise: float = 0.03
    large_gain: float = 0.25
    # of each kind, with and without; up to the second where the gain is so near to the least that it may be chance
    turns: int = 2
    most_turns: int = 4
    unsure: float = 0.03
    jobs_per_turn: int = 3
    idle_seconds: float = 120.0
    # what did not start, and what could not be measured, is tried again after this
    again_seconds: float = 300.0
    # NVML counts any moment in which something runs: below this another one may still fill what is left
    busy_load: float = 0.95
    # of the gpu's memory, for what nobody tells of
    reserve: float = 0.05
    # of the machine's memory: what must be left beside another one, and what one is taken back below
    machine_reserve_bytes: int = GIB
    machine_least_bytes: int = GIB // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletedRun:
    """A job that was completed on a process of the GPU."""

    process: str
    workflow: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A GPU at one look. What is `None` is not known.

    `processes` are those that are up: first the `pinned`, which stay, then the oldest. `away` were up, and start again
    or cannot be reached now; `starting` is how many were asked for and are not up yet. `workflows` are those that run,
    wait or ran lately; `copy_bytes` is what another process would take for the largest of them. `machine_free_bytes` is
    what the machine has free beside its GPUs, and `machine_copy_bytes` what another would take of that. `done` and
    `out_of_memory` (workflows that others ran beside) have happened since the last look; `failed` is why a process that
    was asked for did not start.
    """

    now: float
    processes: tuple[str, ...]
    pinned: int = 0
    away: frozenset[str] = frozenset()
    starting: int = 0
    waiting: int = 0
    running: int = 0
    workflows: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    free_bytes: int | None = None
    copy_bytes: int | None = None
    machine_free_bytes: int | None = None
    machine_copy_bytes: int | None = None
    spare_cores: float | None = None
    load: float | None = None
    done: Sequence[CompletedRun] = ()
    out_of_memory: frozenset[str] = frozenset()
    failed: str | None = None

    @property
    def there(self) -> int:
        """How many there are, or will be in a moment."""
        return len(self.processes) + len(self.away) + self.starting


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """More processes than `base`, under trial. Turns with all and with `base` alternate, all first."""

    base: int
    size: int
    # how many there are once all that were asked for have started
    asked: int
    # what `size - steps` have brought over `base`
    before: float = 0.0
    steps: int = 1
    # those that have completed a job: the others have to load their models first, and nothing counts before that
    warm: frozenset[str] = frozenset()
    turn: int = 0
    began_at: float = 0.0
    # of this turn, by process: when it last completed a job
    last: Mapping[str, float] = field(default_factory=dict)
    # of this turn: the workflow, and the time from one completed job of a process to the next
    spans: tuple[tuple[str, float], ...] = ()
    # by kind of turn (with all?), those of the turns before
    measured: Mapping[bool, tuple[tuple[str, float], ...]] = field(default_factory=lambda: {True: (), False: ()})

    @property
    def has_all(self) -> bool:
        return self.turn % 2 == 0

    @property
    def active(self) -> int:
        return self.size if self.has_all else self.base

    def turn_anew(self, now: float) -> "Trial":
        return replace(self, began_at=now, last={}, spans=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Short:
    """Memory was short: until then no more than this, while these workflows are there."""

    count: int
    workflows: frozenset[str]
    until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What is known of a GPU. By workflow, as measured: `most` is the number above which nothing was gained, `proven`
    the number that was worth it, `holds` how many are left where it ran out of memory beside one more."""

    most: Mapping[str, int] = field(default_factory=dict)
    proven: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    # by workflow that was there when more were not worth it, and says nothing of it itself: not tried before
    later: Mapping[str, float] = field(default_factory=dict)
    trial: Trial | None = None
    # how many more the next trial has
    step: int = 1
    idle_since: float | None = None
    # down to this many have to go because they were not worth it
    back_to: int | None = None
    short: Short | None = None
    # when one that was asked for did not start, or was gone again
    failed_at: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingDecision:
    """The first `active` of the processes get jobs now. The last is the one that is removed."""

    change: PackingChange
    active: int
    reason: str


def decide(packing: Packing, seen: Seen, limits: PackingLimits | None = None) -> tuple[Packing, PackingDecision]:
    """What to change on a GPU, and what is known of it after this look."""
    limits = limits or PackingLimits()
    count = len(seen.processes)
    packing = _noted(packing, seen)
    if count == 0 or seen.failed is not None:
        failed = f"Another one did not start: {seen.failed}"
        return packing, _stay(count, "No ComfyUI is up on this GPU." if seen.failed is None else failed)
    if count > 1 and not seen.starting and (taken := _perhaps_remove(packing, seen, limits)) is not None:
        return taken
    trial = packing.trial
    if trial is None:
        return _perhaps_add(packing, seen, limits)
    if trial.asked < trial.size:
        if _why_not_more(packing, seen, limits) is None:
            packing = replace(packing, trial=replace(trial, asked=trial.asked + 1))
            return packing, PackingDecision(
                change=PackingChange.ADD, active=count, reason=f"Trying {trial.size} at once: one more."
            )
        trial = replace(trial, size=trial.asked, steps=trial.steps - trial.size + trial.asked)
    if count < trial.size:
        trial = replace(trial.turn_anew(seen.now), warm=trial.warm - seen.away)
        why = "one of them starts again" if seen.away else "another one starts"
        return replace(packing, trial=trial), _stay(count, _number(count, why))
    return _go_on(packing, trial, seen, limits)


def room_for(memory_bytes: int, copy_bytes: int, limits: PackingLimits | None = None) -> int:
    """How many copies the gpu's memory is known to hold; one always, since it has to be tried somewhere."""
    usable = memory_bytes * (1 - (limits or PackingLimits()).reserve)
    return max(int(usable // max(copy_bytes, 1)), 1)


def gain_of(
    more: Sequence[tuple[str, float]], fewer: Sequence[tuple[str, float]], *, size: int, base: int
) -> float | None:
    """How much more the same work is done with `size` processes than with `base`: 0.5 is half as much again.

    Compared are workflows that ran in both kinds of turns, by the mean time from one job of a process to its next.
    """
    common = {workflow for workflow, _ in more} & {workflow for workflow, _ in fewer}
    if not common:
        return None

    def seconds(spans: Sequence[tuple[str, float]]) -> float:
        return sum(fmean(span for name, span in spans if name == workflow) for workflow in common)

    return size * seconds(fewer) / (base * max(seconds(more), 1e-9)) - 1


def _noted(packing: Packing, seen: Seen) -> Packing:
    """What follows from a look alone, whatever is decided then."""
    count = len(seen.processes)
    is_idle = not seen.waiting and not seen.running
    since = (packing.idle_since if packing.idle_since is not None else seen.now) if is_idle else None
    trial = packing.trial
    is_gone = trial is not None and seen.there < trial.asked
    if is_gone or seen.failed is not None or (trial is not None and seen.there > trial.asked):
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


def _perhaps_remove(packing: Packing, seen: Seen, limits: PackingLimits) -> tuple[Packing, PackingDecision] | None:
    """Take one back that must go, whatever it is worth."""
    count = len(seen.processes)
    idle = packing.idle_since
    if (why := _shortage(packing, seen, limits)) is not None:
        until = seen.now + limits.again_seconds
        packing = replace(packing, short=Short(count=count - 1, workflows=seen.workflows, until=until))
    elif count <= seen.pinned:
        return None
    elif packing.back_to is not None:
        why = "Took back another one that was not worth it."
    elif idle is not None and seen.now - idle >= limits.idle_seconds:
        why = f"There was no work for {seen.now - idle:.0f} s: one ComfyUI is enough."
    elif count > max((packing.most.get(each, limits.most) for each in seen.workflows), default=count):
        why = "Took back one more than is worth it for what runs now."
    else:
        return None
    return replace(packing, trial=None), PackingDecision(change=PackingChange.REMOVE, active=count - 1, reason=why)


def _shortage(packing: Packing, seen: Seen, limits: PackingLimits) -> str | None:
    count = len(seen.processes)
    if any(packing.holds.get(each, count) < count for each in seen.workflows | seen.out_of_memory):
        return f"A job ran out of memory beside others: {count - 1} at once instead of {count}."
    if seen.machine_free_bytes is not None and seen.machine_free_bytes < limits.machine_least_bytes:
        return f"The machine's memory is short: {_gib(seen.machine_free_bytes)} are free."
    if seen.memory_bytes is None or seen.copy_bytes is None:
        return None
    room = room_for(seen.memory_bytes, seen.copy_bytes, limits)
    if count <= room:
        return None
    need = f"one takes {_gib(seen.copy_bytes)} of the gpu's {_gib(seen.memory_bytes)}"
    return f"Memory is short: {need}, which holds {room}."


def _perhaps_add(packing: Packing, seen: Seen, limits: PackingLimits) -> tuple[Packing, PackingDecision]:
    count, there = len(seen.processes), seen.there
    known = max((packing.proven.get(each, 1) for each in _asking(packing, seen)), default=there)
    base = max(known, seen.pinned)
    if there == count > base and seen.waiting and _would_try(packing, seen, limits, count):
        # nobody knows whether so many are worth it for what runs now
        packing = replace(packing, trial=Trial(base=base, size=count, asked=count, steps=count - base))
        return packing, _stay(count, _number(base, f"trying {count} at once"))
    why_not = _why_not_more(packing, seen, limits)
    if why_not is not None:
        return packing, _stay(count, why_not)
    what = f"{_jobs(seen.waiting)}, and {_gib(seen.free_bytes or 0)} are free for the {_gib(seen.copy_bytes or 0)} of"
    if known > there:
        reason = f"{what} another one; {known} at once were worth it before."
        return packing, PackingDecision(change=PackingChange.ADD, active=count, reason=reason)
    if seen.starting:
        return packing, _stay(count, _number(count, "another one starts"))
    size = count + _step(packing, seen, limits)
    trial = Trial(base=count, size=size, asked=count + 1, steps=size - count, warm=frozenset(seen.processes))
    reason = f"{what} another one: trying {size} at once."
    return replace(packing, trial=trial), PackingDecision(change=PackingChange.ADD, active=count, reason=reason)


def _step(packing: Packing, seen: Seen, limits: PackingLimits) -> int:
    """Two at once after a large gain, where there is plenty of all that they take."""
    if packing.step == 1 or seen.memory_bytes is None or seen.copy_bytes is None or seen.free_bytes is None:
        return 1
    size = len(seen.processes) + packing.step
    has_memory = size <= room_for(seen.memory_bytes, seen.copy_bytes, limits) and (
        packing.step * seen.copy_bytes <= seen.free_bytes
    )
    has_memory = has_memory and not _is_machine_full(seen, limits, more=packing.step)
    has_cores = seen.spare_cores is None or seen.spare_cores >= packing.step
    is_allowed = size <= limits.most and _would_try(packing, seen, limits, size)
    return packing.step if has_memory and has_cores and is_allowed else 1


def _asking(packing: Packing, seen: Seen) -> list[str]:
    return [each for each in seen.workflows if each not in packing.later]


def _would_try(packing: Packing, seen: Seen, limits: PackingLimits, count: int) -> bool:
    """Whether so many may still turn out to be worth it."""
    return any(packing.most.get(each, limits.most) >= count for each in _asking(packing, seen))


def _why_not_more(packing: Packing, seen: Seen, limits: PackingLimits) -> str | None:
    there = seen.there
    why = None
    short = packing.short
    failed_at = packing.failed_at
    if seen.away:
        why = "one of them starts again"
    elif there >= limits.most:
        why = "no more are allowed on one gpu"
    elif not seen.waiting or not seen.workflows:
        why = "nothing waits"
    elif failed_at is not None and seen.now - failed_at < limits.again_seconds:
        why = f"another one did not start, and is tried again after {limits.again_seconds:.0f} s"
    elif any(packing.holds.get(each, limits.most) <= there for each in seen.workflows):
        why = "a job ran out of memory beside others"
    elif short is not None and there >= short.count and seen.now < short.until and seen.workflows >= short.workflows:
        why = "memory was short for what runs now"
    elif all(packing.most.get(each, limits.most) <= there for each in seen.workflows):
        why = "more were tried and not worth it for what runs now"
    elif not _would_try(packing, seen, limits, there + 1):
        why = "more were not worth it a moment ago"
    elif (no_room := _no_room(seen, limits)) is not None:
        why = no_room
    elif _is_machine_full(seen, limits):
        free, copy = _gib(seen.machine_free_bytes or 0), _gib(seen.machine_copy_bytes or 0)
        why = f"another one takes {copy} of the machine's own memory, and {free} are free"
    elif seen.spare_cores is not None and seen.spare_cores < 1:
        why = "no processor core is to spare"
    elif seen.load is not None and seen.load >= limits.busy_load:
        why = f"the GPU is busy {seen.load:.0%} of the time"
    return None if why is None else _number(len(seen.processes), why)


def _no_room(seen: Seen, limits: PackingLimits) -> str | None:
    """Why there is no memory for another one, if there is none."""
    if seen.memory_bytes is None or seen.free_bytes is None:
        return "the gpu's memory is not known"
    if seen.copy_bytes is None:
        return "what its jobs need of memory is not known yet"
    if seen.there + 1 > room_for(seen.memory_bytes, seen.copy_bytes, limits):
        return f"the GPU has {_gib(seen.memory_bytes)}, and each takes {_gib(seen.copy_bytes)}"
    # those that start have not taken theirs yet
    if seen.free_bytes < (seen.starting + 1) * seen.copy_bytes:
        return f"another one takes {_gib(seen.copy_bytes)}, and {_gib(seen.free_bytes)} are free"
    return None


def _is_machine_full(seen: Seen, limits: PackingLimits, *, more: int = 1) -> bool:
    """Whether the machine's own memory, into which models are read before they are on the GPU, does not hold so many
    more; one that is not known holds them."""
    if seen.machine_free_bytes is None or seen.machine_copy_bytes is None:
        return False
    # those that start have not taken theirs yet
    needed = (seen.starting + more) * seen.machine_copy_bytes + limits.machine_reserve_bytes
    return seen.machine_free_bytes < needed


def _go_on(packing: Packing, trial: Trial, seen: Seen, limits: PackingLimits) -> tuple[Packing, PackingDecision]:
    """A look during a trial: count what was done, take the next turn, or come to an end."""
    up = frozenset(seen.processes)
    if not up <= trial.warm:
        trial = replace(trial.turn_anew(seen.now), warm=trial.warm | {each.process for each in seen.done})
        is_warm = up <= trial.warm
        why = _about(trial) if is_warm else f"trying {trial.size} at once; the new one loads its models"
        return replace(packing, trial=trial), _stay(trial.active if is_warm else trial.size, _number(trial.base, why))
    is_starved = not seen.waiting and seen.running < trial.active
    if is_starved or seen.running > trial.active:
        # a process without work says nothing about how many are worth it, nor does one that only finishes its job
        trial = trial.turn_anew(seen.now)
        return replace(packing, trial=trial), _stay(trial.active, _number(trial.base, _about(trial)))
    trial = _counted(trial, seen)
    if not _is_turn_over(trial, seen, limits):
        return replace(packing, trial=trial), _stay(trial.active, _number(trial.base, _about(trial)))
    measured = {**trial.measured, trial.has_all: (*trial.measured[trial.has_all], *trial.spans)}
    trial = replace(trial.turn_anew(seen.now), turn=trial.turn + 1, measured=measured)
    if _goes_on(trial, limits):
        return replace(packing, trial=trial), _stay(trial.active, _number(trial.base, _about(trial)))
    return _concluded(packing, trial, seen, limits)


def _goes_on(trial: Trial, limits: PackingLimits) -> bool:
    if trial.turn % 2 or trial.turn < 2 * limits.turns:
        return True
    gain = _gain(trial)
    is_unsure = gain is not None and abs(gain - limits.least_gain) < limits.unsure
    return is_unsure and trial.turn < 2 * limits.most_turns


def _counted(trial: Trial, seen: Seen) -> Trial:
    active = seen.processes[: trial.active]
    last, spans = dict(trial.last), list(trial.spans)
    for each in sorted(seen.done, key=lambda done: done.at):
        if each.process not in active or each.at < trial.began_at:
            continue
        if each.process in last:
            spans.append((each.workflow, each.at - last[each.process]))
        last[each.process] = each.at
    return replace(trial, last=last, spans=tuple(spans))


def _is_turn_over(trial: Trial, seen: Seen, limits: PackingLimits) -> bool:
    is_each_there = all(each in trial.last for each in seen.processes[: trial.active])
    return is_each_there and len(trial.spans) >= max(limits.jobs_per_turn, trial.active)


def _concluded(packing: Packing, trial: Trial, seen: Seen, limits: PackingLimits) -> tuple[Packing, PackingDecision]:
    gain = _gain(trial)
    packing = replace(packing, trial=None, step=1)
    if gain is None:
        packing = replace(_not_above(packing, trial, seen, limits, count=trial.base), back_to=trial.base)
        reason = f"No workflow ran with {trial.size} and with {trial.base} at once: took back what cannot be measured."
        return packing, PackingDecision(change=PackingChange.REMOVE, active=trial.size - 1, reason=reason)
    told = f"{trial.size} at once do {abs(gain):.0%} {'more' if gain >= 0 else 'less'} than {trial.base}"
    if gain >= limits.least_gain:
        proven = {**packing.proven, **{each: max(packing.proven.get(each, 1), trial.size) for each in _ran(trial)}}
        most = {each: max(number, proven.get(each, 1)) for each, number in packing.most.items()}
        packing = replace(packing, proven=proven, most=most, step=2 if gain >= limits.large_gain else 1)
        return packing, _stay(trial.size, f"{told}: kept.")
    # each of several may bring less than all of them together
    is_promising = gain - trial.before >= trial.steps * limits.least_promise
    if is_promising and _why_not_more(packing, seen, limits) is None:
        further = Trial(
            base=trial.base, size=trial.size + 1, asked=trial.size + 1, before=gain, warm=frozenset(seen.processes)
        )
        packing = replace(packing, trial=further)
        return packing, PackingDecision(
            change=PackingChange.ADD, active=trial.size, reason=f"{told}: trying {trial.size + 1}."
        )
    too_many = f"{told}; {limits.least_gain:.0%} more would be worth it"
    if trial.steps == 2 and trial.size == trial.base + 2:
        # two were one too many, perhaps
        one = Trial(base=trial.base, size=trial.base + 1, asked=trial.base + 1)
        packing = replace(_not_above(packing, trial, seen, limits, count=one.size), trial=one)
        reason = f"{too_many}: trying {one.size}."
        return packing, PackingDecision(change=PackingChange.REMOVE, active=one.size, reason=reason)
    packing = replace(_not_above(packing, trial, seen, limits, count=trial.base), back_to=trial.base)
    reason = f"{too_many}: back to {trial.base}."
    return packing, PackingDecision(change=PackingChange.REMOVE, active=trial.size - 1, reason=reason)


def _gain(trial: Trial) -> float | None:
    return gain_of(trial.measured[True], trial.measured[False], size=trial.size, base=trial.base)


def _ran(trial: Trial) -> set[str]:
    """What was measured: the workflows that ran in both kinds of turns."""
    with_all, without = ({workflow for workflow, _ in spans} for spans in trial.measured.values())
    return with_all & without


def _not_above(packing: Packing, trial: Trial, seen: Seen, limits: PackingLimits, *, count: int) -> Packing:
    """More than this are not tried again for what was measured. Others that were there, and those to which more were
    worth it in other company, are no part of the verdict: they only wait."""
    judged = {each for each in _ran(trial) if packing.proven.get(each, 1) <= count}
    others = (seen.workflows | _ran(trial)) - judged
    return replace(
        packing,
        most={**packing.most, **dict.fromkeys(judged, count)},
        later={**packing.later, **dict.fromkeys(others, seen.now + limits.again_seconds)},
    )


def _stay(active: int, reason: str) -> PackingDecision:
    return PackingDecision(change=PackingChange.NOTHING, active=active, reason=reason)


def _number(count: int, why: str) -> str:
    return f"{count} at once: {why}."


def _about(trial: Trial) -> str:
    return f"trying {trial.size} at once, turn {trial.turn + 1}"


def _jobs(waiting: int) -> str:
    return f"{waiting} job{'s' if waiting != 1 else ''} wait{'s' if waiting == 1 else ''}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
