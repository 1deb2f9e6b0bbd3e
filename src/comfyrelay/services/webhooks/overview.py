"""Deliveries of all tenants, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.deliveries import DeliveryState, DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol.admin.operations import DeliveryCounts
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.store.central import tenants
from comfyrelay.store.tenant import all_deliveries

# Counting stops here.
MAX_COUNTED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryOfTenant:
    delivery: DeliveryRecord
    tenant_email: str | None


class DeliveryOverview:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    async def page(
        self,
        *,
        state: DeliveryState | None = None,
        tenant_id: str | None = None,
        cursor: str | None = None,
        limit: int,
    ) -> Listed[DeliveryOfTenant]:
        """Deliveries of all reachable shards, newest first. Ids sort by time."""
        found: list[DeliveryRecord] = []
        ends: list[str] = []
        shards = list(self._databases.shards) if tenant_id is None else [await self._databases.shard_name_of(tenant_id)]
        for shard in shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        page, before = await all_deliveries.page(
                            tx, state=state, tenant_id=tenant_id, before_id=cursor, limit=limit
                        )
            except DatabaseUnavailable:
                continue
            found += page
            if before is not None:
                ends.append(before)
        found.sort(key=lambda each: each.id, reverse=True)
        # a shard was read only down to here: its unread deliveries may be newer than older ones of other shards
        edge = max(ends, default="")
        items = [each for each in found if each.id >= edge][:limit]
        after = (items[-1].id if items else edge) if len(items) < len(found) else edge or None
        return Listed(items=await self.add_emails(items), next_cursor=after)

    async def add_emails(self, found: Sequence[DeliveryRecord]) -> list[DeliveryOfTenant]:
        """Add the email of each tenant."""
        async with self._databases.central.read() as tx:
            emails = await tenants.emails_of(tx, {each.tenant_id for each in found})
        return [DeliveryOfTenant(delivery=each, tenant_email=emails.get(each.tenant_id)) for each in found]

    async def counts(self) -> DeliveryCounts:
        """Counts of all reachable shards."""
        dead = pending = 0
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        dead += await all_deliveries.count(tx, DeliveryStatus.GIVEN_UP, most=MAX_COUNTED)
                        pending += await all_deliveries.count(tx, DeliveryStatus.PENDING, most=MAX_COUNTED)
            except DatabaseUnavailable:
                continue
        return DeliveryCounts(dead=min(dead, MAX_COUNTED), pending=min(pending, MAX_COUNTED), most=MAX_COUNTED)
