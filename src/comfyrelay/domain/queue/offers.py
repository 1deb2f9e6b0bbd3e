"""The order in which waiting workers are offered work.

Thousands of workers may wait, and usually one of the first takes the job. Therefore the order is kept and not sorted
for each job.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Hashable, Iterator
from itertools import count
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
Rank = tuple[bool, int, float, int]


class WaitingWorker(NamedTuple):
    """A worker with a parked poll. `busy_at` is when it last had a job."""

    is_scaled: bool = False
    load: int = 0
    busy_at: float = 0.0
    warm_hashes: frozenset[str] = frozenset()


class OfferOrder(Generic[T]):
    """Items of waiting workers in the order of offers.

    Machines that are not scaled come first, longest wait first. Then come machines of scaled fleets: the fullest first,
    then the one that was busy most recently, so that the others become idle and can stop.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._entries: dict[T, tuple[Rank, WaitingWorker]] = {}
        self._all: list[tuple[Rank, T]] = []
        # Items by the hashes of their loaded workflows.
        self._warm: dict[str, list[tuple[Rank, T]]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[T]:
        return iter([item for _, item in self._all])

    def add(self, item: T, worker: WaitingWorker) -> None:
        """Add an item, or move it."""
        self.discard(item)
        number = next(self._numbers)
        rank = (True, -worker.load, -worker.busy_at, number) if worker.is_scaled else (False, 0, 0.0, number)
        self._entries[item] = (rank, worker)
        insort(self._all, (rank, item), key=itemgetter(0))
        for hash_ in worker.warm_hashes:
            insort(self._warm.setdefault(hash_, []), (rank, item), key=itemgetter(0))

    def discard(self, item: T) -> None:
        if (entry := self._entries.pop(item, None)) is None:
            return
        rank, worker = entry
        _remove(self._all, rank)
        for hash_ in worker.warm_hashes:
            _remove(self._warm[hash_], rank)
            if not self._warm[hash_]:
                del self._warm[hash_]

    def clear(self) -> None:
        self._entries.clear()
        self._all.clear()
        self._warm.clear()

    def first(self, hashes: Collection[str]) -> Iterator[T]:
        """Iterate over all items, starting with the items that have one of these workflows loaded. Items may be added
        and removed during the iteration."""
        rank: Rank | None = None
        while found := min(
            (entry for hash_ in hashes if (entry := _after(self._warm.get(hash_, []), rank))),
            default=None,
            key=itemgetter(0),
        ):
            rank, item = found
            yield item
        rank = None
        while entry := _after(self._all, rank):
            rank, item = entry
            if self._entries[item][1].warm_hashes.isdisjoint(hashes):
                yield item


def _remove(ranked: list[tuple[Rank, T]], rank: Rank) -> None:
    del ranked[bisect_left(ranked, rank, key=itemgetter(0))]


def _after(ranked: list[tuple[Rank, T]], rank: Rank | None) -> tuple[Rank, T] | None:
    """Return the first entry after this rank."""
    position = 0 if rank is None else bisect_right(ranked, rank, key=itemgetter(0))
    return ranked[position] if position < len(ranked) else None
