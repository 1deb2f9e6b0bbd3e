"""Sort and page a list of workers.

Sorted here rather than in the database, so that PostgreSQL and SQLite agree and gpu-2 comes before gpu-10.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from comfyrelay.domain.queue.states import WorkerState

_NUMBERS = re.compile(r"(\d+)")
# Working states first, states that need an operator last.
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
    """A worker with its sort key."""

    worker_id: str
    state: str
    key: Any


def count_states(found: Sequence[SortedWorker]) -> dict[str, int]:
    counts = {each.value: 0 for each in WorkerState}
    for each in found:
        counts[each.state] += 1
    return counts


def sort_ids(found: Sequence[SortedWorker], sort: WorkerSort, *, is_down: bool) -> list[str]:
    """Worker ids in order. Ties are sorted by ascending id."""
    by_id = sorted(found, key=lambda each: _natural_key(each.worker_id))
    return [each.worker_id for each in sorted(by_id, key=lambda each: _rank(sort, each.key), reverse=is_down)]


def _rank(sort: WorkerSort, key: Any) -> Any:
    match sort:
        case WorkerSort.STATE:
            return _STATES[WorkerState(key)]
        case WorkerSort.SEEN:
            # most recently seen first
            return -key.timestamp() if isinstance(key, datetime) else 0.0
        case _:
            return _natural_key(key or "")


# Every page sorts the same names again.
@lru_cache(maxsize=20_000)
def _natural_key(text: str) -> tuple[tuple[bool, int, str], ...]:
    parts = _NUMBERS.split(text.lower())
    return tuple((True, int(each), "") if number % 2 else (False, 0, each) for number, each in enumerate(parts))


def page_after(ids: Sequence[str], cursor: str | None, *, limit: int) -> tuple[Sequence[str], str | None]:
    """Return the page after the cursor, and the next cursor.

    A cursor is the number of ids before the page and the last of them. If that id is gone, the number less one counts.
    """
    begin = 0
    if cursor is not None:
        number, _, last = cursor.partition("/")
        begin = ids.index(last) + 1 if last in ids else max(0, int(number) - 1)
    end = begin + limit
    return ids[begin:end], f"{end}/{ids[end - 1]}" if end < len(ids) else None
