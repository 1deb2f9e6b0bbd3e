"""Brings waiting jobs and free servers together, whenever something has changed that could let one run."""

import asyncio
from collections.abc import Callable

from comfyrelay.pool.events import ClientState
from comfyrelay.pool.failover import FailoverStrategy
from comfyrelay.pool.member import Member
from comfyrelay.pool.queue import QueueAdapter
from comfyrelay.pool.roster import Roster
from comfyrelay.pool.schedule import choose, fits
from comfyrelay.pool.ticket import Lane, Ticket
from comfyrelay.pool.unserved import Unserved

# Others want their turn of the event loop, too.
_TURN_SECONDS = 0.005


class Scheduler:
    """There is no polling: `wake` says that something changed, and a timer is set for what changes with time alone."""

    def __init__(
        self,
        *,
        queue: QueueAdapter,
        failover: FailoverStrategy,
        start: Callable[[Ticket, Member], None],
        give_up: Callable[[str], None],
        release: Callable[[], None],
    ) -> None:
        """`release` announces the blocks that have ended."""
        self._queue = queue
        self._failover = failover
        self._start = start
        self._give_up = give_up
        self._release = release
        self._roster: Roster | None = None
        self._turn: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        # Servers that no waiting job may use. Without this, one of them that stays free would have all lanes looked at
        # in every turn: 5 ms with 10,000 of them.
        self._unwanted: set[str] = set()
        self._unserved = Unserved()

    def open(self, roster: Roster) -> None:
        self._roster = roster
        self.wake()

    def wake(self) -> None:
        """Look for work soon; many calls make one look."""
        if self._roster is not None and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn, self._roster)

    def arrived(self, ticket: Ticket) -> None:
        """A job waits, which may want a server that nobody wanted."""
        self._unserved.add(ticket, now=asyncio.get_running_loop().time())
        if self._unwanted:
            should_skip = self._failover.should_skip
            self._unwanted = {each for each in self._unwanted if not fits(ticket.lane, each, should_skip)}
        self.wake()

    def withdrawn(self, ticket: Ticket) -> None:
        """A job was taken out of the queue."""
        self._unserved.discard(ticket)

    def unblocked(self, client_id: str) -> None:
        """This server may be given a workflow again."""
        self._unwanted.discard(client_id)
        self.wake()

    def could_run(self, lane: Lane) -> bool:
        """Whether a server is online that may be given a job of this lane, now or once it is free."""
        return self._roster is not None and any(
            fits(lane, member.id, self._failover.should_skip)
            for member in self._roster
            if member.state is ClientState.ONLINE
        )

    def is_anybody_left(self, lane: Lane) -> bool:
        """Whether there is a server that a job of this lane may ever go to: one that is away or blocked is there."""
        return self._roster is not None and not lane.exclude_clients.issuperset(self._roster.ids)

    def close(self) -> None:
        """Start nothing more."""
        self._roster = None
        for handle in (self._turn, self._alarm):
            if handle is not None:
                handle.cancel()

    def _take_turn(self, roster: Roster) -> None:
        self._turn = None
        self._release()
        loop = asyncio.get_running_loop()
        now = loop.time()
        free = [member for member in roster if member.is_free(now) and member.id not in self._unwanted]
        while free:
            if not self._place_one(free):
                self._unwanted.update(member.id for member in free)
                break
            if loop.time() - now > _TURN_SECONDS:
                self.wake()
                break
            free = [member for member in free if member.is_free(now)]
        online = [member.id for member in roster if member.state is ClientState.ONLINE]
        for job_id in self._unserved.overdue(online, now=now):
            self._give_up(job_id)
        self._set_alarm(roster, now)

    def _place_one(self, free: list[Member]) -> bool:
        chosen: Member | None = None

        def may_run(lane: Lane) -> bool:
            nonlocal chosen
            chosen = choose(lane, free, self._failover.should_skip)
            return chosen is not None

        ticket = self._queue.take(may_run)
        if ticket is None or chosen is None:
            return False
        self._unserved.discard(ticket)
        self._start(ticket, chosen)
        return True

    def _set_alarm(self, roster: Roster, now: float) -> None:
        """Wake at the end of the next block, of the next server's grace, or of a job's wait for servers."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = [member.usable_from for member in roster if member.usable_from > now]
        seconds = self._failover.seconds_to_release()
        if seconds is not None:
            due.append(now + max(seconds, 0.0))
        deadline = self._unserved.next_deadline
        if deadline is not None:
            due.append(deadline)
        if due:
            self._alarm = asyncio.get_running_loop().call_at(min(due), self.wake)
