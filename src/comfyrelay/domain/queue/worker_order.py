"""The order of a list of workers, and how many there are of each kind. Pure.

It is not left to the database: names with numbers are sorted as people do, gpu-2 before gpu-10, over PostgreSQL and
over SQLite alike."""

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from comfyrelay.domain.queue.states import WorkerState

_NUMBERS = re.compile(r"(\d+)")
# What works comes first, what needs somebody last.
_STATES = {
    each: number
    for number, each in enumerate(
        (WorkerState.BUSY, WorkerState.IDLE, WorkerState.DRAINING, WorkerState.REVOKED, WorkerState.OFFLINE)
    )
}


class WorkerSort(StrEnum):
    NAME = "name"
    STATE = "state"
    FLEET = "fleet"
    GPU = "gpu"
    VERSION = "version"
    SEEN = "seen"


class SortedWorker(NamedTuple):
    """A worker, and by what it is sorted."""

    worker_id: str
    state: str
    key: Any


def counted(found: Sequence[SortedWorker]) -> dict[str, int]:
    """How many there are in each state."""
    counts = {each.value: 0 for each in WorkerState}
    for each in found:
        counts[each.state] += 1
    return counts


def in_order(found: Sequence[SortedWorker], sort: WorkerSort, *, is_down: bool) -> list[str]:
    """Their ids. Those that are alike in what they are sorted by are sorted by their ids, upwards."""
    by_id = sorted(found, key=lambda each: _as_read(each.worker_id))
    return [each.worker_id for each in sorted(by_id, key=lambda each: _rank(sort, each.key), reverse=is_down)]


def _rank(sort: WorkerSort, key: Any) -> Any:
    match sort:
        case WorkerSort.STATE:
            return _STATES[WorkerState(key)]
        case WorkerSort.SEEN:
            # heard of just now comes before long ago
            return -key.timestamp() if isinstance(key, datetime) else 0.0
        case _:
            return _as_read(key or "")


# The same names are sorted for every page that anybody looks at.
@lru_cache(maxsize=20_000)
def _as_read(text: str) -> tuple[tuple[bool, int, str], ...]:
    """Numbers in it count as numbers."""
    parts = _NUMBERS.split(text.lower())
    return tuple((True, int(each), "") if number % 2 else (False, 0, each) for number, each in enumerate(parts))


def after(ids: Sequence[str], cursor: str | None, *, limit: int) -> tuple[Sequence[str], str | None]:
    """The next of them, and where to go on. A cursor says how many came before and the last of these: if that one has
    left meanwhile, the number counts, less the one that left."""
    begin = 0
    if cursor is not None:
        number, _, last = cursor.partition("/")
        begin = ids.index(last) + 1 if last in ids else max(0, int(number) - 1)
    end = begin + limit
    return ids[begin:end], f"{end}/{ids[end - 1]}" if end < len(ids) else None
