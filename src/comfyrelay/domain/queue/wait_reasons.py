"""Explain why a job is waiting, and estimate when jobs start and batches finish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from heapq import heapify, heapreplace
from statistics import median
from typing import Any, NamedTuple

from comfyrelay.domain.capabilities import UnmetRequirements, merge_unmet, wait_text
from comfyrelay.domain.queue.memory import another_worker_text, larger_gpu_text
from comfyrelay.domain.queue.progress import Progress
from comfyrelay.text import counted

# Only the newest runs set the pace: older ones may have run on another machine.
NEWEST_DONE = 10


class Reason(StrEnum):
    NOT_WAITING = "not_waiting"
    PAUSED = "paused"
    QUEUE_PAUSED = "queue_paused"
    HELD = "held"
    NOT_BEFORE = "not_before"
    SHARD_DOWN = "shard_down"
    NO_COMFYUI = "no_comfyui"
    NO_WORKER = "no_worker"
    MACHINE_STARTING = "machine_starting"
    MISSING = "missing"
    MEMORY = "memory"
    BLOCKED = "blocked"
    BUSY = "busy"
    STARTING = "starting"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    reason: Reason
    text: str
    until: datetime | None = None
    position: int | None = None
    expected_start_seconds: float | None = None
    workers: int = 0

    @property
    def starts_in_seconds(self) -> float | None:
        """The expected seconds until the start, even if it is about to start."""
        return 0.0 if self.reason is Reason.STARTING else self.expected_start_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateWorker:
    """An online worker that has the job's workflow."""

    slots: int
    leases: int
    blocked_until: datetime | None = None
    unmet: UnmetRequirements | None = None
    # Whether the job ran out of memory on the worker, or needs a larger GPU, which another worker has.
    has_too_little_memory: bool = False

    @property
    def can_run(self) -> bool:
        return self.unmet is None and self.blocked_until is None and not self.has_too_little_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class StartingMachines:
    """Starting machines that will have the job's workflow, with the expected seconds until each is a worker."""

    boot_seconds_left: Sequence[float] = ()
    # Why none is launched.
    limit: str | None = None

    @property
    def text(self) -> str:
        if self.boot_seconds_left:
            ready = f"should be ready in {_about(min(self.boot_seconds_left))}"
            count = len(self.boot_seconds_left)
            if count == 1:
                return f"A machine is starting and {ready}."
            return f"{count} machines are starting. The first {ready}."
        return f"No machine can be launched: {self.limit}." if self.limit else ""


NO_STARTING_MACHINES = StartingMachines()
WORKER_IS_STARTING = "The worker is starting. It connects to ComfyUI, then continues with the queue."


def explain_wait(
    *,
    is_paused: bool,
    available_at: datetime,
    shard_is_down: bool,
    comfyui_unreachable: Sequence[str] = (),
    workers: list[CandidateWorker],
    ahead: int,
    fetched: int = 0,
    expected: float | None,
    now: datetime,
    machines: StartingMachines = NO_STARTING_MACHINES,
    ran_out_bytes: int | None = None,
    failed_sizes: Sequence[int | None] = (),
    is_worker_starting: bool = False,
) -> Waiting:
    """Return the first reason that applies, from the longest-lasting to the one that resolves without help.

    `fetched` is the number of jobs that the workers have prefetched, and `expected` the expected seconds until the
    start. `comfyui_unreachable` says why each ComfyUI server is unavailable, if all of them are. `ran_out_bytes` is
    the size of the largest GPU that was too small for the workflow, and `failed_sizes` the sizes that this job ran out
    of memory on. With `is_worker_starting`, the worker in this process just started.
    """
    if is_paused:
        return Waiting(reason=Reason.PAUSED, text="Paused. Resume the job to run it.")
    if shard_is_down:
        return Waiting(reason=Reason.SHARD_DOWN, text="The database that stores this job is unreachable right now.")
    if comfyui_unreachable:
        return Waiting(
            reason=Reason.NO_COMFYUI,
            text=" ".join([*comfyui_unreachable, "The job runs as soon as ComfyUI is available."]),
        )
    if available_at > now:
        return _not_before(available_at, now)
    large = [worker for worker in workers if not worker.has_too_little_memory]
    found = _explain_workers(large, ahead=ahead, fetched=fetched, expected=expected, now=now)
    if len(large) < len(workers):
        why = another_worker_text(failed_sizes) if ran_out_bytes is None else larger_gpu_text(ran_out_bytes)
        text = f"{why} {found.text}" if large else why
        found = replace(found, reason=found.reason if large else Reason.MEMORY, text=text)
    if found.reason is Reason.NO_WORKER and is_worker_starting:
        return Waiting(reason=Reason.MACHINE_STARTING, text=WORKER_IS_STARTING, position=ahead + 1)
    return _with_machines(found, machines, ahead=ahead)


def _with_machines(waiting: Waiting, machines: StartingMachines, *, ahead: int) -> Waiting:
    """Mention starting machines, unless a worker is free."""
    left = sorted(machines.boot_seconds_left)
    if waiting.reason is Reason.NO_WORKER and left:
        return Waiting(
            reason=Reason.MACHINE_STARTING,
            text=machines.text,
            position=ahead + 1,
            expected_start_seconds=left[ahead] if ahead < len(left) else None,
        )
    if waiting.reason is Reason.STARTING or not machines.text:
        return waiting
    expected = waiting.expected_start_seconds
    if waiting.reason is Reason.BUSY and left and ahead < len(left):
        expected = left[ahead] if expected is None else min(expected, left[ahead])
    return replace(waiting, text=f"{waiting.text} {machines.text}", expected_start_seconds=expected)


def _explain_workers(
    workers: list[CandidateWorker], *, ahead: int, fetched: int, expected: float | None, now: datetime
) -> Waiting:
    if not workers:
        return Waiting(reason=Reason.NO_WORKER, text="No online worker has this workflow.")
    equipped = [worker for worker in workers if worker.unmet is None]
    if not equipped:
        missing = merge_unmet([worker.unmet for worker in workers if worker.unmet is not None])
        return Waiting(reason=Reason.MISSING, text=wait_text(missing), workers=len(workers))
    able = [worker for worker in equipped if worker.can_run]
    return _in_line(able, ahead=ahead, fetched=fetched, expected=expected) if able else _blocked(equipped, now)


def _not_before(available_at: datetime, now: datetime) -> Waiting:
    wait = (available_at - now).total_seconds()
    return Waiting(
        reason=Reason.NOT_BEFORE,
        text=f"Starts at {available_at:%H:%M:%S} UTC at the earliest, in {format_duration(wait)}.",
        until=available_at,
        expected_start_seconds=wait,
    )


def _blocked(workers: list[CandidateWorker], now: datetime) -> Waiting:
    until = min(worker.blocked_until for worker in workers if worker.blocked_until is not None)
    return Waiting(
        reason=Reason.BLOCKED,
        text=f"Every worker with this workflow failed on it recently. The next attempt is at {until:%H:%M:%S} UTC.",
        until=until,
        workers=len(workers),
        expected_start_seconds=(until - now).total_seconds(),
    )


def _in_line(able: list[CandidateWorker], *, ahead: int, fetched: int, expected: float | None) -> Waiting:
    free = sum(max(0, worker.slots - worker.leases) for worker in able)
    if ahead < free:
        text = "Next in the queue; a worker is free." if ahead == 0 else f"Position {ahead + 1}; workers are free."
        return Waiting(reason=Reason.STARTING, text=text, position=ahead + 1, workers=len(able))
    position = ahead + fetched + 1
    match len(able):
        case 1:
            busy = "The worker is busy."
        case 2:
            busy = "Both workers are busy."
        case count:
            busy = f"All {count} workers are busy."
    if free:
        busy = "Earlier jobs will use the free workers."
    return Waiting(
        reason=Reason.BUSY,
        text=f"Position {position}. {busy}{_expected_text(expected)}",
        position=position,
        expected_start_seconds=expected,
        workers=len(able),
    )


def explain_prefetched(*, running_seconds_left: Sequence[float | None], before: Sequence[float | None]) -> Waiting:
    """Explain why a prefetched job waits: its worker runs other jobs first.

    `before` are the usual run times of the prefetched jobs before it; `None` if unknown.
    """
    known = [seconds for seconds in (*running_seconds_left, *before) if seconds is not None]
    is_known = len(known) == len(running_seconds_left) + len(before)
    first = min((seconds for seconds in running_seconds_left if seconds is not None), default=0.0)
    expected = first + sum(seconds for seconds in before if seconds is not None) if is_known else None
    return Waiting(
        reason=Reason.BUSY,
        text=f"Position {len(before) + 1}. Its worker is busy.{_expected_text(expected)}",
        position=len(before) + 1,
        expected_start_seconds=expected,
        workers=1,
    )


def _expected_text(seconds: float | None) -> str:
    return "" if seconds is None else f" Expected to start in about {format_duration(seconds)}."


def format_duration(seconds: float) -> str:
    """Format a duration with about two digits: `45 s`, `12 min`, `1.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def _about(seconds: float) -> str:
    number, unit = (seconds, "second") if seconds < 90 else (seconds / 60, "minute")
    count = max(1, round(number))
    return f"about {counted(count, unit)}"


def is_prefetched(*, is_prefetch: bool, progress: Mapping[str, Any] | None) -> bool:
    """Whether a worker has leased the job ahead of time and has not reported a start."""
    return is_prefetch and not Progress.from_report(progress).has_begun


def expected_start(free_in: Sequence[float], *, ahead: int, ahead_seconds: float) -> float | None:
    """Return the seconds until a job starts: each job ahead takes the slot that is free first.

    `free_in` are the seconds until each slot is free. The `ahead` jobs run for `ahead_seconds` together. All estimates
    use this function, so that a batch ends when the job behind it on the same GPU starts.
    """
    if len(free_in) == 1:
        return free_in[0] + ahead_seconds
    slots = list(free_in)
    heapify(slots)
    for _ in range(ahead if slots else 0):
        heapreplace(slots, slots[0] + ahead_seconds / ahead)
    return slots[0] if slots else None


class DurationEstimate(NamedTuple):
    """Usual duration, and the range of most cases."""

    seconds: float
    fastest: float
    slowest: float


def pace_of(newest: Sequence[float]) -> DurationEstimate | None:
    """Estimate the run time of a job from run times, newest first."""
    taken = sorted(newest[:NEWEST_DONE])
    if not taken:
        return None
    if len(taken) > 2:
        # Drop the slowest fifth: the first run after a start also loads models.
        taken = taken[: -max(1, len(taken) // 5)]
    return DurationEstimate(median(taken), taken[0], taken[-1])


def forecast(jobs: int, pace: DurationEstimate, *, slots: int, start: float) -> DurationEstimate:
    """Estimate the seconds until `jobs` new jobs are done. The first of them starts in `start` seconds."""
    rounds = -(-jobs // max(1, slots))
    return DurationEstimate(*(start + rounds * seconds for seconds in pace))
