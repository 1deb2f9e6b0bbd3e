"""Waiting jobs in the order in which they go, grouped so that choosing the next one does not walk all of them."""

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush

from comfyrelay.comfyui.pool.ticket import Lane, Ticket

# -priority, sequence, id: the smallest goes first, and no two have the same sequence
Place = tuple[int, int, str]


class Lanes:
    """Highest priority first, then first come. A lane that may not run now holds up nobody."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._heaps: dict[Lane, list[Place]] = {}
        # The first place of each lane, sorted. A list beats a heap here: looking along it changes nothing, and most
        # looks pass over lanes that may not run.
        self._heads: list[tuple[Place, Lane]] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket
        place = (-ticket.priority, ticket.sequence, ticket.id)
        heap = self._heaps.setdefault(ticket.lane, [])
        first = heap[0] if heap else None
        heappush(heap, place)
        if heap[0] != first:
            self._move_head(ticket.lane, first)

    def take(self, may_run: Callable[[Lane], bool]) -> Ticket | None:
        """Take out the first job whose lane may run."""
        for place, lane in self._heads:
            if may_run(lane):
                ticket = self._tickets.pop(place[2])
                self._drop_gone(lane)
                return ticket
        return None

    def remove(self, job_id: str) -> bool:
        ticket = self._tickets.pop(job_id, None)
        if ticket is None:
            return False
        # further back it stays as a gap, which is closed when it comes to the front
        if self._heaps[ticket.lane][0][2] == job_id:
            self._drop_gone(ticket.lane)
        return True

    def _drop_gone(self, lane: Lane) -> None:
        """Bring the lane's first waiting job to its front; the one that is there has gone."""
        heap = self._heaps[lane]
        first = heap[0]
        while heap and heap[0][2] not in self._tickets:
            heappop(heap)
        self._move_head(lane, first)

    def _move_head(self, lane: Lane, first: Place | None) -> None:
        if first is not None:
            del self._heads[bisect_left(self._heads, (first, lane))]
        heap = self._heaps[lane]
        if heap:
            insort(self._heads, (heap[0], lane))
        else:
            del self._heaps[lane]
