"""Collections: outputs that a user gathers under a name."""

from dataclasses import dataclass
from datetime import datetime

from comfyrelay.domain.ids import new_id
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.gallery.listing import GalleryListing, GalleryOutput
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes
from comfyrelay.store.tenant.library import gallery

# All of them are listed at once.
MOST_COLLECTIONS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionView:
    """`cover` is the newest of the `count` outputs in it that has a poster; where none has, the newest."""

    id: str
    name: str
    created_at: datetime
    count: int
    cover: GalleryOutput | None


class CollectionService:
    def __init__(self, databases: Databases, listing: GalleryListing) -> None:
        self._databases = databases
        self._listing = listing

    async def all(self, tenant_id: str) -> list[CollectionView]:
        """By name."""
        return await self._views(tenant_id)

    async def create(self, tenant_id: str, name: str) -> CollectionView:
        made = new_id()

        async def work(tx: Tx) -> None:
            if await gallery.count_collections(tx, tenant_id) >= MOST_COLLECTIONS:
                raise Conflict(f"There are {MOST_COLLECTIONS} collections, the most that there may be: delete one.")
            await gallery.create_collection(tx, id_=made, tenant_id=tenant_id, name=name)
            await changes.write_marked(tx, tenant_id)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work)
        return await self._one(tenant_id, made)

    async def rename(self, tenant_id: str, collection_id: str, name: str) -> CollectionView:
        async def work(tx: Tx) -> None:
            if not await gallery.rename_collection(tx, tenant_id, collection_id, name):
                raise _not_there(collection_id)
            await changes.write_marked(tx, tenant_id)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work)
        return await self._one(tenant_id, collection_id)

    async def remove(self, tenant_id: str, collection_id: str) -> None:
        """What is in it stays where it is."""

        async def work(tx: Tx) -> None:
            if not await gallery.remove_collection(tx, tenant_id, collection_id):
                raise _not_there(collection_id)
            # who knows how many were in it
            await changes.write_marked(tx, tenant_id, None)

        await (await self._databases.shard_of(tenant_id)).run(TransactionStep.GALLERY, work)

    async def _one(self, tenant_id: str, collection_id: str) -> CollectionView:
        found = await self._views(tenant_id, id_=collection_id)
        if not found:
            raise _not_there(collection_id)
        return found[0]

    async def _views(self, tenant_id: str, *, id_: str | None = None) -> list[CollectionView]:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await gallery.all_collections(tx, tenant_id, id_=id_)
        covers = await self._listing.by_ids(tenant_id, [each.cover_id for each in found if each.cover_id])
        shown = {each.made.id: each for each in await self._listing.views(tenant_id, list(covers.values()))}
        return [
            CollectionView(
                id=each.id,
                name=each.name,
                created_at=each.created_at,
                count=each.outputs,
                cover=shown.get(each.cover_id or ""),
            )
            for each in found
        ]


def _not_there(collection_id: str) -> NotFound:
    return NotFound(f"There is no collection {collection_id!r} of yours.")
