"""Match waiting jobs with free servers after each change."""

import asyncio
from collections.abc import Callable, Collection, Iterable

from comfyrelay.comfyui.pool.failover import FailoverStrategy
from comfyrelay.comfyui.pool.gpu_memory import GpuMemory
from comfyrelay.comfyui.pool.members import Member, Roster
from comfyrelay.comfyui.pool.queues.queue import QueueAdapter
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.comfyui.pool.unserved_jobs import UnservedJobs

ShouldSkip = Callable[[str, str], bool]

# How long a turn may take before it lets other tasks of the event loop run.
_TURN_SECONDS = 0.005
MAX_UNCACHED = 1000


def fits(bucket: Bucket, client_id: str, should_skip: ShouldSkip) -> bool:
    """Whether a job of this bucket may go to this server at all."""
    return client_id not in bucket.exclude_clients and not should_skip(client_id, bucket.workflow_hash)


def choose(bucket: Bucket, candidates: Iterable[Member], should_skip: ShouldSkip) -> Member | None:
    """Choose a server by these criteria, in this order: preferred, result cached, models loaded, least busy, longest
    idle."""
    return min(
        (candidate for candidate in candidates if fits(bucket, candidate.id, should_skip)),
        key=lambda member: (
            member.id not in bucket.preferred_clients,
            bucket.same_as is None or bucket.same_as != member.cache_key,
            # The last completed workflow is loaded; earlier workflows may be.
            bucket.workflow_hash not in member.warm,
            bucket.workflow_hash != next(iter(member.warm), None),
            member.foreign_runs,
            member.last_used,
        ),
        default=None,
    )


class Scheduler:
    """Assign jobs to servers without polling.

    `wake` signals a change. A timer covers changes that are caused only by time.
    """

    def __init__(
        self,
        *,
        queue: QueueAdapter,
        failover: FailoverStrategy,
        memory: GpuMemory,
        start: Callable[[Ticket, Member], None],
        give_up: Callable[[str], None],
        release_blocks: Callable[[], None],
        ahead_seconds: float,
    ) -> None:
        """`release_blocks` announces expired blocks.

        The next job may be queued on a busy server if it and the active job are known to take at most `ahead_seconds`.
        """
        self._queue = queue
        self._failover = failover
        self._memory = memory
        self._start = start
        self._give_up = give_up
        self._release_blocks = release_blocks
        self._ahead_seconds = ahead_seconds
        self._roster: Roster | None = None
        self._turn: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        # Servers that no waiting job may use. Otherwise, a server that remains free would cause a scan of all buckets
        # in every turn, which takes 5 ms for 10,000 buckets.
        self._unwanted: set[str] = set()
        self._unserved = UnservedJobs()
        # Whether a job waits for a busy server although other servers are free. Those are tried again after each
        # change.
        self._is_holding_back = False
        # The GPU on which a bucket waits for memory. If it changed, no GPU would ever become free.
        self._awaited: dict[Bucket, str] = {}
        # Workflows that servers do not cache: they run again even after an identical run. Newest last.
        self._uncached: dict[str, None] = {}

    def open(self, roster: Roster) -> None:
        self._roster = roster
        self.wake()

    def wake(self) -> None:
        """Schedule a turn soon. Several calls cause only one turn."""
        if self._roster is not None and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn, self._roster)

    def add(self, ticket: Ticket) -> None:
        """Handle a new waiting job, which may be able to use a server that no other job can use."""
        self._unserved.add(ticket, now=asyncio.get_running_loop().time())
        if self._unwanted:
            should_skip = self._failover.should_skip
            self._unwanted = {
                client_id for client_id in self._unwanted if not fits(ticket.bucket, client_id, should_skip)
            }
        self.wake()

    def remove(self, ticket: Ticket) -> None:
        """Handle a job that was removed from the queue."""
        self._unserved.discard(ticket)
        self._awaited.pop(ticket.bucket, None)

    def reconsider(self, client_id: str) -> None:
        """Reconsider a server that was paused, or blocked for a workflow."""
        self._unwanted.discard(client_id)
        self.wake()

    def reconsider_gpu(self, member: Member) -> None:
        """Reconsider all servers on this server's GPU, which may have enough memory now."""
        if member.gpu is not None and self._roster is not None:
            self._unwanted.difference_update(other.id for other in self._roster if other.gpu == member.gpu)
        self.wake()

    def record_repeat(self, workflow_hash: str, *, is_cached: bool) -> None:
        """Record whether a server that repeated its last work used its cache. If not, jobs with this workflow do not
        wait for the server."""
        self._uncached.pop(workflow_hash, None)
        if not is_cached:
            self._uncached[workflow_hash] = None
            for oldest in [*self._uncached][:-MAX_UNCACHED]:
                del self._uncached[oldest]

    def online_servers(self, bucket: Bucket, among: Collection[str] | None = None) -> list[Member]:
        """Return the online servers that may get a job of this bucket now or when they are free."""
        able = [] if self._roster is None else self._suitable_servers(bucket, self._roster)
        return [member for member in able if among is None or member.id in among]

    def has_server(self, bucket: Bucket) -> bool:
        """Whether any server may ever get a job of this bucket, including unreachable and blocked ones."""
        return self._roster is not None and not bucket.exclude_clients.issuperset(self._roster.ids)

    def close(self) -> None:
        """Stop starting jobs."""
        self._roster = None
        for handle in (self._turn, self._alarm):
            if handle is not None:
                handle.cancel()

    def _suitable_servers(self, bucket: Bucket, roster: Roster) -> list[Member]:
        return [member for member in roster.online if fits(bucket, member.id, self._failover.should_skip)]

    def _take_turn(self, roster: Roster) -> None:
        self._turn = None
        if self._is_holding_back:
            self._is_holding_back = False
            self._unwanted.clear()
        self._release_blocks()
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
        for job_id in self._unserved.overdue([member.id for member in roster.online], now=now):
            self._give_up(job_id)
        self._set_alarm(roster, now)

    def _place_one(self, free: list[Member], roster: Roster) -> bool:
        chosen: Member | None = None
        # GPUs on which an earlier job waits for memory. Later jobs must not take that memory.
        reserved: set[str] = set()
        has_pins = any(member.pinned is not None for member in roster)

        def may_run(bucket: Bucket) -> bool:
            nonlocal chosen
            candidates = [member for member in free if member.gpu not in reserved] if reserved else free
            if avoided := self._servers_to_avoid(bucket, roster, has_pins=has_pins):
                self._is_holding_back = True
                candidates = [member for member in candidates if member.id not in avoided]
            chosen = choose(bucket, candidates, self._failover.should_skip)
            if chosen is None or chosen.gpu is None or self._memory.has_memory_for(bucket, chosen, roster):
                return chosen is not None
            full_gpu = chosen.gpu
            chosen = self._choose_with_memory(bucket, candidates, roster)
            if chosen is None:
                reserved.add(self._awaited_gpu(bucket, full_gpu, roster))
            return chosen is not None

        return self._start_taken(self._queue.take(may_run), chosen)

    def _choose_with_memory(self, bucket: Bucket, candidates: list[Member], roster: Roster) -> Member | None:
        with_memory = [member for member in candidates if self._memory.has_memory_for(bucket, member, roster)]
        return choose(bucket, with_memory, self._failover.should_skip)

    def _awaited_gpu(self, bucket: Bucket, full_gpu: str, roster: Roster) -> str:
        """Return the GPU that a job of this bucket waits for: the same as before, if the job can still run there."""
        able = self._suitable_servers(bucket, roster)
        if self._awaited.get(bucket) not in {member.gpu for member in able if not member.is_paused}:
            self._awaited[bucket] = full_gpu
        return self._awaited[bucket]

    def _place_ahead(self, roster: Roster, now: float) -> bool:
        """Send the next job to a server that is busy with a short job, to leave no gap between the two jobs.

        Later jobs must not overtake the next job, so they are not considered.
        """
        chosen: Member | None = None
        is_next = True

        def may_wait(bucket: Bucket) -> bool:
            nonlocal chosen, is_next
            if is_next:
                busy = [member for member in roster if member.may_queue(bucket, now, seconds=self._ahead_seconds)]
                chosen = self._choose_with_memory(bucket, busy, roster)
            is_next = False
            return chosen is not None

        return self._start_taken(self._queue.take(may_wait), chosen)

    def _start_taken(self, ticket: Ticket | None, chosen: Member | None) -> bool:
        if ticket is None or chosen is None:
            return False
        self.remove(ticket)
        self._start(ticket, chosen)
        return True

    def _servers_to_avoid(self, bucket: Bucket, roster: Roster, *, has_pins: bool) -> set[str]:
        """Return the servers that a job should avoid because another server can take it now or later.

        These are servers whose GPU is too small, servers that keep another workflow loaded or would have to unload one,
        and, while one server runs the same work, all other servers.
        """
        waits_for_same = bucket.same_as is not None and bucket.workflow_hash not in self._uncached
        if not has_pins and not waits_for_same and not self._memory.is_oversized(bucket.workflow_hash):
            return set()
        able = self._suitable_servers(bucket, roster)
        avoided: set[str] = set(self._memory.too_small(bucket.workflow_hash, able))

        def is_pinned_to_another(member: Member) -> bool:
            return member.pinned not in (None, bucket.workflow_hash)

        def would_evict_pinned(member: Member) -> bool:
            return self._memory.would_evict_pinned(bucket, member, roster)

        for is_bad in (is_pinned_to_another, would_evict_pinned):
            remaining = [member for member in able if member.id not in avoided]
            bad = {member.id for member in remaining if is_bad(member)}
            avoided |= bad if len(bad) < len(remaining) else set()
        if waits_for_same and any(member.cache_key == bucket.same_as and member.running for member in able):
            avoided |= {member.id for member in able if member.cache_key != bucket.same_as}
        return avoided

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
