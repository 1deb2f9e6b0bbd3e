"""The webhook of a user, and its deliveries."""

from typing import Annotated

from fastapi import Query

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.records.webhooks import DeliveryRecord, TenantWebhook
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer, Page
from comfyrelay.server.http.auth import CurrentUser
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Cursor, IdInPath, Limit, page_of, user_router

router = user_router("/api", "webhooks")


@router.get("/webhook")
async def webhook(context: ContextOf, user: CurrentUser) -> Answer[wire.Webhook]:
    """Get the webhook, which is called when jobs end."""
    return Answer(data=_webhook(await context.engine.webhooks.endpoints.get(user.tenant_id)))


@router.put("/webhook", responses=error_responses(403, 422))
async def put_webhook(body: wire.PutWebhook, context: ContextOf, user: CurrentUser) -> Answer[wire.Webhook]:
    """Set the webhook. The signing secret is shown only once."""
    changed = await context.engine.webhooks.endpoints.set_webhook(
        user.tenant_id, url=body.url, rotate_secret=body.rotate_secret
    )
    return Answer(data=_webhook(changed.webhook, secret=changed.secret), message="Saved.")


@router.delete("/webhook", status_code=204, responses=error_responses(403))
async def delete_webhook(context: ContextOf, user: CurrentUser) -> None:
    """Remove the webhook. Jobs with their own URL still call it."""
    await context.engine.webhooks.endpoints.remove_webhook(user.tenant_id)


@router.post("/webhook/test", responses=error_responses(403, 409, 429))
async def test_webhook(context: ContextOf, user: CurrentUser) -> Answer[wire.WebhookTestResult]:
    """Send a signed message of the type `webhook.test` once, and return the response."""
    context.webhook_tests.check(user.tenant_id)
    sent = await context.engine.webhooks.deliveries.send_test(user.tenant_id)
    data = wire.WebhookTestResult(is_delivered=sent.is_ok, status_code=sent.status_code, error=sent.error)
    return Answer(data=data, message="Delivered." if sent.is_ok else "Not delivered.")


@router.get("/deliveries", responses=error_responses(422))
async def all_deliveries(
    context: ContextOf,
    user: CurrentUser,
    status_: Annotated[DeliveryStatus | None, Query(alias="status")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Answer[Page[wire.Delivery]]:
    """List the webhook deliveries of your jobs, newest first."""
    endpoints = context.engine.webhooks.endpoints
    return page_of(await endpoints.page(user.tenant_id, status=status_, before_id=cursor, limit=limit), _delivery)


@router.post("/deliveries/{delivery_id}/redeliver", responses=error_responses(403, 404, 422, 429))
async def redeliver(delivery_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Delivery]:
    """Send a webhook again now, with the same id, to the current URL of its job."""
    context.redeliveries.check(user.tenant_id)
    found = await context.engine.webhooks.deliveries.send_again(delivery_id, tenant_id=user.tenant_id)
    return Answer(data=_delivery(found), message="The webhook is sent again.")


@router.get("/ai-jobs/{job_id}/deliveries", responses=error_responses(404, 422))
async def deliveries(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deliveries]:
    """List the webhook deliveries of a job."""
    found = await context.engine.webhooks.endpoints.list_deliveries(user.tenant_id, job_id)
    return Answer(data=wire.Deliveries(deliveries=[_delivery(record) for record in found]))


def _delivery(record: DeliveryRecord) -> wire.Delivery:
    return wire.Delivery.of(record, next_attempt_at=record.due_at)


def _webhook(webhook: TenantWebhook | None, *, secret: str | None = None) -> wire.Webhook:
    if webhook is None:
        return wire.Webhook(url=None, has_secret=False, updated_at=None)
    return wire.Webhook.of(webhook, has_secret=True, secret=secret)
