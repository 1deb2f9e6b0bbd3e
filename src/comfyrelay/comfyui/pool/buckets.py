"""Waiting jobs in order, grouped so that choosing the next one does not walk all of them."""

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush

from comfyrelay.comfyui.pool.ticket import Bucket, Ticket

# -priority, sequence, id: the smallest goes first, and sequences are unique.
Place = tuple[int, int, str]


class Buckets:
    """Highest priority first, then first come. A bucket that may not run now does not delay others."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._heaps: dict[Bucket, list[Place]] = {}
        # The first place of each bucket, sorted. A list beats a heap here: scanning it changes nothing, and most scans
        # skip buckets that may not run.
        self._heads: list[tuple[Place, Bucket]] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket
        place = (-ticket.priority, ticket.sequence, ticket.id)
        heap = self._heaps.setdefault(ticket.bucket, [])
        first = heap[0] if heap else None
        heappush(heap, place)
        if heap[0] != first:
            self._move_head(ticket.bucket, first)

    def take(self, may_run: Callable[[Bucket], bool]) -> Ticket | None:
        """Remove and return the first job whose bucket may run."""
        for place, bucket in self._heads:
            if may_run(bucket):
                ticket = self._tickets.pop(place[2])
                self._drop_gone(bucket)
                return ticket
        return None

    def remove(self, job_id: str) -> bool:
        ticket = self._tickets.pop(job_id, None)
        if ticket is None:
            return False
        # A job further back leaves a gap, which is skipped when it reaches the front.
        if self._heaps[ticket.bucket][0][2] == job_id:
            self._drop_gone(ticket.bucket)
        return True

    def _drop_gone(self, bucket: Bucket) -> None:
        """Make the bucket's next waiting job its head, after the first one was removed."""
        heap = self._heaps[bucket]
        first = heap[0]
        while heap and heap[0][2] not in self._tickets:
            heappop(heap)
        self._move_head(bucket, first)

    def _move_head(self, bucket: Bucket, first: Place | None) -> None:
        if first is not None:
            del self._heads[bisect_left(self._heads, (first, bucket))]
        heap = self._heaps[bucket]
        if heap:
            insort(self._heads, (heap[0], bucket))
        else:
            del self._heaps[bucket]
