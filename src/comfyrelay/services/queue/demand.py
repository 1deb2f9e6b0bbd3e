"""Find queued dispatches, idle workers for them, and prefetched dispatches that idle workers could run instead."""

from collections.abc import Collection, Sequence

from comfyrelay.domain.autoscaling.spec import MachineProviderName
from comfyrelay.domain.queue.routing import IdleWorker, QueuedDispatch, ReclaimableDispatch, wanted_by
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue.decisions import Decisions
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.store.central.autoscaling import observations
from comfyrelay.store.central.queue import blocks, demand, dispatches, memory, missing_requirements
from comfyrelay.store.database import Tx

# Number of queued dispatches read per kind. The next dispatches are read after these have been leased.
QUEUED_AT_ONCE = 32
# Do not recall a job that may be about to start.
RECALL_AFTER_SECONDS = 5.0


class Demand:
    """Reads the queue without locks. Leasing locks the rows and checks everything again."""

    def __init__(self, context: ServiceContext, decisions: Decisions) -> None:
        self._databases = context.databases
        self._decisions = decisions
        self._offline_seconds = context.settings.worker_offline_seconds

    async def queued(self) -> list[QueuedDispatch]:
        """Return the first dispatches of each kind that could be leased now."""
        async with self._databases.central.read() as tx:
            return await demand.queued(tx, limit=QUEUED_AT_ONCE, down_shards=self._databases.down())

    async def free_slots(self, waiting: Sequence[LeaseRequest], queued: Sequence[QueuedDispatch]) -> dict[str, int]:
        """Return the free slots of the waiting workers that may run any of `queued`."""
        async with self._databases.central.read() as tx:
            return await _free_slots(tx, waiting, {dispatch.kind for dispatch in queued})

    async def scaled_fleets(self) -> frozenset[int]:
        """Return the fleets whose machines come and go with the load."""
        async with self._databases.central.read() as tx:
            fleets = await observations.all_fleets(tx)
        return frozenset(fleet.id for fleet in fleets if fleet.machine_spec.provider != MachineProviderName.STATIC)

    async def prefetched(self) -> list[ReclaimableDispatch]:
        """Return dispatches that busy workers have held for a while without starting them."""
        async with self._databases.central.read() as tx:
            return await demand.prefetched(tx, for_seconds=RECALL_AFTER_SECONDS, limit=QUEUED_AT_ONCE)

    async def recall(self, prefetched: Sequence[ReclaimableDispatch], idle: Sequence[LeaseRequest]) -> int:
        """Reclaim prefetched jobs that idle workers could run now, and return the number of jobs."""
        async with self._databases.central.read() as tx:
            wanted = await self._find_wanted(tx, prefetched, idle)
        return await self._decisions.recall(dispatches.by_ids(wanted)) if wanted else 0

    async def late(self, waiting: Sequence[LeaseRequest]) -> list[int]:
        """Return the ids of dispatches with an expired lease that a waiting worker could run now."""
        if not waiting:
            return []
        async with self._databases.central.read() as tx:
            late = await demand.late(tx, down_shards=self._databases.down())
            return await self._find_wanted(tx, late, waiting) if late else []

    async def _find_wanted(
        self, tx: Tx, held: Sequence[ReclaimableDispatch], idle: Sequence[LeaseRequest]
    ) -> list[int]:
        free = {kind: await _free_slots(tx, idle, [kind]) for kind in {dispatch.kind for dispatch in held}}
        ids = [request.worker_id for request in idle]
        blocked, unmet = await blocks.blocked_pairs(tx, ids), await missing_requirements.pairs_of(tx, ids)
        oversized = await memory.oversized(tx, ids, offline_seconds=self._offline_seconds)
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
    slots = await demand.worker_slots(tx, [request.worker_id for request in waiting], kinds)
    return {
        request.worker_id: request.free_slots(found.max_concurrency, found.leases)
        for request in waiting
        if (found := slots.get(request.worker_id)) is not None
    }
