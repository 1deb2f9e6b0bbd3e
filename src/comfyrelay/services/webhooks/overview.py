"""Webhooks of all tenants, as an operator looks at them."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.deliveries import DeliveryState, DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.store.central import tenants
from comfyrelay.store.tenant import all_deliveries

# Whoever has more of them need not know how many more.
MOST_COUNTED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryOfTenant:
    delivery: DeliveryRecord
    tenant_email: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryCounts:
    """How many were given up, and how many are still to be delivered; `most` stands for as many or more."""

    dead: int
    pending: int
    most: int


class DeliveryOverview:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def page(
        self,
        *,
        standing: DeliveryState | None = None,
        tenant_id: str | None = None,
        cursor: str | None = None,
        limit: int,
    ) -> Listed[DeliveryOfTenant]:
        """Of all shards that can be reached, newest first: their ids begin with the time."""
        found: list[DeliveryRecord] = []
        ends: list[str] = []
        shards = list(self._databases.shards) if tenant_id is None else [await self._databases.shard_name_of(tenant_id)]
        for shard in shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        some, before = await all_deliveries.page(
                            tx, standing=standing, tenant_id=tenant_id, before_id=cursor, limit=limit
                        )
            except DatabaseUnavailable:
                continue
            found += some
            if before is not None:
                ends.append(before)
        found.sort(key=lambda each: each.id, reverse=True)
        # one shard has been looked through no further than this: what is older there may be newer than the rest
        edge = max(ends, default="")
        items = [each for each in found if each.id >= edge][:limit]
        after = (items[-1].id if items else edge) if len(items) < len(found) else edge or None
        return Listed(items=await self.with_emails(items), next_cursor=after)

    async def with_emails(self, found: Sequence[DeliveryRecord]) -> list[DeliveryOfTenant]:
        """With the email of each one's tenant."""
        async with self._databases.central.read() as tx:
            emails = await tenants.emails_of(tx, {each.tenant_id for each in found})
        return [DeliveryOfTenant(delivery=each, tenant_email=emails.get(each.tenant_id)) for each in found]

    async def counts(self) -> DeliveryCounts:
        """Of all shards that can be reached."""
        dead = pending = 0
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        dead += await all_deliveries.count(tx, DeliveryStatus.GIVEN_UP, most=MOST_COUNTED)
                        pending += await all_deliveries.count(tx, DeliveryStatus.PENDING, most=MOST_COUNTED)
            except DatabaseUnavailable:
                continue
        return DeliveryCounts(dead=min(dead, MOST_COUNTED), pending=min(pending, MOST_COUNTED), most=MOST_COUNTED)
