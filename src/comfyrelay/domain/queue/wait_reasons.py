"""Why a job is waiting: one reason, in words and in data; and how long the rest of a batch should take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, NamedTuple

from comfyrelay.domain.capabilities import Lacking, awaited, gaps
from comfyrelay.domain.queue.memory import waits_for_larger
from comfyrelay.domain.queue.progress import Progress

# So many of the newest tell the pace: what ran long ago may have run on another machine.
NEWEST_DONE = 10


class Reason(StrEnum):
    NOT_WAITING = "not_waiting"
    PAUSED = "paused"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """A worker that has the job's workflow: whether it has a free slot, until when it is blocked, and what of the
    job's needs it is known to lack."""

    slots: int
    leases: int
    blocked_until: datetime | None = None
    lacking: Lacking | None = None
    # it is known not to fit into this one's GPU, and another is there
    is_too_small: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Coming:
    """Machines that are starting and will have the job's workflow: in how many seconds each should be a worker. Where
    there are none, what keeps them from being launched."""

    boot_seconds_left: Sequence[float] = ()
    limit: str | None = None

    @property
    def text(self) -> str:
        if self.boot_seconds_left:
            first = _about(min(self.boot_seconds_left))
            many = len(self.boot_seconds_left)
            return f"A machine is starting, {first}." if many == 1 else f"{many} machines are starting, {first}."
        return f"No machine is launched: {self.limit}." if self.limit else ""


NOTHING_COMING = Coming()
WORKER_IS_COMING = "The worker is coming back: it looks for ComfyUI, and then goes on with the queue."


def explain(
    *,
    is_paused: bool,
    available_at: datetime,
    shard_is_down: bool,
    comfyui_away: Sequence[str] = (),
    serving: list[Serving],
    ahead: int,
    seconds_per_job: float | None,
    now: datetime,
    coming: Coming = NOTHING_COMING,
    ran_out_bytes: int | None = None,
    is_worker_coming: bool = False,
) -> Waiting:
    """The first reason that holds, from the one that lasts longest to the one that solves itself.

    `comfyui_away` says of each ComfyUI server why it cannot be used, if none of them can be. `ran_out_bytes` is the
    memory of the largest GPU that it did not fit into. `is_worker_coming` is whether one is in this process, and has
    only just begun.
    """
    if is_paused:
        return Waiting(reason=Reason.PAUSED, text="Paused. Resume it to let it run.")
    if shard_is_down:
        return Waiting(reason=Reason.SHARD_DOWN, text="The database that holds this job cannot be reached right now.")
    if comfyui_away:
        return Waiting(
            reason=Reason.NO_COMFYUI, text=" ".join([*comfyui_away, "It runs as soon as ComfyUI can be used."])
        )
    if available_at > now:
        return _not_before(available_at, now)
    large = [each for each in serving if not each.is_too_small]
    found = _among(large, ahead=ahead, seconds_per_job=seconds_per_job, now=now)
    if ran_out_bytes is not None and len(large) < len(serving):
        reason = found.reason if large else Reason.MEMORY
        text = f"{waits_for_larger(ran_out_bytes)} {found.text}" if large else waits_for_larger(ran_out_bytes)
        found = replace(found, reason=reason, text=text)
    if found.reason is Reason.NO_WORKER and is_worker_coming:
        return Waiting(reason=Reason.MACHINE_STARTING, text=WORKER_IS_COMING, position=ahead + 1)
    return _with_machines(found, coming, ahead=ahead)


def _with_machines(waiting: Waiting, coming: Coming, *, ahead: int) -> Waiting:
    """Whoever waits for a worker that is free needs no machine; whoever waits for any is told when it comes."""
    left = sorted(coming.boot_seconds_left)
    if waiting.reason is Reason.NO_WORKER and left:
        return Waiting(
            reason=Reason.MACHINE_STARTING,
            text=coming.text,
            position=ahead + 1,
            expected_start_seconds=left[ahead] if ahead < len(left) else None,
        )
    if waiting.reason is Reason.STARTING or not coming.text:
        return waiting
    expected = waiting.expected_start_seconds
    if waiting.reason is Reason.BUSY and left and ahead < len(left):
        expected = left[ahead] if expected is None else min(expected, left[ahead])
    return replace(waiting, text=f"{waiting.text} {coming.text}", expected_start_seconds=expected)


def _missing(serving: list[Serving]) -> Waiting:
    missing = gaps([each.lacking for each in serving if each.lacking is not None])
    return Waiting(reason=Reason.MISSING, text=awaited(missing), workers=len(serving))


def _among(serving: list[Serving], *, ahead: int, seconds_per_job: float | None, now: datetime) -> Waiting:
    if not serving:
        return Waiting(reason=Reason.NO_WORKER, text="No online worker has this workflow.")
    equipped = [each for each in serving if each.lacking is None]
    if not equipped:
        return _missing(serving)
    able = [each for each in equipped if each.blocked_until is None]
    return _in_line(able, ahead=ahead, seconds_per_job=seconds_per_job) if able else _blocked(equipped, now)


def _not_before(available_at: datetime, now: datetime) -> Waiting:
    wait = (available_at - now).total_seconds()
    return Waiting(
        reason=Reason.NOT_BEFORE,
        text=f"Not before {available_at:%H:%M:%S} UTC, in {span(wait)}.",
        until=available_at,
        expected_start_seconds=wait,
    )


def _blocked(serving: list[Serving], now: datetime) -> Waiting:
    until = min(each.blocked_until for each in serving if each.blocked_until is not None)
    return Waiting(
        reason=Reason.BLOCKED,
        text=f"Every worker with this workflow failed on it recently; the next try is after {until:%H:%M:%S} UTC.",
        until=until,
        workers=len(serving),
        expected_start_seconds=(until - now).total_seconds(),
    )


def _in_line(able: list[Serving], *, ahead: int, seconds_per_job: float | None) -> Waiting:
    free = sum(max(0, each.slots - each.leases) for each in able)
    if ahead < free:
        text = "Next in the queue; a worker is free." if ahead == 0 else f"Position {ahead + 1}; workers are free."
        return Waiting(reason=Reason.STARTING, text=text, position=ahead + 1, workers=len(able))
    slots = sum(each.slots for each in able)
    expected = None if seconds_per_job is None else ((ahead - free) // slots + 1) * seconds_per_job
    guess = "" if expected is None else f" It should start in about {span(expected)}."
    many = "1 worker is" if len(able) == 1 else f"All {len(able)} workers are"
    busy = f"{many} busy." if not free else "Every worker will be busy with what comes before it."
    return Waiting(
        reason=Reason.BUSY,
        text=f"Position {ahead + 1}. {busy}{guess}",
        position=ahead + 1,
        expected_start_seconds=expected,
        workers=len(able),
    )


def explain_fetched(*, running_seconds_left: Sequence[float | None], before: Sequence[float | None]) -> Waiting:
    """Of a job that a worker has fetched, to run it after what it runs, and after others `before` it, which take so
    long; `None` where that is not known."""
    known = [each for each in (*running_seconds_left, *before) if each is not None]
    is_known = len(known) == len(running_seconds_left) + len(before)
    first = min((each for each in running_seconds_left if each is not None), default=0.0)
    expected = first + sum(each for each in before if each is not None) if is_known else None
    guess = "" if expected is None else f" It should start in about {span(expected)}."
    return Waiting(
        reason=Reason.BUSY,
        text=f"Position {len(before) + 1}. Its worker is busy.{guess}",
        position=len(before) + 1,
        expected_start_seconds=expected,
        workers=1,
    )


def span(seconds: float) -> str:
    """A time in words, as exact as it matters."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def _about(seconds: float) -> str:
    number, unit = (seconds, "second") if seconds < 90 else (seconds / 60, "minute")
    many = max(1, round(number))
    return f"about {many} {unit}{'s' if many > 1 else ''}"


def is_only_fetched(*, is_prefetch: bool, progress: Mapping[str, Any] | None) -> bool:
    """Whether a job that a worker has fetched while others run has not begun, as far as it says."""
    return is_prefetch and not Progress.read(progress).has_begun


class CompletedItem(NamedTuple):
    """A completed item."""

    started_at: datetime | None
    completed_at: datetime


def expected_seconds(done: Sequence[CompletedItem], *, queued: int, processing: int, now: datetime) -> float | None:
    """`done` are the newest completed items; `None` when nothing is left, or nothing is known yet.

    From end to end, not from start to end: several may run at once. But no longer than an item ran, so that an outage
    or a pause between two does not count; and the middle one of these times, so that one in an item does not, either.
    """
    remaining = queued + processing
    pace = _pace(sorted(done, key=lambda each: each.completed_at))
    if not remaining or pace is None:
        return None
    so_far = (now - max(each.completed_at for each in done)).total_seconds() if processing else 0.0
    return pace * remaining - min(max(so_far, 0.0), pace)


def _pace(done: Sequence[CompletedItem]) -> float | None:
    if len(done) > 1:
        return median(min(_seconds(before.completed_at, after), _ran(after)) for before, after in pairwise(done))
    return _ran(done[0]) if done and done[0].started_at is not None else None


def _seconds(since: datetime, done: CompletedItem) -> float:
    return (done.completed_at - since).total_seconds()


def _ran(done: CompletedItem) -> float:
    """How long an item ran; without end where that is not known."""
    return inf if done.started_at is None else _seconds(done.started_at, done)


class Pace(NamedTuple):
    """How long a job takes: usually, and within which most of them stay."""

    seconds: float
    fastest: float
    slowest: float


def pace_of(newest: Sequence[float]) -> Pace | None:
    """Of how long the newest took, the newest first; the first run after a start loads models, so one does not count
    among several."""
    taken = sorted(newest[:NEWEST_DONE])
    if not taken:
        return None
    if len(taken) > 2:
        # the ends are accidents
        taken = taken[: -max(1, len(taken) // 5)]
    return Pace(median(taken), taken[0], taken[-1])


class Forecast(NamedTuple):
    """When jobs that are added now are done, in seconds from now."""

    seconds: float
    fastest: float
    slowest: float


def forecast(jobs: int, pace: Pace, *, slots: int, ahead: int, seconds_ahead: float | None) -> Forecast:
    """`ahead` run before them, each for `seconds_ahead`; as many at once as there are slots."""
    before = ahead * (pace.seconds if seconds_ahead is None else seconds_ahead) / max(1, slots)
    rounds = -(-jobs // max(1, slots))
    return Forecast(*(before + rounds * each for each in pace))
