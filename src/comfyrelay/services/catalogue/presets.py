"""Presets: named inputs that a user can apply again."""

from collections.abc import Mapping
from typing import Any

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.catalogue import PresetRecord
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage, cut_page
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import ledger
from comfyrelay.store.tenant.library import presets

MAX_PRESETS = 1000


class Presets:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def page(self, tenant_id: str, *, before_id: str | None, limit: int) -> ResultPage[PresetRecord]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found, has_more = await presets.page(tx, tenant_id, before_id=before_id, limit=limit)
        return cut_page(found, has_more=has_more)

    async def find(self, tenant_id: str, name: str) -> PresetRecord:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await presets.named(tx, tenant_id, name)
        if found is None:
            raise NotFound(f"There is no preset {name!r}.")
        return found

    async def create(self, tenant_id: str, *, name: str, values: Mapping[str, Any]) -> PresetRecord:
        shard = await self._databases.shard_of(tenant_id)
        fields = {"id": new_id(), "tenant_id": tenant_id, "name": name, "settings": dict(values)}

        async def work(tx: Tx) -> PresetRecord:
            # The lock prevents concurrent calls from exceeding the limit together.
            await ledger.lock_wallet(tx, tenant_id)
            if await presets.count(tx, tenant_id) >= MAX_PRESETS:
                raise Conflict(f"You have {MAX_PRESETS:,} presets, which is the limit. Delete one first.")
            return await presets.create(tx, **fields)

        return await shard.run(TransactionStep.TENANT, work)

    async def remove(self, tenant_id: str, preset_id: str) -> None:
        shard = await self._databases.shard_of(tenant_id)
        if not await shard.run(TransactionStep.TENANT, lambda tx: presets.remove(tx, tenant_id, preset_id)):
            raise NotFound("You have no such preset.")
