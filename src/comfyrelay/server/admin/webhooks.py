"""Webhook deliveries of all tenants, and steps that are stuck between the databases."""

from typing import Annotated

from fastapi import Query

from comfyrelay.domain.deliveries import DeliveryState, delivery_state
from comfyrelay.protocol.admin import operations as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.admin.router import admin_router
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import AnyId, Cursor, IdInPath, Limit
from comfyrelay.server.http.problems import may_answer
from comfyrelay.services.webhooks.overview import DeliveryOfTenant

router = admin_router()


@router.get("/webhooks/deliveries", responses=may_answer(404, 422))
async def list_deliveries(
    context: ContextOf,
    wanted: Annotated[DeliveryState | None, Query(alias="status")] = None,
    tenant: AnyId = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.TenantDelivery]]:
    """Webhook deliveries, newest first."""
    page = await context.engine.webhooks.overview.page(state=wanted, tenant_id=tenant, cursor=cursor, limit=limit)
    return page_of(page, _delivery)


@router.get("/webhooks/counts")
async def count_deliveries(context: ContextOf) -> Answer[wire.DeliveryCounts]:
    """The number of dead and of pending deliveries. A count equal to `most` may be higher."""
    return Answer(data=await context.engine.webhooks.overview.counts())


@router.post("/webhooks/deliveries/{delivery_id}/redeliver", responses=may_answer(404, 422))
async def redeliver(delivery_id: IdInPath, context: ContextOf) -> Answer[wire.TenantDelivery]:
    """Send it again now, with the same id. A dead delivery gets as many attempts as a new one."""
    found = await context.engine.webhooks.deliveries.send_again(delivery_id)
    [told] = await context.engine.webhooks.overview.add_emails([found])
    return Answer(data=_delivery(told), message="It is sent again.")


@router.get("/outbox/dead")
async def list_stuck_steps(context: ContextOf) -> Answer[wire.StuckSteps]:
    """Steps that have not been applied to the other database for a minute, oldest first; at most 200."""
    return Answer(data=wire.StuckSteps(items=await context.engine.operations.reconcile_runs.stuck()))


def _delivery(told: DeliveryOfTenant) -> wire.TenantDelivery:
    found = told.delivery
    status = delivery_state(found.status, found.attempts)
    return wire.TenantDelivery.of(told, found, status=status, next_attempt_at=found.due_at)
