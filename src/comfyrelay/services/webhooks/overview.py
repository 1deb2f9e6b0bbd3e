"""Deliveries of all tenants, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass

from comfyrelay.domain.deliveries import DeliveryState, DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol.admin.operations import DeliveryCounts
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import ResultPage
from comfyrelay.store.central import tenants
from comfyrelay.store.tenant import deliveries

# Counts above this number are not exact.
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
    ) -> ResultPage[DeliveryOfTenant]:
        """Return deliveries of all reachable shards, newest first. Ids sort by time."""
        found: list[DeliveryRecord] = []
        last_ids: list[str] = []
        shards = list(self._databases.shards) if tenant_id is None else [await self._databases.shard_name_of(tenant_id)]
        for shard in shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        page, before = await deliveries.page_of_all(
                            tx, state=state, tenant_id=tenant_id, before_id=cursor, limit=limit
                        )
            except DatabaseUnavailable:
                continue
            found += page
            if before is not None:
                last_ids.append(before)
        found.sort(key=lambda delivery: delivery.id, reverse=True)
        # One shard was read only down to this id. Its unread deliveries may be newer than deliveries of other shards.
        edge = max(last_ids, default="")
        items = [delivery for delivery in found if delivery.id >= edge][:limit]
        after = (items[-1].id if items else edge) if len(items) < len(found) else edge or None
        return ResultPage(items=await self.add_emails(items), next_cursor=after)

    async def add_emails(self, found: Sequence[DeliveryRecord]) -> list[DeliveryOfTenant]:
        """Add the email of each tenant."""
        async with self._databases.central.read() as tx:
            emails = await tenants.emails_by_tenant(tx, {delivery.tenant_id for delivery in found})
        return [DeliveryOfTenant(delivery=delivery, tenant_email=emails.get(delivery.tenant_id)) for delivery in found]

    async def counts(self) -> DeliveryCounts:
        """Count the deliveries of all reachable shards."""
        dead = pending = 0
        for shard in self._databases.shards:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        dead += await deliveries.count(tx, DeliveryStatus.GIVEN_UP, limit=MAX_COUNTED)
                        pending += await deliveries.count(tx, DeliveryStatus.PENDING, limit=MAX_COUNTED)
            except DatabaseUnavailable:
                continue
        return DeliveryCounts(dead=min(dead, MAX_COUNTED), pending=min(pending, MAX_COUNTED), max_counted=MAX_COUNTED)
