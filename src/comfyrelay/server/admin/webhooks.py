"""Webhook deliveries of all tenants, and steps that are stuck between the databases."""

from typing import Annotated

from fastapi import Query

from comfyrelay.domain.deliveries import DeliveryState, delivery_state
from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer, Items, Page
from comfyrelay.protocol.records import StuckStep
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, TextFilter, page_of
from comfyrelay.services.webhooks.overview import DeliveryOfTenant

router = admin_router()


@router.get("/webhooks/deliveries", responses=error_responses(404, 422))
async def list_deliveries(
    context: ContextOf,
    state: Annotated[DeliveryState | None, Query(alias="status")] = None,
    tenant: TextFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.TenantDelivery]]:
    """List webhook deliveries, newest first."""
    page = await context.engine.webhooks.overview.page(state=state, tenant_id=tenant, cursor=cursor, limit=limit)
    return page_of(page, _delivery)


@router.get("/webhooks/counts")
async def count_deliveries(context: ContextOf) -> Answer[wire.DeliveryCounts]:
    """Count dead and pending deliveries. If a count equals `max_counted`, the real number may be higher."""
    return Answer(data=await context.engine.webhooks.overview.counts())


@router.post("/webhooks/deliveries/{delivery_id}/redeliver", responses=error_responses(404, 422))
async def redeliver(delivery_id: IdInPath, context: ContextOf) -> Answer[wire.TenantDelivery]:
    """Send a webhook again now, with the same id. A dead delivery gets as many attempts as a new one."""
    record = await context.engine.webhooks.deliveries.send_again(delivery_id)
    [delivery] = await context.engine.webhooks.overview.add_emails([record])
    return Answer(data=_delivery(delivery), message="The webhook is sent again.")


@router.get("/outbox/dead")
async def list_stuck_steps(context: ContextOf) -> Answer[Items[StuckStep]]:
    """List up to 200 steps that were not applied to the other database within a minute, oldest first."""
    return Answer(data=Items(items=await context.engine.operations.reconcile_runs.stuck()))


def _delivery(view: DeliveryOfTenant) -> wire.TenantDelivery:
    record = view.delivery
    status = delivery_state(record.status, record.attempts)
    return wire.TenantDelivery.of(view, record, status=status, next_attempt_at=record.due_at)
