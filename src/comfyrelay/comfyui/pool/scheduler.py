"""Match waiting jobs with free servers after each change."""

import asyncio
from collections.abc import Callable

from comfyrelay.comfyui.pool.events import ClientState
from comfyrelay.comfyui.pool.failover import FailoverStrategy
from comfyrelay.comfyui.pool.gpu_memory import GpuMemory
from comfyrelay.comfyui.pool.member import Member
from comfyrelay.comfyui.pool.members import Roster
from comfyrelay.comfyui.pool.queue import QueueAdapter
from comfyrelay.comfyui.pool.schedule import choose, fits
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.comfyui.pool.unserved_jobs import UnservedJobs

# Yield to other tasks of the event loop.
_TURN_SECONDS = 0.005
MAX_UNCACHED = 1000


class Scheduler:
    """Assign jobs to servers without polling:

    `wake` signals a change, and a timer covers what changes with time alone.
    """

    def __init__(
        self,
        *,
        queue: QueueAdapter,
        failover: FailoverStrategy,
        memory: GpuMemory,
        start: Callable[[Ticket, Member], None],
        give_up: Callable[[str], None],
        release: Callable[[], None],
        ahead_seconds: float,
    ) -> None:
        """`release` announces expired blocks.

        The next job may be queued on a busy server if it and the active job are known to take at most `ahead_seconds`.
        """
        self._queue = queue
        self._failover = failover
        self._memory = memory
        self._start = start
        self._give_up = give_up
        self._release = release
        self._ahead_seconds = ahead_seconds
        self._roster: Roster | None = None
        self._turn: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        # Servers that no waiting job may use. Without this, one that stays free would cause a scan of all buckets in
        # every turn: 5 ms with 10,000 of them.
        self._unwanted: set[str] = set()
        self._unserved = UnservedJobs()
        # A job waits for a busy server: others may do once that changes.
        self._is_holding_back = False
        # The GPU on which a bucket waits for memory. It must stay the same one, or none would ever become free.
        self._awaited: dict[Bucket, str] = {}
        # Workflows that servers run again each time despite an identical last run, newest last.
        self._uncached: dict[str, None] = {}

    def open(self, roster: Roster) -> None:
        self._roster = roster
        self.wake()

    def wake(self) -> None:
        """Schedule a turn soon; many calls cause one turn."""
        if self._roster is not None and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn, self._roster)

    def arrived(self, ticket: Ticket) -> None:
        """A job waits, which may use a server that no other job could."""
        self._unserved.add(ticket, now=asyncio.get_running_loop().time())
        if self._unwanted:
            should_skip = self._failover.should_skip
            self._unwanted = {each for each in self._unwanted if not fits(ticket.bucket, each, should_skip)}
        self.wake()

    def withdrawn(self, ticket: Ticket) -> None:
        """A job was removed from the queue."""
        self._unserved.discard(ticket)
        self._awaited.pop(ticket.bucket, None)

    def unblocked(self, client_id: str) -> None:
        """This server may get a workflow again."""
        self._unwanted.discard(client_id)
        self.wake()

    def ran(self, member: Member) -> None:
        """A run has ended: others that share its GPU may have enough memory now."""
        if member.gpu is not None and self._roster is not None:
            self._unwanted.difference_update(each.id for each in self._roster if each.gpu == member.gpu)
        self.wake()

    def record_repeat(self, workflow_hash: str, *, is_cached: bool) -> None:
        """Record whether a server that repeated its last work used its cache.

        If the cache is useless, jobs do not wait for that server.
        """
        self._uncached.pop(workflow_hash, None)
        if not is_cached:
            self._uncached[workflow_hash] = None
            for oldest in [*self._uncached][:-MAX_UNCACHED]:
                del self._uncached[oldest]

    def could_run(self, bucket: Bucket) -> bool:
        """Whether a server is online that may get a job of this bucket, now or once it is free."""
        return self._roster is not None and any(
            fits(bucket, member.id, self._failover.should_skip)
            for member in self._roster
            if member.state is ClientState.ONLINE
        )

    def could_ever_run(self, bucket: Bucket) -> bool:
        """Whether any server may ever get a job of this bucket, including unreachable and blocked ones."""
        return self._roster is not None and not bucket.exclude_clients.issuperset(self._roster.ids)

    def close(self) -> None:
        """Start no more jobs."""
        self._roster = None
        for handle in (self._turn, self._alarm):
            if handle is not None:
                handle.cancel()

    def _take_turn(self, roster: Roster) -> None:
        self._turn = None
        if self._is_holding_back:
            self._is_holding_back = False
            self._unwanted.clear()
        self._release()
        loop = asyncio.get_running_loop()
        now = loop.time()
        free = [member for member in roster if member.is_free(now) and member.id not in self._unwanted]
        is_late = False
        while free:
            if not self._place_one(free, roster):
                self._unwanted.update(member.id for member in free)
                break
            if loop.time() - now > _TURN_SECONDS:
                self.wake()
                is_late = True
                break
            free = [member for member in free if member.is_free(now)]
        while self._ahead_seconds and not is_late and self._place_ahead(roster, now):
            pass
        online = [member.id for member in roster if member.state is ClientState.ONLINE]
        for job_id in self._unserved.overdue(online, now=now):
            self._give_up(job_id)
        self._set_alarm(roster, now)

    def _place_one(self, free: list[Member], roster: Roster) -> bool:
        chosen: Member | None = None
        # GPUs on which an earlier job waits for memory: later ones must not take it.
        kept: set[str] = set()
        has_pins = any(each.pinned is not None for each in roster)

        def may_run(bucket: Bucket) -> bool:
            nonlocal chosen
            others = [each for each in free if each.gpu not in kept] if kept else free
            if spared := self._spared(bucket, roster, has_pins=has_pins):
                self._is_holding_back = True
                others = [other for other in others if other.id not in spared]
            chosen = choose(bucket, others, self._failover.should_skip)
            if chosen is None or chosen.gpu is None or self._memory.has_memory_for(bucket, chosen, roster):
                return chosen is not None
            first = chosen.gpu
            roomy = [
                other for other in others if other.gpu is None or self._memory.has_memory_for(bucket, other, roster)
            ]
            chosen = choose(bucket, roomy, self._failover.should_skip)
            if chosen is None:
                kept.add(self._gpu_for(bucket, first, roster))
            return chosen is not None

        return self._begin(self._queue.take(may_run), chosen)

    def _gpu_for(self, bucket: Bucket, first: str, roster: Roster) -> str:
        """Return the GPU that a job of this bucket waits for: the same as before, as long as it could run there."""
        skip = self._failover.should_skip
        able = [each for each in roster if each.state is ClientState.ONLINE and fits(bucket, each.id, skip)]
        if self._awaited.get(bucket) not in {each.gpu for each in able if not each.is_paused}:
            self._awaited[bucket] = first
        return self._awaited[bucket]

    def _place_ahead(self, roster: Roster, now: float) -> bool:
        """Send the next job to a server that is busy with a short one, to leave no gap between the two.

        Only that job: later ones must not overtake it.
        """
        chosen: Member | None = None
        is_next = True

        def may_wait(bucket: Bucket) -> bool:
            nonlocal chosen, is_next
            if is_next:
                seconds = self._ahead_seconds
                busy = [each for each in roster if each.may_queue(bucket, now, seconds=seconds)]
                roomy = [each for each in busy if self._memory.has_memory_for(bucket, each, roster)]
                chosen = choose(bucket, roomy, self._failover.should_skip)
            is_next = False
            return chosen is not None

        return self._begin(self._queue.take(may_wait), chosen)

    def _begin(self, ticket: Ticket | None, chosen: Member | None) -> bool:
        if ticket is None or chosen is None:
            return False
        self._unserved.discard(ticket)
        self._awaited.pop(ticket.bucket, None)
        self._start(ticket, chosen)
        return True

    def _spared(self, bucket: Bucket, roster: Roster, *, has_pins: bool) -> set[str]:
        """Return the servers to avoid although the job could run there, because another can take it now or later.

        These are servers whose GPU is too small, that keep another workflow loaded or would have to unload one, and all
        but one that run the same work now.
        """
        waits_for_same = bucket.same_as is not None and bucket.workflow_hash not in self._uncached
        if not has_pins and not waits_for_same and not self._memory.is_oversized(bucket.workflow_hash):
            return set()
        skip = self._failover.should_skip
        able = [each for each in roster if each.state is ClientState.ONLINE and fits(bucket, each.id, skip)]
        spared: set[str] = set(self._memory.too_small(bucket.workflow_hash, able))
        for is_kept in (_keeps_another, self._would_unload):
            left = [member for member in able if member.id not in spared]
            kept = {member.id for member in left if is_kept(bucket, member, roster)}
            spared |= kept if len(kept) < len(left) else set()
        if waits_for_same and any(each.cached == bucket.same_as and each.running for each in able):
            spared |= {each.id for each in able if each.cached != bucket.same_as}
        return spared

    def _would_unload(self, bucket: Bucket, member: Member, roster: Roster) -> bool:
        """Whether a server of its GPU would have to unload its pinned workflow."""
        return self._memory.would_evict_pinned(bucket, member, roster)

    def _set_alarm(self, roster: Roster, now: float) -> None:
        """Wake when the next block, server grace period or wait for servers expires."""
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


def _keeps_another(bucket: Bucket, member: Member, _roster: Roster) -> bool:
    return member.pinned not in (None, bucket.workflow_hash)
