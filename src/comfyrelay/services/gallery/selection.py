"""Mark selected outputs, change their collections, and delete them."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.bulk import MAX_REFUSED, BulkAction, BulkResult
from comfyrelay.domain.gallery import MarkChange
from comfyrelay.errors import NotFound
from comfyrelay.protocol.gallery import MarksChanged
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.bulk import DELETE_CHUNK, BulkActions
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.paging import chunks
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes
from comfyrelay.store.tenant.library import gallery


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletionResult:
    """The deleted outputs, and the result for their jobs: jobs without remaining outputs are deleted."""

    deleted: Sequence[str]
    missing: Sequence[str]
    jobs: BulkResult


class OutputActions:
    def __init__(self, databases: Databases, bulk: BulkActions, removals: Removals) -> None:
        self._databases = databases
        self._bulk = bulk
        self._removals = removals

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
        """Delete these outputs. Jobs without remaining outputs are deleted with their logs."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            found = await gallery.by_ids(tx, tenant_id, set(ids))
            of_jobs = await gallery.of_jobs(tx, tenant_id, sorted({output.job_id for output in found.values()}))
        chosen = {job_id: {id_ for id_ in of_job if id_ in found} for job_id, of_job in of_jobs.items()}
        whole = {job_id for job_id, of_job in of_jobs.items() if len(chosen[job_id]) == len(of_job)}
        done = BulkResult()
        if whole:
            done = await self._bulk.run(tenant_id, BulkAction.DELETE, ids=sorted(whole), keep_files=keep_files)
        for part in chunks([job_id for job_id in of_jobs if job_id not in whole], DELETE_CHUNK):
            outputs = {job_id: chosen[job_id] for job_id in part}
            removed = await self._removals.remove_outputs(tenant_id, outputs, keep_files=keep_files)
            done.files += len(removed.files.removed)
            done.not_deleted += removed.files.not_deleted[: MAX_REFUSED - len(done.not_deleted)]
            done.refuse(removed.refused)
        async with shard.read() as tx:
            after = await gallery.by_ids(tx, tenant_id, found)
        return DeletionResult(deleted=sorted(found.keys() - after.keys()), missing=_missing(ids, set(found)), jobs=done)


def _missing(ids: Sequence[str], found: set[str]) -> list[str]:
    return [id_ for id_ in dict.fromkeys(ids) if id_ not in found]
