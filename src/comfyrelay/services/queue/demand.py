"""What is queued, who of those that wait could take it, and what busy workers hold that an idle one could run now."""

from collections.abc import Collection, Sequence

from comfyrelay.domain.queue.routing import IdleWorker, QueuedDispatch, ReclaimableDispatch, wanted_by
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.central.queue import blocks, demand, dispatches, memory, missing_requirements
from comfyrelay.store.database import Tx

# So many of each kind are read; when they are gone, the next ones are.
QUEUED_AT_ONCE = 32
# A job that is about to begin where it is would only be moved.
RECALL_AFTER_SECONDS = 5.0


class Demand:
    """Reads that lock nothing: the claim checks everything once more, and locks."""

    def __init__(self, databases: Databases, decisions: Decisions, *, worker_stale_seconds: float) -> None:
        self._databases = databases
        self._decisions = decisions
        self._stale_seconds = worker_stale_seconds

    async def queued(self) -> list[QueuedDispatch]:
        """What could be leased now, the first of each kind. One statement."""
        async with self._databases.central.read() as tx:
            return await demand.queued(tx, most=QUEUED_AT_ONCE, down_shards=self._databases.down())

    async def free_slots(self, waiting: Sequence[LeaseRequest], queued: Sequence[QueuedDispatch]) -> dict[str, int]:
        """Which of those who wait may run some of it, and how many free slots each has."""
        async with self._databases.central.read() as tx:
            return await _free_slots(tx, waiting, {each.kind for each in queued})

    async def prefetched(self) -> list[ReclaimableDispatch]:
        """What busy workers have held for a while without beginning it."""
        async with self._databases.central.read() as tx:
            return await demand.prefetched(tx, for_seconds=RECALL_AFTER_SECONDS, most=QUEUED_AT_ONCE)

    async def recall(self, prefetched: Sequence[ReclaimableDispatch], idle: Sequence[LeaseRequest]) -> int:
        """ClaimRequest for prefetched jobs back that those who are idle could run now; returns for how many."""
        async with self._databases.central.read() as tx:
            wanted = await _wanted(tx, prefetched, idle, stale_seconds=self._stale_seconds)
        return await self._decisions.recall(dispatches.numbered(wanted)) if wanted else 0

    async def late(self, waiting: Sequence[LeaseRequest]) -> list[int]:
        """Of the leases past their end, those whose jobs somebody who waits could run now."""
        if not waiting:
            return []
        async with self._databases.central.read() as tx:
            late = await demand.late(tx, down_shards=self._databases.down())
            return await _wanted(tx, late, waiting, stale_seconds=self._stale_seconds) if late else []


async def _wanted(
    tx: Tx, held: Sequence[ReclaimableDispatch], idle: Sequence[LeaseRequest], *, stale_seconds: float
) -> list[int]:
    free = {kind: await _free_slots(tx, idle, [kind]) for kind in {dispatch.kind for dispatch in held}}
    ids = [each.worker_id for each in idle]
    blocked, unmet = await blocks.standing(tx, ids), await missing_requirements.pairs_of(tx, ids)
    oversized = await memory.oversized(tx, ids, stale_seconds=stale_seconds)
    workers = [
        IdleWorker(
            worker_id=worker.worker_id,
            providers=worker.providers,
            kinds={kind for kind, slots in free.items() if slots.get(worker.worker_id, 0) > 0},
            blocked_hashes={hash_ for worker_id, hash_ in blocked if worker_id == worker.worker_id},
            unmet_hashes={hash_ for worker_id, hash_ in unmet if worker_id == worker.worker_id},
            oversized=oversized.get(worker.worker_id, frozenset()),
        )
        for worker in idle
    ]
    return wanted_by(workers, held)


async def _free_slots(tx: Tx, waiting: Sequence[LeaseRequest], kinds: Collection[tuple[str, int]]) -> dict[str, int]:
    slots = await demand.worker_slots(tx, [each.worker_id for each in waiting], kinds)
    return {
        each.worker_id: each.free_slots(found.max_concurrency, found.leases)
        for each in waiting
        if (found := slots.get(each.worker_id)) is not None
    }
