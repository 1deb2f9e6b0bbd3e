"""The webhook outbox of a shard, and the webhook settings of tenants."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Float, Text, bindparam, case, func, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.webhooks import DeliveryRecord, TenantWebhook
from comfyrelay.domain.webhooks import EndedJob
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, insert_into, rows_table, with_rows
from comfyrelay.store.tenant.tables import ai_jobs, webhook_deliveries, webhooks
from comfyrelay.store.types import relay_now, sql_literal

d = webhook_deliveries


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """A delivery that this process sends now. `attempts` is a fencing token: a later claim has a higher one."""

    id: str
    tenant_id: str
    job_id: str
    url: str
    attempts: int
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt; `wait_seconds` only while it is pending."""

    id: str
    attempts: int
    status: str
    wait_seconds: float
    last_status_code: int | None
    last_error: str | None


_WEBHOOK = [webhooks.c[name] for name in TenantWebhook.__dataclass_fields__]
_DELIVERY = [d.c[name] for name in DeliveryRecord.__dataclass_fields__]
_ENDED = [ai_jobs.c[name] for name in EndedJob.__dataclass_fields__]
_NEW = ("id", "job_id", "tenant_id", "url", "due_at", "created_at")


async def write_due(tx: Tx, job_ids: Iterable[str]) -> None:
    """Write one delivery for each finished job that has a webhook."""
    await tx.write(_write_due, with_rows({"id": new_id(), "job_id": job_id_} for job_id_ in job_ids))


@cache
def _write_due(dialect: str) -> Executable:
    r = rows_table(dialect, {"id": Text(), "job_id": Text()})
    url = func.coalesce(ai_jobs.c.webhook_url, webhooks.c.url)
    rows = (
        select(r.c.id, r.c.job_id, ai_jobs.c.tenant_id, url, relay_now(), relay_now())
        .select_from(r.join(ai_jobs, ai_jobs.c.id == r.c.job_id))
        .outerjoin(webhooks, webhooks.c.tenant_id == ai_jobs.c.tenant_id)
        .where(url.is_not(None))
    )
    return insert_into(dialect, d).from_select(_NEW, rows).on_conflict_do_nothing()


async def claim(tx: Tx, *, limit: int, lease_seconds: float) -> list[Claimed]:
    """Claim due deliveries for a while, and count the attempt."""
    rows = await tx.fetch(_claim, {"limit": limit, "lease_seconds": lease_seconds})
    return [Claimed(**row._mapping) for row in rows]


@cache
def _claim(_dialect: str) -> Executable:
    due = (
        select(d.c.id)
        .where(d.c.status == sql_literal(DeliveryStatus.PENDING), d.c.due_at <= relay_now())
        .order_by(d.c.due_at)
        .limit(bindparam("limit", type_=BigInteger()))
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    return (
        update(d)
        .values(attempts=d.c.attempts + 1, due_at=relay_now(bindparam("lease_seconds", type_=Float())))
        .where(d.c.id == due.c.id)
        .returning(d.c.id, d.c.tenant_id, d.c.job_id, d.c.url, d.c.attempts, relay_now().label("at"))
    )


async def ended_jobs(tx: Tx, job_ids: Iterable[str]) -> dict[str, EndedJob]:
    query = select(*_ENDED).where(ai_jobs.c.id.in_(list(job_ids)), ai_jobs.c.completed_at.is_not(None))
    return {row.id: EndedJob(**row._mapping) for row in await tx.execute(query)}


async def note(tx: Tx, outcomes: Sequence[DeliveryOutcome]) -> None:
    """Record the outcome of attempts. An outcome after a later claim is ignored."""
    await tx.write(_note, with_rows(outcomes))


@cache
def _note(dialect: str) -> Executable:
    same = columns_of(d, "id", "attempts", "status", "last_status_code", "last_error")
    r = rows_table(dialect, same | {"wait_seconds": Float(53)})
    values = {
        "status": r.c.status,
        "last_status_code": r.c.last_status_code,
        "last_error": r.c.last_error,
        "due_at": case((r.c.status == DeliveryStatus.PENDING, relay_now(r.c.wait_seconds))),
        "delivered_at": case((r.c.status == DeliveryStatus.DELIVERED, relay_now())),
    }
    is_current = (d.c.attempts == r.c.attempts) & (d.c.status == sql_literal(DeliveryStatus.PENDING))
    return update(d).values(values).where(d.c.id == r.c.id, is_current)


async def of_job(tx: Tx, tenant_id: str, job_id: str) -> list[DeliveryRecord]:
    query = select(*_DELIVERY).where(d.c.tenant_id == tenant_id, d.c.job_id == job_id)
    return await tx.all(DeliveryRecord, query)


async def page(
    tx: Tx, tenant_id: str, *, status: DeliveryStatus | None = None, before_id: str | None = None, limit: int
) -> list[DeliveryRecord]:
    """Return a page of a tenant's deliveries, newest first."""
    query = select(*_DELIVERY).where(d.c.tenant_id == tenant_id).order_by(d.c.id.desc()).limit(limit)
    if status is not None:
        query = query.where(d.c.status == status)
    if before_id is not None:
        query = query.where(d.c.id < before_id)
    return await tx.all(DeliveryRecord, query)


async def send_again(tx: Tx, id_: str, *, tenant_id: str | None = None) -> DeliveryRecord | None:
    """Make a delivery due now, to the current webhook URL of its job. A finished delivery starts again; a pending one
    keeps counting attempts, because another process may be sending it."""
    own = select(ai_jobs.c.webhook_url).where(ai_jobs.c.id == d.c.job_id).scalar_subquery()
    usual = select(webhooks.c.url).where(webhooks.c.tenant_id == d.c.tenant_id).scalar_subquery()
    ended = d.c.status != sql_literal(DeliveryStatus.PENDING)
    query = (
        update(d)
        .where(d.c.id == id_)
        .values(
            url=func.coalesce(own, usual, d.c.url),
            status=DeliveryStatus.PENDING,
            attempts=case((ended, 0), else_=d.c.attempts),
            due_at=relay_now(),
            delivered_at=None,
        )
    )
    if tenant_id is not None:
        query = query.where(d.c.tenant_id == tenant_id)
    return await tx.one_or_none(DeliveryRecord, query.returning(*_DELIVERY))


async def webhook(tx: Tx, tenant_id: str) -> TenantWebhook | None:
    return await tx.one_or_none(TenantWebhook, select(*_WEBHOOK).where(webhooks.c.tenant_id == tenant_id))


async def secrets_of(tx: Tx, tenant_ids: Iterable[str]) -> dict[str, str]:
    query = select(webhooks.c.tenant_id, webhooks.c.secret).where(webhooks.c.tenant_id.in_(list(tenant_ids)))
    return {row.tenant_id: row.secret for row in await tx.execute(query)}


async def ensure_secret(tx: Tx, tenant_id: str, secret: str) -> TenantWebhook:
    """Return the tenant's webhook, and set this secret if it has none."""
    values = {"tenant_id": tenant_id, "secret": secret, "is_secret_shown": False, "updated_at": relay_now()}
    await tx.execute(insert_into(tx.dialect, webhooks).values(**values).on_conflict_do_nothing())
    query = select(*_WEBHOOK).where(webhooks.c.tenant_id == tenant_id).with_for_update()
    return await tx.one(TenantWebhook, query)


async def set_webhook(tx: Tx, tenant_id: str, **values: Any) -> TenantWebhook | None:
    query = update(webhooks).where(webhooks.c.tenant_id == tenant_id).values(**values, updated_at=relay_now())
    return await tx.one_or_none(TenantWebhook, query.returning(*_WEBHOOK))
