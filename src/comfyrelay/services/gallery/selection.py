"""Mark selected outputs, change their collections, and delete them."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.bulk import BulkAction, BulkResult
from comfyrelay.domain.gallery import MarkChange
from comfyrelay.errors import NotFound
from comfyrelay.protocol.gallery import MarksChanged
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.bulk import BulkActions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes
from comfyrelay.store.tenant.library import gallery


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletionResult:
    """The deleted outputs, and the result of deleting their jobs."""

    deleted: Sequence[str]
    missing: Sequence[str]
    jobs: BulkResult


class OutputActions:
    def __init__(self, databases: Databases, bulk: BulkActions) -> None:
        self._databases = databases
        self._bulk = bulk

    async def mark(
        self,
        tenant_id: str,
        ids: Sequence[str],
        change: MarkChange,
        *,
        add_to: str | None = None,
        remove_from: str | None = None,
    ) -> MarksChanged:
        """Mark outputs, and add them to or remove them from a collection, in one transaction."""

        async def work(tx: Tx) -> list[str]:
            for collection_id in filter(None, (add_to, remove_from)):
                if not await gallery.lock_collection(tx, tenant_id, collection_id):
                    raise NotFound(f"You have no collection {collection_id!r}.")
            found = list(await gallery.by_ids(tx, tenant_id, set(ids)))
            if found:
                await gallery.mark(tx, tenant_id, found, change)
                if add_to is not None:
                    await gallery.add_to(tx, tenant_id, add_to, found)
                if remove_from is not None:
                    await gallery.remove_from(tx, tenant_id, remove_from, found)
                await changes.write_marked(tx, tenant_id, found)
            return found

        found = set(await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work))
        return MarksChanged(changed=len(found), missing=_missing(ids, found))

    async def delete(self, tenant_id: str, ids: Sequence[str], *, keep_files: bool = False) -> DeletionResult:
        """Delete the jobs of these outputs, with their logs and all their outputs."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            found = await gallery.by_ids(tx, tenant_id, set(ids))
            job_ids = sorted({output.job_id for output in found.values()})
            before = set(await gallery.of_jobs(tx, tenant_id, job_ids))
        done = BulkResult()
        if job_ids:
            done = await self._bulk.run(tenant_id, BulkAction.DELETE, ids=job_ids, keep_files=keep_files)
        async with shard.read() as tx:
            after = await gallery.by_ids(tx, tenant_id, before)
        return DeletionResult(deleted=sorted(before - after.keys()), missing=_missing(ids, set(found)), jobs=done)


def _missing(ids: Sequence[str], found: set[str]) -> list[str]:
    return [id_ for id_ in dict.fromkeys(ids) if id_ not in found]
