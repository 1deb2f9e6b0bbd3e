"""How long the rest of a batch should take, from how often its items were done."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import NamedTuple

__all__ = ["NEWEST", "Done", "expected_seconds"]

# So many of the newest tell the pace: what ran long ago may have run on another machine.
NEWEST = 10


class Done(NamedTuple):
    """A completed item."""

    started_at: datetime | None
    completed_at: datetime


def expected_seconds(done: Sequence[Done], *, queued: int, processing: int, now: datetime) -> float | None:
    """`done` are the newest completed items; `None` when nothing is left, or nothing is known yet.

    From end to end, not from start to end: several may run at once. The middle one of these times, so that a pause
    between two items does not count.
    """
    left = queued + processing
    pace = _pace(sorted(done, key=lambda each: each.completed_at))
    if not left or pace is None:
        return None
    so_far = (now - max(each.completed_at for each in done)).total_seconds() if processing else 0.0
    return pace * left - min(max(so_far, 0.0), pace)


def _pace(done: Sequence[Done]) -> float | None:
    if len(done) > 1:
        ends = [each.completed_at for each in done]
        return median((after - before).total_seconds() for before, after in pairwise(ends))
    if done and done[0].started_at is not None:
        return (done[0].completed_at - done[0].started_at).total_seconds()
    return None
