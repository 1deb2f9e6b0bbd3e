"""Records of webhook endpoints and deliveries."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantWebhook:
    tenant_id: str
    url: str | None
    secret: str
    is_secret_shown: bool
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRecord:
    id: str
    tenant_id: str
    job_id: str
    url: str
    status: str
    attempts: int
    due_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None
