"""Decide how many ComfyUI processes should share a GPU.

One ComfyUI leaves a large GPU partly idle, because a single thread feeds it. A trial measures whether another process
helps: turns with and without it alternate while the same workflows run. Results are remembered by workflow.
"""

from dataclasses import replace

from comfyrelay.domain.packing.state import (
    GpuObservation,
    MemoryShortage,
    Packing,
    PackingChange,
    PackingDecision,
    PackingLimits,
    Trial,
)
from comfyrelay.domain.queue.memory import GIB


def decide(
    packing: Packing, gpu: GpuObservation, limits: PackingLimits | None = None
) -> tuple[Packing, PackingDecision]:
    """Return the updated knowledge about a GPU, and what to change."""
    limits = limits or PackingLimits()
    count = len(gpu.processes)
    packing = _observe(packing, gpu)
    if count == 0 or gpu.start_failure is not None:
        failure = f"Another ComfyUI did not start: {gpu.start_failure}"
        return packing, _stay(count, failure if gpu.start_failure else "No ComfyUI is running on this GPU.")
    if count > 1 and not gpu.starting and (removed := _maybe_remove(packing, gpu, limits)) is not None:
        return removed
    trial = packing.trial
    if trial is None:
        return _maybe_add(packing, gpu, limits)
    if trial.requested < trial.size:
        if _reason_against(packing, gpu, limits) is None:
            packing = replace(packing, trial=replace(trial, requested=trial.requested + 1))
            reason = f"Trying {trial.size} processes: starting one more."
            return packing, PackingDecision(change=PackingChange.ADD, active=count, reason=reason)
        trial = replace(trial, size=trial.requested, steps=trial.steps - trial.size + trial.requested)
    if count < trial.size:
        trial = replace(trial.restart_turn(gpu.now), warm=trial.warm - gpu.restarting)
        why = "one is restarting" if gpu.restarting else "another one is starting"
        return replace(packing, trial=trial), _stay(count, _sentence(count, why))
    return _continue_trial(packing, trial, gpu, limits)


def copies_that_fit(memory_bytes: int, copy_bytes: int, limits: PackingLimits | None = None) -> int:
    """Return how many copies fit in the GPU's memory; at least one, because the job has to run somewhere."""
    usable = memory_bytes * (1 - (limits or PackingLimits()).reserve)
    return max(int(usable // max(copy_bytes, 1)), 1)


def _observe(packing: Packing, gpu: GpuObservation) -> Packing:
    """Update what is known from the observation alone."""
    count = len(gpu.processes)
    is_idle = not gpu.waiting and not gpu.running
    idle_since = gpu.now if packing.idle_since is None else packing.idle_since
    trial = packing.trial
    has_failed = gpu.start_failure is not None or (trial is not None and gpu.total < trial.requested)
    if has_failed or (trial is not None and gpu.total > trial.requested):
        trial = None
    has_shrunk = packing.shrink_to is None or count <= max(packing.shrink_to, gpu.pinned)
    return replace(
        packing,
        idle_since=idle_since if is_idle else None,
        trial=trial,
        failed_at=gpu.now if has_failed else packing.failed_at,
        max_fitting={**packing.max_fitting, **dict.fromkeys(gpu.out_of_memory, max(count - 1, 1))},
        retry_at={workflow: at for workflow, at in packing.retry_at.items() if at > gpu.now},
        shrink_to=None if has_shrunk else packing.shrink_to,
    )


def _maybe_remove(
    packing: Packing, gpu: GpuObservation, limits: PackingLimits
) -> tuple[Packing, PackingDecision] | None:
    """Remove a process that is not worth keeping or does not fit."""
    count = len(gpu.processes)
    idle = packing.idle_since
    if (why := _shortage(packing, gpu, limits)) is not None:
        until = gpu.now + limits.retry_seconds
        packing = replace(packing, shortage=MemoryShortage(count=count - 1, workflows=gpu.workflows, until=until))
    elif count <= gpu.pinned:
        return None
    elif packing.shrink_to is not None:
        why = "Removed another process that did not pay off."
    elif idle is not None and gpu.now - idle >= limits.idle_seconds:
        why = f"No jobs for {gpu.now - idle:.0f} s: one ComfyUI is enough."
    elif gpu.workflows and not any(_max_useful(packing, workflow, limits) >= count for workflow in gpu.workflows):
        why = "Removed one process: it did not pay off for the current workflows."
    else:
        return None
    return replace(packing, trial=None), PackingDecision(change=PackingChange.REMOVE, active=count - 1, reason=why)


def _shortage(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> str | None:
    count = len(gpu.processes)
    if any(packing.max_fitting.get(workflow, count) < count for workflow in gpu.workflows | gpu.out_of_memory):
        return f"A job ran out of memory next to others: {_processes(count - 1)} instead of {count}."
    if gpu.machine_free_bytes is not None and gpu.machine_free_bytes < limits.machine_min_bytes:
        return f"The machine is low on memory: {_gib(gpu.machine_free_bytes)} free."
    if gpu.memory_bytes is None or gpu.copy_bytes is None:
        return None
    fitting = copies_that_fit(gpu.memory_bytes, gpu.copy_bytes, limits)
    if count <= fitting:
        return None
    need = f"each process takes {_gib(gpu.copy_bytes)} of the GPU's {_gib(gpu.memory_bytes)}"
    return f"GPU memory is low: {need}, so {fitting} fit{'s' if fitting == 1 else ''}."


def _maybe_add(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> tuple[Packing, PackingDecision]:
    count, total = len(gpu.processes), gpu.total
    known = max((packing.proven.get(workflow, 1) for workflow in _triable(packing, gpu)), default=total)
    base = max(known, gpu.pinned)
    if total == count > base and gpu.waiting and _may_pay_off(packing, gpu, limits, count):
        # This many processes were never measured for the current workflows.
        packing = replace(packing, trial=Trial(base=base, size=count, requested=count, steps=count - base))
        return packing, _stay(count, _sentence(base, f"trying {count}"))
    why_not = _reason_against(packing, gpu, limits)
    if why_not is not None:
        return packing, _stay(count, why_not)
    free, copy = _gib(gpu.free_bytes or 0), _gib(gpu.copy_bytes or 0)
    jobs = "1 job waits" if gpu.waiting == 1 else f"{gpu.waiting} jobs wait"
    why = f"{jobs}, and another process needs {copy} of {free} free"
    if known > total:
        reason = f"{why}: {_processes(known)} paid off before."
        return packing, PackingDecision(change=PackingChange.ADD, active=count, reason=reason)
    if gpu.starting:
        return packing, _stay(count, _sentence(count, "another one is starting"))
    size = count + _step(packing, gpu, limits)
    trial = Trial(base=count, size=size, requested=count + 1, steps=size - count, warm=frozenset(gpu.processes))
    reason = f"{why}: trying {_processes(size)}."
    return replace(packing, trial=trial), PackingDecision(change=PackingChange.ADD, active=count, reason=reason)


def _step(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> int:
    """Add two processes after a large gain, if memory and cores allow it."""
    step = packing.step
    if step == 1 or gpu.memory_bytes is None or gpu.copy_bytes is None or gpu.free_bytes is None:
        return 1
    size = len(gpu.processes) + step
    has_memory = (
        size <= copies_that_fit(gpu.memory_bytes, gpu.copy_bytes, limits)
        and step * gpu.copy_bytes <= gpu.free_bytes
        and not _is_machine_full(gpu, limits, more=step)
    )
    has_cores = gpu.spare_cores is None or gpu.spare_cores >= step
    is_allowed = size <= limits.max_processes and _may_pay_off(packing, gpu, limits, size)
    return step if has_memory and has_cores and is_allowed else 1


def _triable(packing: Packing, gpu: GpuObservation) -> list[str]:
    return [workflow for workflow in gpu.workflows if workflow not in packing.retry_at]


def _max_useful(packing: Packing, workflow: str, limits: PackingLimits) -> int:
    return packing.max_useful.get(workflow, limits.max_processes)


def _may_pay_off(packing: Packing, gpu: GpuObservation, limits: PackingLimits, count: int) -> bool:
    """Whether this many processes may still pay off."""
    return any(_max_useful(packing, workflow, limits) >= count for workflow in _triable(packing, gpu))


def _reason_against(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> str | None:
    """Return why no process is added, if so."""
    total = gpu.total
    why = None
    shortage, failed_at = packing.shortage, packing.failed_at
    if gpu.restarting:
        why = "one is restarting"
    elif total >= limits.max_processes:
        why = "this is the limit for one GPU"
    elif not gpu.waiting or not gpu.workflows:
        why = "no jobs are waiting"
    elif failed_at is not None and gpu.now - failed_at < limits.retry_seconds:
        why = f"another one did not start and is retried after {limits.retry_seconds:.0f} s"
    elif any(packing.max_fitting.get(workflow, limits.max_processes) <= total for workflow in gpu.workflows):
        why = "a job ran out of memory next to others"
    elif (
        shortage is not None
        and total >= shortage.count
        and gpu.now < shortage.until
        and gpu.workflows >= shortage.workflows
    ):
        why = "memory was low for the current workflows"
    elif all(_max_useful(packing, workflow, limits) <= total for workflow in gpu.workflows):
        why = "more did not pay off for the current workflows"
    elif not _may_pay_off(packing, gpu, limits, total + 1):
        why = "more did not pay off recently"
    elif (problem := _memory_problem(gpu, limits)) is not None:
        why = problem
    elif _is_machine_full(gpu, limits):
        free, copy = _gib(gpu.machine_free_bytes or 0), _gib(gpu.machine_copy_bytes or 0)
        reserve = _gib(limits.machine_reserve_bytes)
        why = f"another one takes {copy} of machine memory, with {free} free and {reserve} in reserve"
    elif gpu.spare_cores is not None and gpu.spare_cores < 1:
        why = "no CPU core is free"
    elif gpu.load is not None and gpu.load >= limits.busy_load:
        why = f"the GPU is busy {gpu.load:.0%} of the time"
    return None if why is None else _sentence(len(gpu.processes), why)


def _memory_problem(gpu: GpuObservation, limits: PackingLimits) -> str | None:
    """Return why another process does not fit in the GPU's memory, if so."""
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return "the GPU's memory is unknown"
    if gpu.copy_bytes is None:
        return "the memory use of its jobs is not known yet"
    if gpu.total + 1 > copies_that_fit(gpu.memory_bytes, gpu.copy_bytes, limits):
        return f"the GPU has {_gib(gpu.memory_bytes)}, and each process takes {_gib(gpu.copy_bytes)}"
    # Starting processes have not allocated their memory yet.
    if gpu.free_bytes < (gpu.starting + 1) * gpu.copy_bytes:
        return f"another one takes {_gib(gpu.copy_bytes)}, but {_gib(gpu.free_bytes)} are free"
    return None


def _is_machine_full(gpu: GpuObservation, limits: PackingLimits, *, more: int = 1) -> bool:
    """Whether machine memory, through which models are loaded, is too small for `more` processes; false if unknown."""
    if gpu.machine_free_bytes is None or gpu.machine_copy_bytes is None:
        return False
    # Starting processes have not allocated their memory yet.
    needed = (gpu.starting + more) * gpu.machine_copy_bytes + limits.machine_reserve_bytes
    return gpu.machine_free_bytes < needed


def _continue_trial(
    packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits
) -> tuple[Packing, PackingDecision]:
    """Advance a trial: count completed jobs, start the next turn, or conclude it."""
    up = frozenset(gpu.processes)
    if not up <= trial.warm:
        trial = replace(trial.restart_turn(gpu.now), warm=trial.warm | {run.process for run in gpu.completed})
        if not up <= trial.warm:
            why = f"trying {trial.size}; the new one is loading its models"
            return replace(packing, trial=trial), _stay(trial.size, _sentence(trial.base, why))
    elif _is_disturbed(trial, gpu):
        trial = trial.restart_turn(gpu.now)
    else:
        trial = _count_runs(trial, gpu)
        if _is_turn_over(trial, gpu, limits):
            measured = {**trial.measured, trial.has_all: (*trial.measured[trial.has_all], *trial.spans)}
            trial = replace(trial.restart_turn(gpu.now), turn=trial.turn + 1, measured=measured)
            if not _needs_more_turns(trial, limits):
                return _conclude_trial(packing, trial, gpu, limits)
    why = f"trying {trial.size}, turn {trial.turn + 1}"
    return replace(packing, trial=trial), _stay(trial.active, _sentence(trial.base, why))


def _is_disturbed(trial: Trial, gpu: GpuObservation) -> bool:
    """Whether not exactly the active processes were busy since the turn began.

    A resting process may have finished its job in between, which slowed the others down.
    """
    resting = gpu.processes[trial.active :]
    has_finished = any(run.process in resting and run.at >= trial.began_at for run in gpu.completed)
    is_starved = not gpu.waiting and gpu.running < trial.active
    return is_starved or has_finished or gpu.running > trial.active


def _needs_more_turns(trial: Trial, limits: PackingLimits) -> bool:
    if trial.turn % 2 or trial.turn < 2 * limits.turns:
        return True
    gain = trial.gain
    is_unsure = gain is not None and abs(gain - limits.min_gain) < limits.uncertainty
    return is_unsure and trial.turn < 2 * limits.max_turns


def _count_runs(trial: Trial, gpu: GpuObservation) -> Trial:
    active = gpu.processes[: trial.active]
    last, spans = dict(trial.last_completed), list(trial.spans)
    for run in sorted(gpu.completed, key=lambda run: run.at):
        if run.process not in active or run.at < trial.began_at:
            continue
        if run.process in last:
            spans.append((run.workflow, run.at - last[run.process]))
        last[run.process] = run.at
    return replace(trial, last_completed=last, spans=tuple(spans))


def _is_turn_over(trial: Trial, gpu: GpuObservation, limits: PackingLimits) -> bool:
    has_all_run = all(process in trial.last_completed for process in gpu.processes[: trial.active])
    return has_all_run and len(trial.spans) >= max(limits.jobs_per_turn, trial.active)


def _conclude_trial(
    packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits
) -> tuple[Packing, PackingDecision]:
    gain, base, size = trial.gain, trial.base, trial.size
    packing = replace(packing, trial=None, step=1)
    if gain is None:
        packing = replace(_limit_to(packing, trial, gpu, limits, count=base), shrink_to=base)
        reason = f"No workflow ran with both {size} and {_processes(base)}, so nothing could be measured."
        return packing, PackingDecision(change=PackingChange.REMOVE, active=size - 1, reason=reason)
    result = f"{_processes(size)} complete {abs(gain):.0%} {'more' if gain >= 0 else 'fewer'} jobs than {base}"
    if gain >= limits.min_gain:
        measured = trial.measured_workflows
        proven = {**packing.proven, **{name: max(packing.proven.get(name, 1), size) for name in measured}}
        max_useful = {name: max(number, proven.get(name, 1)) for name, number in packing.max_useful.items()}
        step = 2 if gain >= limits.large_gain else 1
        return replace(packing, proven=proven, max_useful=max_useful, step=step), _stay(size, f"{result}: kept.")
    is_promising = gain - trial.previous_gain >= trial.steps * limits.min_promise
    if is_promising and _reason_against(packing, gpu, limits) is None:
        # One more may reach the gain that this one does not.
        further = Trial(base=base, size=size + 1, requested=size + 1, previous_gain=gain, warm=frozenset(gpu.processes))
        reason = f"{result}: trying {size + 1}."
        packing = replace(packing, trial=further)
        return packing, PackingDecision(change=PackingChange.ADD, active=size, reason=reason)
    too_small = f"{result}, below the required {limits.min_gain:.0%}"
    if trial.steps == 2 and size == base + 2:
        # Two may have been one too many.
        one = Trial(base=base, size=base + 1, requested=base + 1)
        packing = replace(_limit_to(packing, trial, gpu, limits, count=one.size), trial=one)
        reason = f"{too_small}: trying {one.size}."
        return packing, PackingDecision(change=PackingChange.REMOVE, active=one.size, reason=reason)
    packing = replace(_limit_to(packing, trial, gpu, limits, count=base), shrink_to=base)
    reason = f"{too_small}: back to {base}."
    return packing, PackingDecision(change=PackingChange.REMOVE, active=size - 1, reason=reason)


def _limit_to(packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits, *, count: int) -> Packing:
    """Never try more than `count` again for the measured workflows.

    For other workflows, and for workflows that gained from more before, the next trial is only delayed.
    """
    judged = {workflow for workflow in trial.measured_workflows if packing.proven.get(workflow, 1) <= count}
    others = (gpu.workflows | trial.measured_workflows) - judged
    return replace(
        packing,
        max_useful={**packing.max_useful, **dict.fromkeys(judged, count)},
        retry_at={**packing.retry_at, **dict.fromkeys(others, gpu.now + limits.retry_seconds)},
    )


def _stay(active: int, reason: str) -> PackingDecision:
    return PackingDecision(change=PackingChange.NOTHING, active=active, reason=reason)


def _sentence(count: int, why: str) -> str:
    return f"{_processes(count)}: {why}."


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
