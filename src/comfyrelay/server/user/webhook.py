"""Where a user is notified of the ends of jobs, and what has come of it."""

from fastapi import APIRouter, status

from comfyrelay.domain.records.webhooks import TenantWebhook
from comfyrelay.protocol import user as wire
from comfyrelay.protocol.base import Answer
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.bodies import BodyRoute
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.parameters import IdInPath
from comfyrelay.server.base.problems import may_answer

router = APIRouter(prefix="/api", tags=["webhooks"], route_class=BodyRoute)


@router.get("/webhook", responses=may_answer(401, 503))
async def webhook(context: ContextOf, user: CurrentUser) -> Answer[wire.Webhook]:
    """Where the ends of jobs are sent."""
    return Answer(data=_webhook(await context.engine.webhooks.endpoints.of(user.tenant_id)))


@router.put("/webhook", responses=may_answer(401, 403, 422, 503))
async def put_webhook(body: wire.PutWebhook, context: ContextOf, user: CurrentUser) -> Answer[wire.Webhook]:
    """Set where the ends of jobs are sent. The secret that signs them is shown this once."""
    changed = await context.engine.webhooks.endpoints.put(
        user.tenant_id, url=body.url, rotate_secret=body.rotate_secret
    )
    return Answer(data=_webhook(changed.webhook, secret=changed.secret), message="Saved.")


@router.delete("/webhook", status_code=status.HTTP_204_NO_CONTENT, responses=may_answer(401, 403, 503))
async def delete_webhook(context: ContextOf, user: CurrentUser) -> None:
    """Tell nobody any more, but for jobs with a URL of their own."""
    await context.engine.webhooks.endpoints.remove(user.tenant_id)


@router.get("/ai-jobs/{job_id}/deliveries", responses=may_answer(401, 404, 422, 503))
async def deliveries(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[wire.Deliveries]:
    """What has come of telling others of this job's end."""
    found = await context.engine.webhooks.endpoints.deliveries_of(user.tenant_id, job_id)
    shown = [wire.Delivery.of(each, next_attempt_at=each.due_at) for each in found]
    return Answer(data=wire.Deliveries(deliveries=shown))


def _webhook(found: TenantWebhook | None, *, secret: str | None = None) -> wire.Webhook:
    if found is None:
        return wire.Webhook(url=None, has_secret=False, updated_at=None)
    return wire.Webhook.of(found, has_secret=True, secret=secret)
