"""Decide how many ComfyUI processes should share a GPU.

One ComfyUI leaves a large GPU partly idle, because a single thread feeds it. A trial measures different numbers of
processes while the same workflows run. Further processes start while the current ones are measured. Results are
remembered by workflow.
"""

from dataclasses import replace

from comfyrelay.domain.packing.resources import (
    gib,
    largest_allowed,
    may_pay_off,
    most_useful,
    processes,
    reason_against,
    sentence,
    shortage_reason,
    triable,
)
from comfyrelay.domain.packing.search import best_below, best_count, gain_between, is_growing, next_count, unsure_count
from comfyrelay.domain.packing.state import (
    GpuObservation,
    Measurement,
    MemoryShortage,
    Packing,
    PackingChange,
    PackingDecision,
    PackingLimits,
    PackingResult,
    Trial,
    Turn,
    mean_seconds,
)

Decided = tuple[Packing, PackingDecision]


def decide(packing: Packing, gpu: GpuObservation, limits: PackingLimits | None = None) -> Decided:
    """Return the updated knowledge about a GPU, and the change to make."""
    limits = limits or PackingLimits()
    packing, decision = _decide(_observe(packing, gpu, limits), gpu, limits)
    active = gpu.processes[: decision.active]
    if packing.turn.processes != active:
        packing = replace(packing, turn=Turn(processes=active, present=gpu.processes, began_at=gpu.now))
    return packing, decision


def _decide(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> Decided:
    count = len(gpu.processes)
    if count == 0 or gpu.start_failure is not None:
        failure = f"Another ComfyUI did not start: {gpu.start_failure}"
        return packing, _stay(count, failure if gpu.start_failure else "No ComfyUI is running on this GPU.")
    if count > 1 and not gpu.starting and (removed := _maybe_remove(packing, gpu, limits)) is not None:
        return removed
    if packing.trial is None:
        return _maybe_add(packing, gpu, limits)
    return _continue_trial(packing, packing.trial, gpu, limits)


def _observe(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> Packing:
    """Update the knowledge from the observation, before anything is decided."""
    count = len(gpu.processes)
    is_idle = not gpu.waiting and not gpu.running
    idle_since = gpu.now if packing.idle_since is None else packing.idle_since
    trial = packing.trial
    has_failed = gpu.start_failure is not None or (trial is not None and gpu.total < trial.requested)
    if has_failed or (trial is not None and gpu.total > trial.requested):
        trial = None
    has_shrunk = packing.shrink_to is None or count <= max(packing.shrink_to, gpu.pinned)
    turn = packing.turn
    if turn.present != gpu.processes:
        # The earlier spans are the best comparison until this number is measured again.
        number = len(turn.processes)
        if trial is not None and number not in trial.measured and len(turn.spans) >= limits.jobs_per_turn:
            trial = replace(trial, measured={**trial.measured, number: Measurement(spans=turn.spans)})
        turn = Turn(present=gpu.processes)
    else:
        turn = _count_runs(packing, gpu)
    warm = packing.warm | {(run.process, run.workflow) for run in gpu.completed}
    return replace(
        packing,
        idle_since=idle_since if is_idle else None,
        trial=trial,
        turn=turn,
        warm=frozenset(entry for entry in warm if entry[0] in gpu.processes),
        failed_at=gpu.now if has_failed else packing.failed_at,
        max_fitting={**packing.max_fitting, **dict.fromkeys(gpu.out_of_memory, max(count - 1, 1))},
        retry_at={workflow: at for workflow, at in packing.retry_at.items() if at > gpu.now},
        shrink_to=None if has_shrunk else packing.shrink_to,
    )


def _count_runs(packing: Packing, gpu: GpuObservation) -> Turn:
    """Count the jobs of the turn. Restart it unless exactly its processes were busy and none was loading models.

    A resting process may have finished its job in between, which slowed down the others.
    """
    turn = packing.turn
    active = len(turn.processes)
    resting = gpu.processes[active:]
    has_finished = any(run.process in resting and run.at >= turn.began_at for run in gpu.completed)
    is_starved = not gpu.waiting and gpu.running < active
    is_disturbed = is_starved or has_finished or gpu.running > active
    is_loading = not {process for process, _ in packing.warm}.issuperset(turn.processes)
    return turn.restart(gpu.now) if is_disturbed or is_loading else turn.count_runs(gpu.completed, packing.warm)


def _maybe_remove(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> Decided | None:
    """Remove processes that are not worth keeping or do not fit."""
    count = len(gpu.processes)
    idle = packing.idle_since
    left = max(gpu.pinned, 1)
    useful = most_useful(packing, gpu, limits)
    if (why := shortage_reason(packing, gpu, limits)) is not None:
        until, left = gpu.now + limits.retry_seconds, count - 1
        packing = replace(packing, shortage=MemoryShortage(count=left, workflows=gpu.workflows, until=until))
    elif count <= left:
        return None
    elif packing.shrink_to is not None:
        left = max(packing.shrink_to, left)
        why = "Removed processes that did not pay off."
    elif idle is not None and gpu.now - idle >= limits.idle_seconds:
        why = f"No jobs for {gpu.now - idle:.0f} s: {processes(left)} {'is' if left == 1 else 'are'} enough."
    elif useful < count:
        left = max(useful, left)
        why = f"Back to {processes(left)}: more did not pay off for the current workflows."
    else:
        return None
    return _remove(replace(packing, trial=None), gpu, why, left=left)


def _maybe_add(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> Decided:
    count, total = len(gpu.processes), gpu.total
    known = max((packing.known_count(workflow) for workflow in triable(packing, gpu)), default=total)
    if total == count == known and gpu.waiting and (checked := _check_remembered(packing, gpu, limits)) is not None:
        return checked
    if total == count > max(known, gpu.pinned) and gpu.waiting and may_pay_off(packing, gpu, limits, count):
        # This many processes have never been measured for the current workflows.
        packing = replace(packing, trial=Trial(active=count, requested=count))
        return packing, _stay(count, sentence(count, "measuring"))
    why_not = reason_against(packing, gpu, limits)
    if why_not is not None:
        # Processes that do not pay off rest until they are removed.
        return packing, _stay(min(count, max(most_useful(packing, gpu, limits), gpu.pinned)), why_not)
    if known <= total and gpu.starting:
        return packing, _stay(count, sentence(count, "another one is starting"))
    free, copy = gib(gpu.free_bytes or 0), gib(gpu.copy_bytes or 0)
    jobs = "1 job waits" if gpu.waiting == 1 else f"{gpu.waiting} jobs wait"
    why = f"{jobs}, and another process needs {copy} of {free} free"
    if known > total:
        number = min(known, largest_allowed(packing, gpu, limits)) - total
        return packing, _add(count, f"{why}: {processes(known)} paid off before.", number=number)
    size = _next_size(packing, gpu, limits, count)
    packing = replace(packing, trial=Trial(active=size, requested=size))
    return packing, _add(count, f"{why}: trying {processes(size)}.", number=size - count)


def _next_size(packing: Packing, gpu: GpuObservation, limits: PackingLimits, count: int) -> int:
    return min(max(2 * count, limits.first_size), largest_allowed(packing, gpu, limits))


def _check_remembered(packing: Packing, gpu: GpuObservation, limits: PackingLimits) -> Decided | None:
    """Accept the number from before a restart if jobs are about as fast as before; otherwise measure it again."""
    count = len(gpu.processes)
    expected = {
        workflow: result
        for workflow, result in packing.remembered.items()
        if workflow in gpu.workflows and result.processes == count
    }
    if not expected:
        return None
    if not packing.turn.is_over(limits):
        return packing, _stay(count, sentence(count, "checking the number from before the restart"))
    spans = packing.turn.spans
    seen = {workflow: mean_seconds(spans, workflow) for workflow, _ in spans if workflow in expected}
    if not seen:
        return None
    kept = {
        workflow: expected[workflow]
        for workflow, seconds in seen.items()
        if seconds <= expected[workflow].seconds * (1 + limits.large_gain)
    }
    packing = replace(
        packing,
        # Workflows that did not run in this turn are checked once they run.
        remembered={name: result for name, result in packing.remembered.items() if name not in seen},
        results={**packing.results, **kept},
        proven={**packing.proven, **dict.fromkeys(kept, count)},
        max_useful={**packing.max_useful, **{name: count for name, result in kept.items() if result.is_limit}},
        turn=packing.turn.restart(gpu.now),
    )
    why = "as fast as before the restart" if kept else "slower than before the restart"
    return packing, _stay(count, sentence(count, why))


def _continue_trial(packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits) -> Decided:
    """Advance a trial: wait for its processes, start the next turn, or conclude it."""
    count = len(gpu.processes)
    if count == trial.requested not in trial.measured and is_growing(trial.measured, limits):
        # As long as more processes gain, first measure with the processes that started during a turn.
        trial = replace(trial, active=count)
        packing = replace(packing, trial=trial)
    if count < trial.active:
        why = "one is restarting" if gpu.restarting else "another one is starting"
        return packing, _stay(count, sentence(count, why))
    turn = packing.turn
    if len(turn.processes) != trial.active:
        return packing, _stay(trial.active, f"Trying {processes(trial.active)}.")
    if turn.is_over(limits):
        return _end_turn(packing, trial.with_turn(turn), gpu, limits)
    if (slow := _slower_than_fewer(trial, turn, gpu)) is not None:
        # No second turn is needed: even this one was too slow.
        measured = {**trial.measured, trial.active: replace(slow, turns=limits.max_turns)}
        return _end_turn(packing, replace(trial, measured=measured), gpu, limits)
    return packing, _stay(trial.active, f"Trying {processes(trial.active)}.")


def _slower_than_fewer(trial: Trial, turn: Turn, gpu: GpuObservation) -> Measurement | None:
    """Return the best possible result of the turn if it is slower than that of the smallest measured number."""
    fewest = min(trial.measured, default=trial.active)
    if fewest >= trial.active:
        return None
    spans = trial.measured[fewest].spans
    seconds, jobs = gpu.now - turn.began_at, turn.completions + trial.active
    if jobs >= seconds * fewest / max(span for _, span in spans):
        return None
    return Measurement(spans=tuple((workflow, seconds * trial.active / jobs) for workflow, _ in spans))


def _end_turn(packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits) -> Decided:
    """Choose the number to measure next. As long as the largest number is the best, also start more processes."""
    packing = replace(packing, trial=trial, turn=packing.turn.restart(gpu.now))
    count, measured = len(gpu.processes), trial.measured
    best = best_count(measured, limits)
    largest = trial.requested
    if best == trial.requested == gpu.total and len(measured) > 1:
        largest = _next_size(packing, gpu, limits, best)
    floor = max(gpu.pinned, 1)
    following = next_count(measured, limits, floor=floor, largest=largest) or unsure_count(
        measured, limits, floor=floor
    )
    if largest > trial.requested:
        trial = replace(trial, active=following or largest, requested=largest)
        why = f"{_result(trial, best, limits)}: trying {largest}."
        return replace(packing, trial=trial), _add(min(trial.active, count), why, number=largest - gpu.total)
    if following is None:
        return _conclude_trial(packing, trial, gpu, limits)
    trial = replace(trial, active=following)
    return replace(packing, trial=trial), _stay(min(following, count), f"Trying {processes(following)}.")


def _conclude_trial(packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits) -> Decided:
    best = best_count(trial.measured, limits)
    is_limit = best < max(trial.measured)
    packing = _learn(replace(packing, trial=None), trial, gpu, limits)
    reason = f"{_result(trial, best, limits)}{f': back to {best}' if is_limit else ': kept'}."
    left = max(best, gpu.pinned)
    if left >= len(gpu.processes):
        return packing, _stay(left, reason)
    return _remove(replace(packing, shrink_to=best), gpu, reason, left=left)


def _learn(packing: Packing, trial: Trial, gpu: GpuObservation, limits: PackingLimits) -> Packing:
    """Record the result for the measured workflows.

    For other workflows, and for workflows that gained from more processes in the past, only delay the next trial.
    """
    best = best_count(trial.measured, limits)
    is_limit = best < max(trial.measured)
    judged = {name for name in trial.compared_workflows if packing.proven.get(name, 1) <= best}
    others = (gpu.workflows | trial.compared_workflows) - judged if is_limit else set()
    spans = trial.measured[best].spans
    ran = judged & {workflow for workflow, _ in spans}
    results = {
        name: PackingResult(processes=best, seconds=mean_seconds(spans, name), is_limit=is_limit) for name in ran
    }
    useful = {name: max(number, best) if name in judged else number for name, number in packing.max_useful.items()}
    return replace(
        packing,
        proven={**packing.proven, **dict.fromkeys(judged, best)},
        max_useful={**useful, **(dict.fromkeys(judged, best) if is_limit else {})},
        results={**packing.results, **results},
        remembered={name: result for name, result in packing.remembered.items() if name not in judged},
        retry_at={**packing.retry_at, **dict.fromkeys(others, gpu.now + limits.retry_seconds)},
    )


def _result(trial: Trial, best: int, limits: PackingLimits) -> str:
    """Describe the gain of the best number over fewer processes, or the largest gain of more processes over it."""
    measured = trial.measured
    base, size = best_below(measured, best, limits), best
    if base is None or best < max(measured):
        base, larger = best, [count for count in measured if count > best]
        size = max(larger, key=lambda count: gain_between(measured, count, best) or 0.0, default=best)
    gain = gain_between(measured, size, base) if size > base else None
    if gain is None:
        return f"No workflow ran with both {size} and fewer processes, so nothing could be compared"
    result = f"{processes(size)} complete {abs(gain):.0%} {'more' if gain >= 0 else 'fewer'} jobs than {base}"
    return result if size == best else f"{result}, below the required {limits.min_gain:.0%}"


def _remove(packing: Packing, gpu: GpuObservation, reason: str, *, left: int) -> Decided:
    number = len(gpu.processes) - left
    return packing, PackingDecision(change=PackingChange.REMOVE, active=left, reason=reason, number=number)


def _add(active: int, reason: str, *, number: int) -> PackingDecision:
    return PackingDecision(change=PackingChange.ADD, active=active, reason=reason, number=number)


def _stay(active: int, reason: str) -> PackingDecision:
    return PackingDecision(change=PackingChange.NOTHING, active=active, reason=reason)
