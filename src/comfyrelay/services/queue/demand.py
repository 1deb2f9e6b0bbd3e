"""What is queued, who of those that wait could take it, and what busy workers hold that an idle one could run now."""

from collections.abc import Sequence

from comfyrelay.domain.routing import IdleWorker, Prefetched, Queued, to_recall
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.central import blocks, demand, dispatches

# So many of each kind are read; when they are gone, the next ones are.
QUEUED_AT_ONCE = 32
# A job that is about to begin where it is would only be moved.
RECALL_AFTER_SECONDS = 5.0


class Demand:
    """Reads that lock nothing: the claim checks everything once more, and locks."""

    def __init__(self, databases: Databases, decisions: Decisions) -> None:
        self._databases = databases
        self._decisions = decisions

    async def queued(self) -> list[Queued]:
        """What could be leased now, the first of each kind. One statement."""
        async with self._databases.central.read() as tx:
            return await demand.queued(tx, most=QUEUED_AT_ONCE, down_pools=self._databases.down())

    async def free_slots(self, worker_ids: Sequence[str], queued: Sequence[Queued]) -> dict[str, int]:
        """Which of the workers may run some of it, and how many free slots each has."""
        async with self._databases.central.read() as tx:
            return await demand.free_slots(tx, worker_ids, {each.kind for each in queued})

    async def prefetched(self) -> list[Prefetched]:
        """What busy workers have held for a while without beginning it."""
        async with self._databases.central.read() as tx:
            return await demand.prefetched(tx, for_seconds=RECALL_AFTER_SECONDS, most=QUEUED_AT_ONCE)

    async def recall(self, prefetched: Sequence[Prefetched], idle: Sequence[LeaseRequest]) -> int:
        """Ask for prefetched jobs back that those who are idle could run now; returns for how many."""
        worker_ids = [each.worker_id for each in idle]
        async with self._databases.central.read() as tx:
            kinds = {each.kind for each in prefetched}
            free = {kind: await demand.free_slots(tx, worker_ids, [kind]) for kind in kinds}
            blocked = await blocks.standing(tx, worker_ids)
        workers = [
            IdleWorker(
                worker_id=worker.worker_id,
                providers=worker.providers,
                kinds={kind for kind, slots in free.items() if slots.get(worker.worker_id, 0) > 0},
                blocked_hashes={hash_ for worker_id, hash_ in blocked if worker_id == worker.worker_id},
            )
            for worker in idle
        ]
        wanted = to_recall(prefetched, workers)
        return await self._decisions.recall(dispatches.numbered(wanted)) if wanted else 0
