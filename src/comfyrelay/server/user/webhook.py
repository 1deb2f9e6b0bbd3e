"""Where a user wants to be told of the ends of jobs, and what has come of it."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, status
from pydantic import BaseModel, Field

from comfyrelay.domain.records.webhooks import Delivery, TenantWebhook
from comfyrelay.server.base.answers import Answer, Body, example
from comfyrelay.server.base.auth import CurrentUser
from comfyrelay.server.base.context import ContextOf
from comfyrelay.server.base.problems import may_answer
from comfyrelay.server.user.models import IdInPath

__all__ = ["router"]

router = APIRouter(prefix="/api", tags=["webhooks"])


class PutWebhook(Body):
    model_config = example(url="https://example.com/hooks/comfyrelay")

    url: Annotated[str | None, Field(max_length=2048, description="for jobs that bring no URL of their own")] = None
    rotate_secret: Annotated[bool, Field(description="whether to sign with a new secret from now on")] = False


class WebhookBody(BaseModel):
    url: str | None
    has_secret: bool
    updated_at: datetime | None
    secret: Annotated[str | None, Field(description="shown once: when the webhook is first set, or rotated")] = None


class DeliveryBody(BaseModel):
    id: Annotated[str, Field(description="the `webhook-id` of every attempt")]
    url: str
    status: str
    attempts: int
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class Deliveries(BaseModel):
    deliveries: list[DeliveryBody]


@router.get("/webhook", responses=may_answer(401, 503))
async def webhook(context: ContextOf, user: CurrentUser) -> Answer[WebhookBody]:
    """Where the ends of jobs are told."""
    return Answer(data=_webhook(await context.engine.webhooks.endpoints.of(user.tenant_id)))


@router.put("/webhook", responses=may_answer(401, 403, 422, 503))
async def put_webhook(body: PutWebhook, context: ContextOf, user: CurrentUser) -> Answer[WebhookBody]:
    """Set where the ends of jobs are told. The secret that signs them is shown this once."""
    changed = await context.engine.webhooks.endpoints.put(
        user.tenant_id, url=body.url, rotate_secret=body.rotate_secret
    )
    return Answer(data=_webhook(changed.webhook, secret=changed.secret), message="Saved.")


@router.delete("/webhook", status_code=status.HTTP_204_NO_CONTENT, responses=may_answer(401, 403, 503))
async def delete_webhook(context: ContextOf, user: CurrentUser) -> None:
    """Tell nobody any more, but for jobs with a URL of their own."""
    await context.engine.webhooks.endpoints.remove(user.tenant_id)


@router.get("/ai-jobs/{job_id}/deliveries", responses=may_answer(401, 404, 422, 503))
async def deliveries(job_id: IdInPath, context: ContextOf, user: CurrentUser) -> Answer[Deliveries]:
    """What has come of telling others of this job's end."""
    found = await context.engine.webhooks.endpoints.deliveries_of(user.tenant_id, job_id)
    return Answer(data=Deliveries(deliveries=[_delivery(each) for each in found]))


def _webhook(found: TenantWebhook | None, *, secret: str | None = None) -> WebhookBody:
    if found is None:
        return WebhookBody(url=None, has_secret=False, updated_at=None)
    return WebhookBody(url=found.url, has_secret=True, updated_at=found.updated_at, secret=secret)


def _delivery(each: Delivery) -> DeliveryBody:
    return DeliveryBody(
        id=each.id,
        url=each.url,
        status=each.status,
        attempts=each.attempts,
        next_attempt_at=each.due_at,
        last_status_code=each.last_status_code,
        last_error=each.last_error,
        created_at=each.created_at,
        delivered_at=each.delivered_at,
    )
