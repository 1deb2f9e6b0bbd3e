"""Erase the data of deleted accounts: cancel the jobs, then delete rows and objects.

A running job ends only when its worker learns of the cancellation, and uploads may arrive while their URLs are valid.
The data is therefore erased repeatedly until all URLs have expired.
"""

import structlog

from comfyrelay.domain.ids import tenant_folder
from comfyrelay.domain.records.accounts import TenantRecord
from comfyrelay.errors import DatabaseUnavailable, StorageUnavailable
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.queue import Queue
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central import audit_log, tenants
from comfyrelay.store.central import erasure as central_erasure
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import erasure

log = structlog.get_logger(__name__)

CANCEL_SIZE = 1000
REMOVE_SIZE = 1000


class Erasure:
    def __init__(self, context: ServiceContext, queue: Queue) -> None:
        self._databases = context.databases
        self._objects = context.objects
        self._control = queue.control
        self._url_seconds = context.settings.lease_url_ttl_seconds

    async def run_once(self) -> int:
        """Erase the remaining data of deleted accounts, and return the number of these accounts."""
        async with self._databases.central.read() as tx:
            found = await tenants.to_erase(tx)
        for tenant in found:
            try:
                await self._erase(tenant)
            except (DatabaseUnavailable, StorageUnavailable) as error:
                log.info("erasure.postponed", tenant_id=tenant.id, why=error.detail)
        return len(found)

    async def _erase(self, tenant: TenantRecord) -> None:
        shard = self._databases.shard(tenant.shard)
        async with shard.read() as tx:
            unfinished = await erasure.unfinished_jobs(tx, tenant.id, limit=CANCEL_SIZE)
        if unfinished:
            await self._control.cancel_jobs(tenant.id, unfinished)
            async with shard.read() as tx:
                unfinished = await erasure.unfinished_jobs(tx, tenant.id, limit=1)
        if unfinished:
            # A worker is still running a job, and its report needs the row.
            return
        await shard.run(TransactionStep.ERASE, lambda tx: erasure.erase_rows(tx, tenant.id))
        await self._remove_objects(tenant.id)

        async def work(tx: Tx) -> None:
            await central_erasure.erase_workflows(tx, tenant.id)
            await central_erasure.erase_texts(tx, tenant.id)
            await audit_log.erase_person(tx, user_id=tenant.name, tenant_id=tenant.id)
            await tenants.set_erased(tx, tenant.id, after_seconds=self._url_seconds)

        await self._databases.central.run(TransactionStep.ERASE, work)

    async def _remove_objects(self, tenant_id: str) -> None:
        paths: list[str] = []
        async for stored in self._objects.list(tenant_folder(tenant_id)):
            paths.append(stored.path)
            if len(paths) == REMOVE_SIZE:
                await self._objects.remove_many(paths)
                paths = []
        if paths:
            await self._objects.remove_many(paths)
