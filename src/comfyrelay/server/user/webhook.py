"""The webhook of a user, and its deliveries."""

from typing import Annotated

from fastapi import Query, status

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord, TenantWebhook
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.pages import page_of
from comfyrelay.server.http.parameters import Cursor, IdInPath, Limit
from comfyrelay.server.http.problems import may_answer
from comfyrelay.server.http.routers import Router

router = Router(prefix="/api", tags=["webhooks"], route_class=BodyRoute)


@router.get("/webhook", responses=may_answer(401, 503))
async def webhook(context: ContextOf, user: CurrentUser) -> Answer[wire.Webhook]:
    """The webhook that is called when jobs end."""
    return Answer(data=_webhook(await context.engine.webhooks.endpoints.get(user.tenant_id)))


@router.put("/webhook", responses=may_answer(401, 403, 422, 503))
async def put_webhook(body: wire.PutWebhook, context: ContextOf, user: CurrentUser) -> Answer[wire.Webhook]:
    """Set the webhook. The signing secret is shown only once."""
    changed = await context.engine.webhooks.endpoints.set_webhook(
        user.tenant_id, url=body.url, rotate_secret=body.rotate_secret
    )
    return Answer(data=_webhook(changed.webhook, secret=changed.secret), message="Saved.")


@router.delete("/webhook", status_code=status.HTTP_204_NO_CONTENT, responses=may_answer(401, 403, 503))
async def delete_webhook(context: ContextOf, user: CurrentUser) -> None:
    """Remove the webhook. Jobs with their own URL still call theirs."""
    await context.engine.webhooks.endpoints.remove_webhook(user.tenant_id)


@router.post("/webhook/test", responses=may_answer(401, 403, 409, 429, 503))
async def test_webhook(context: ContextOf, user: CurrentUser) -> Answer[wire.TriedWebhook]:
    """Send a signed message of the type `webhook.test` now, once, and return the response."""
    context.webhook_tests.check(user.tenant_id)
    sent = await context.engine.webhooks.deliveries.send_test(user.tenant_id)
    data = wire.TriedWebhook(is_delivered=sent.is_ok, status_code=sent.status_code, error=sent.error)
    return Answer(data=data, message="It arrived." if sent.is_ok else "It did not arrive.")


@router.get("/deliveries", responses=may_answer(401, 422, 503))
async def all_deliveries(
    context: ContextOf,
    user: CurrentUser,
    wanted: Annotated[DeliveryStatus | None, Query(alias="status")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.Delivery]]:
    """The webhook deliveries of your jobs, newest first."""
    endpoints = context.engine.webhooks.endpoints
    return page_of(await endpoints.page(user.tenant_id, status=wanted, before_id=cursor, limit=limit), _delivery)


@router.post("/deliveries/{delivery_id}/redeliver", responses=may_answer(401, 403, 404, 422, 429, 503))
async def redeliver(delivery_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Delivery]:
    """Send it again now, with the same id, to the current URL of its job."""
    context.redeliveries.check(user.tenant_id)
    found = await context.engine.webhooks.deliveries.send_again(delivery_id, tenant_id=user.tenant_id)
    return Answer(data=_delivery(found), message="It is sent again.")


@router.get("/ai-jobs/{job_id}/deliveries", responses=may_answer(401, 404, 422, 503))
async def deliveries(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deliveries]:
    """The webhook deliveries of this job."""
    found = await context.engine.webhooks.endpoints.list_deliveries(user.tenant_id, job_id)
    return Answer(data=wire.Deliveries(deliveries=[_delivery(each) for each in found]))


def _delivery(found: DeliveryRecord) -> wire.Delivery:
    return wire.Delivery.of(found, next_attempt_at=found.due_at)


def _webhook(found: TenantWebhook | None, *, secret: str | None = None) -> wire.Webhook:
    if found is None:
        return wire.Webhook(url=None, has_secret=False, updated_at=None)
    return wire.Webhook.of(found, has_secret=True, secret=secret)
