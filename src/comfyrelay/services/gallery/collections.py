"""Collections of outputs, which users create and name."""

from dataclasses import dataclass
from datetime import datetime

from comfyrelay.domain.ids import new_id
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.gallery.listing import GalleryListing, GalleryOutputView
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes
from comfyrelay.store.tenant.library import gallery

# Limited, because collections are listed without paging.
MAX_COLLECTIONS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionView:
    """A collection of `count` outputs. `cover` is the newest output with a poster, or else the newest output."""

    id: str
    name: str
    created_at: datetime
    count: int
    cover: GalleryOutputView | None


class CollectionService:
    def __init__(self, databases: Databases, listing: GalleryListing) -> None:
        self._databases = databases
        self._listing = listing

    async def list_collections(self, tenant_id: str) -> list[CollectionView]:
        """Return all collections, sorted by name."""
        return await self._views(tenant_id)

    async def create(self, tenant_id: str, name: str) -> CollectionView:
        collection_id = new_id()

        async def work(tx: Tx) -> None:
            if await gallery.count_collections(tx, tenant_id) >= MAX_COLLECTIONS:
                raise Conflict(f"You already have {MAX_COLLECTIONS} collections, which is the limit. Delete one first.")
            await gallery.create_collection(tx, id_=collection_id, tenant_id=tenant_id, name=name)
            await changes.write_marked(tx, tenant_id)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work)
        return await self._view(tenant_id, collection_id)

    async def rename(self, tenant_id: str, collection_id: str, name: str) -> CollectionView:
        async def work(tx: Tx) -> None:
            if not await gallery.rename_collection(tx, tenant_id, collection_id, name):
                raise _not_found(collection_id)
            await changes.write_marked(tx, tenant_id)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work)
        return await self._view(tenant_id, collection_id)

    async def remove(self, tenant_id: str, collection_id: str) -> None:
        """Delete a collection, but not its outputs."""

        async def work(tx: Tx) -> None:
            if not await gallery.remove_collection(tx, tenant_id, collection_id):
                raise _not_found(collection_id)
            # The collection may have had any number of outputs, so all outputs count as changed.
            await changes.write_marked(tx, tenant_id, None)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work)

    async def _view(self, tenant_id: str, collection_id: str) -> CollectionView:
        found = await self._views(tenant_id, id_=collection_id)
        if not found:
            raise _not_found(collection_id)
        return found[0]

    async def _views(self, tenant_id: str, *, id_: str | None = None) -> list[CollectionView]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.all_collections(tx, tenant_id, id_=id_)
        outputs = await self._listing.by_ids(tenant_id, [row.cover_id for row in found if row.cover_id])
        covers = {view.output.id: view for view in await self._listing.views(tenant_id, list(outputs.values()))}
        return [
            CollectionView(
                id=row.id,
                name=row.name,
                created_at=row.created_at,
                count=row.outputs,
                cover=covers.get(row.cover_id or ""),
            )
            for row in found
        ]


def _not_found(collection_id: str) -> NotFound:
    return NotFound(f"You have no collection {collection_id!r}.")
