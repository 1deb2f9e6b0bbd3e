"""Sort and page a list of workers.

Workers are sorted here and not in the database, so that PostgreSQL and SQLite agree and gpu-2 comes before gpu-10.
"""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from comfyrelay.domain.queue.states import WorkerState

_NUMBERS = re.compile(r"(\d+)")
# Working states first, states that need an operator last.
_STATES = (
    WorkerState.BUSY,
    WorkerState.IDLE,
    WorkerState.NO_COMFYUI,
    WorkerState.DRAINING,
    WorkerState.REVOKED,
    WorkerState.OFFLINE,
)


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
    counts = Counter(worker.state for worker in found)
    return {state.value: counts[state.value] for state in WorkerState}


def sort_ids(found: Sequence[SortedWorker], sort: WorkerSort, *, is_descending: bool) -> list[str]:
    """Return the worker ids in order. Ties are sorted by ascending id."""
    by_id = sorted(found, key=lambda worker: _natural_key(worker.worker_id))
    by_key = sorted(by_id, key=lambda worker: _rank(sort, worker.key), reverse=is_descending)
    return [worker.worker_id for worker in by_key]


def _rank(sort: WorkerSort, key: Any) -> Any:
    match sort:
        case WorkerSort.STATE:
            return _STATES.index(WorkerState(key))
        case WorkerSort.SEEN:
            # The most recently seen worker comes first.
            return -key.timestamp() if isinstance(key, datetime) else 0.0
        case _:
            return _natural_key(key or "")


# Every page sorts the same names again.
@lru_cache(maxsize=20_000)
def _natural_key(text: str) -> tuple[tuple[bool, int, str], ...]:
    parts = _NUMBERS.split(text.lower())
    # The parts alternate between text and digits.
    return tuple((True, int(part), "") if number % 2 else (False, 0, part) for number, part in enumerate(parts))


def page_after(ids: Sequence[str], cursor: str | None, *, limit: int) -> tuple[Sequence[str], str | None]:
    """Return the page after the cursor, and the next cursor.

    A cursor has the number of ids before the page and the last of these ids. If that id is gone, the page starts at
    the number minus one.
    """
    begin = 0
    if cursor is not None:
        number, _, last = cursor.partition("/")
        begin = ids.index(last) + 1 if last in ids else max(0, int(number) - 1)
    end = begin + limit
    return ids[begin:end], f"{end}/{ids[end - 1]}" if end < len(ids) else None
