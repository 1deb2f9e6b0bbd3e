"""Clearing the queue: what has ended is put out of sight, and stays where it is everywhere else."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from comfyrelay.domain.queue.states import UnitStatus, ended_as
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes, clearing, jobs

AT_ONCE = 500
# Whoever follows fetches everything anew after more than this.
MOST_NAMED = 300


class Clearing:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def count(self, tenant_id: str) -> dict[UnitStatus, int]:
        """How many jobs there are to clear, by how they, or the batches that they belong to, ended."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            alone = await clearing.count_alone(tx, tenant_id)
            counts = Counter({UnitStatus(status): number for status, number in alone.items()})
            for of_batch in (await _ended_batches(tx, tenant_id)).values():
                counts[ended_as(of_batch)] += sum(of_batch.values())
        return dict(counts)

    async def clear(self, tenant_id: str, statuses: Collection[UnitStatus]) -> int:
        """How many jobs that were shown are not any more."""
        shard = await self._databases.shard_of(tenant_id)

        async def work(tx: Tx) -> int:
            alone = await clearing.alone(tx, tenant_id, statuses)
            ended = await _ended_batches(tx, tenant_id)
            chosen = {id_: counts for id_, counts in ended.items() if ended_as(counts) in statuses}
            named: list[str] = [*alone]
            for some in _parts(alone):
                await clearing.clear_jobs(tx, some)
            for some in _parts(list(chosen)):
                named += await clearing.clear_batches(tx, some)
            if named:
                await changes.write(tx, {tenant_id: named[:MOST_NAMED]})
            return len(alone) + sum(sum(counts.values()) for counts in chosen.values())

        return await shard.run(TransactionStep.TENANT, work)


async def _ended_batches(tx: Tx, tenant_id: str) -> Mapping[str, Mapping[str, int]]:
    """Their counts by status; one without jobs is none."""
    found: dict[str, Mapping[str, int]] = {}
    for some in _parts(await clearing.ended_batches(tx, tenant_id)):
        found |= await jobs.count_in_batches(tx, tenant_id, some)
    return found


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + AT_ONCE] for at in range(0, len(ids), AT_ONCE))
