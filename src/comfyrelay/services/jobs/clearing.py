"""Hide ended jobs from the queue view. They remain visible everywhere else.

A batch is hidden only as a whole: after it has ended, and if the outcomes of all its items were chosen.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from comfyrelay.domain.queue.states import UnitStatus
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import chunks
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes, clearing, jobs

CHUNK_SIZE = 500
# Subscribers reload everything if a change names more jobs than this.
MAX_NAMED = 300


class QueueClearing:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def count(self, tenant_id: str) -> dict[UnitStatus, int]:
        """Count the ended jobs of the queue page by status, for its filters."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            single = await clearing.count_unbatched(tx, tenant_id)
            counts = Counter({UnitStatus(status): number for status, number in single.items()})
            for of_batch in (await _ended_batches(tx, tenant_id)).values():
                counts.update({UnitStatus(status): number for status, number in of_batch.items()})
        return dict(counts)

    async def count_chosen(self, tenant_id: str, statuses: Collection[UnitStatus]) -> int:
        """Count the jobs that `clear` would hide."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            single = await clearing.count_unbatched(tx, tenant_id)
            chosen = await _chosen_batches(tx, tenant_id, statuses)
        of_batches = (sum(counts.values()) for counts in chosen.values())
        return sum(number for status, number in single.items() if status in statuses) + sum(of_batches)

    async def clear(self, tenant_id: str, statuses: Collection[UnitStatus]) -> int:
        """Hide jobs with these statuses, and batches that contain only such jobs. Returns the number of jobs."""
        shard = await self._databases.shard_of(tenant_id)

        async def work(tx: Tx) -> int:
            single = await clearing.unbatched(tx, tenant_id, statuses)
            chosen = await _chosen_batches(tx, tenant_id, statuses)
            named: list[str] = [*single]
            for chunk in chunks(single, CHUNK_SIZE):
                await clearing.clear_jobs(tx, chunk)
            for chunk in chunks(list(chosen), CHUNK_SIZE):
                named += await clearing.clear_batches(tx, chunk)
            if named:
                await changes.write(tx, {tenant_id: named[:MAX_NAMED]})
            return len(single) + sum(sum(counts.values()) for counts in chosen.values())

        return await shard.run(TransactionStep.TENANT, work)


async def _chosen_batches(tx: Tx, tenant_id: str, statuses: Collection[UnitStatus]) -> Mapping[str, Mapping[str, int]]:
    ended = await _ended_batches(tx, tenant_id)
    return {id_: counts for id_, counts in ended.items() if counts.keys() <= set(statuses)}


async def _ended_batches(tx: Tx, tenant_id: str) -> Mapping[str, Mapping[str, int]]:
    """Return the job counts by status of each ended batch that has jobs."""
    found: dict[str, Mapping[str, int]] = {}
    for chunk in chunks(await clearing.finished_batches(tx, tenant_id), CHUNK_SIZE):
        found |= await jobs.count_in_batches(tx, tenant_id, chunk)
    return found
