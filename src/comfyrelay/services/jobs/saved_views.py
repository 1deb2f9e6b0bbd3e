"""Saved views of the web app: named filters and sort orders."""

from collections.abc import Mapping

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.jobs import SavedView
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.library import saved_views

MAX_VIEWS = 50


class SavedViewService:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def list_views(self, tenant_id: str, area: str) -> list[SavedView]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            return await saved_views.of_area(tx, tenant_id, area)

    async def save(self, tenant_id: str, *, area: str, name: str, search: Mapping[str, str]) -> SavedView:
        """Save a view, replacing any view with the same name."""
        shard = await self._databases.shard_of(tenant_id)

        async def work(tx: Tx) -> SavedView:
            known = await saved_views.of_area(tx, tenant_id, area)
            if len(known) >= MAX_VIEWS and name not in {view.name for view in known}:
                raise Conflict(f"There are already {MAX_VIEWS} views. Delete one first.")
            return await saved_views.save(tx, id_=new_id(), tenant_id=tenant_id, area=area, name=name, search=search)

        return await shard.run(TransactionStep.TENANT, work)

    async def remove(self, tenant_id: str, view_id: str) -> None:
        shard = await self._databases.shard_of(tenant_id)
        if not await shard.run(TransactionStep.TENANT, lambda tx: saved_views.remove(tx, tenant_id, view_id)):
            raise NotFound("You have no such view.")
