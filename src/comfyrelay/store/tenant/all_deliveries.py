"""Webhook deliveries of all tenants of a shard, for operators."""

from typing import Any

from sqlalchemy import ColumnElement, func, select

from comfyrelay.domain.deliveries import DeliveryState, DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_page
from comfyrelay.store.tenant.tables import webhook_deliveries as d
from comfyrelay.store.types import sql_literal

_DELIVERY = [d.c[name] for name in DeliveryRecord.__dataclass_fields__]
_STATUS = {
    DeliveryState.DEAD: DeliveryStatus.GIVEN_UP,
    DeliveryState.FAILING: DeliveryStatus.PENDING,
    DeliveryState.PENDING: DeliveryStatus.PENDING,
    DeliveryState.DELIVERED: DeliveryStatus.DELIVERED,
}


async def page(
    tx: Tx, *, state: DeliveryState | None, tenant_id: str | None, before_id: str | None, limit: int
) -> tuple[list[DeliveryRecord], str | None]:
    """Return a page, newest first, and the id of the next page."""
    query = select(*_DELIVERY)
    if state is not None:
        query = query.where(d.c.status == sql_literal(_STATUS[state]))

    def conditions(c: Any) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if state is DeliveryState.FAILING:
            found.append(c.attempts > 0)
        if state is DeliveryState.PENDING:
            found.append(c.attempts == 0)
        if tenant_id is not None:
            found.append(c.tenant_id == tenant_id)
        return found

    unindexed = conditions if conditions(d.c) else None
    return await newest_page(tx, DeliveryRecord, query, d.c.id, before=before_id, limit=limit, unindexed=unindexed)


async def count(tx: Tx, status: DeliveryStatus, *, most: int) -> int:
    """Count the deliveries with this status by the index, up to `most`."""
    counted = select(d.c.id).where(d.c.status == sql_literal(status)).limit(most).subquery()
    return int(await tx.scalar(select(func.count()).select_from(counted)) or 0)
