"""The webhook outbox of a shard, and the webhook settings of tenants."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, Text, bindparam, case, func, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.deliveries import DeliveryState, DeliveryStatus
from comfyrelay.domain.ids import new_id
from comfyrelay.domain.records.webhooks import DeliveryRecord, TenantWebhook
from comfyrelay.domain.webhooks import EndedJob
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest, newest_page
from comfyrelay.store.row_parameters import columns_of, ids_table, insert_into, rows_table, with_ids, with_rows
from comfyrelay.store.tenant.tables import ai_jobs, webhook_deliveries, webhooks
from comfyrelay.store.types import relay_now, sql_literal

d = webhook_deliveries


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDelivery:
    """A delivery that this process is sending. `attempts` is a fencing token: a later claim has a higher value."""

    id: str
    tenant_id: str
    job_id: str
    url: str
    attempts: int
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt. `wait_seconds` counts only for a pending delivery."""

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
_STATUS = {
    DeliveryState.DEAD: DeliveryStatus.GIVEN_UP,
    DeliveryState.FAILING: DeliveryStatus.PENDING,
    DeliveryState.PENDING: DeliveryStatus.PENDING,
    DeliveryState.DELIVERED: DeliveryStatus.DELIVERED,
}


async def write_due(tx: Tx, job_ids: Iterable[str]) -> None:
    """Write one delivery for each finished job that has a webhook."""
    await tx.write(_write_due, with_rows({"id": new_id(), "job_id": job_id} for job_id in job_ids))


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


async def claim(
    tx: Tx, *, limit: int, lease_seconds: float, but_tenants: Collection[str] = ()
) -> list[ClaimedDelivery]:
    """Claim due deliveries of tenants outside `but_tenants` for `lease_seconds`, and count the attempt."""
    rows = await tx.fetch(_claim, {"limit": limit, "lease_seconds": lease_seconds, **with_ids(but_tenants)})
    return [ClaimedDelivery(**row._mapping) for row in rows]


@cache
def _claim(dialect: str) -> Executable:
    due = (
        select(d.c.id)
        .where(
            d.c.status == sql_literal(DeliveryStatus.PENDING),
            d.c.due_at <= relay_now(),
            d.c.tenant_id.not_in(select(ids_table(dialect, Text()).c.id)),
        )
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


async def record_outcomes(tx: Tx, outcomes: Sequence[DeliveryOutcome]) -> None:
    """Record the outcomes of attempts. An outcome after a later claim is ignored."""
    await tx.write(_record_outcomes, with_rows(outcomes))


@cache
def _record_outcomes(dialect: str) -> Executable:
    columns = columns_of(d, "id", "attempts", "status", "last_status_code", "last_error")
    r = rows_table(dialect, columns | {"wait_seconds": Float(53)})
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
    query = select(*_DELIVERY).where(d.c.tenant_id == tenant_id)
    if status is not None:
        query = query.where(d.c.status == status)
    return await tx.all(DeliveryRecord, newest(query, d.c.id, before=before_id, limit=limit))


async def page_of_all(
    tx: Tx, *, state: DeliveryState | None, tenant_id: str | None, before_id: str | None, limit: int
) -> tuple[list[DeliveryRecord], str | None]:
    """Return a page of the deliveries of all tenants, newest first, and the id of the next page."""
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


async def count(tx: Tx, status: DeliveryStatus, *, limit: int) -> int:
    """Count the deliveries of all tenants with this status, up to `limit`, by using the index."""
    counted = select(d.c.id).where(d.c.status == sql_literal(status)).limit(limit).subquery()
    return int(await tx.scalar(select(func.count()).select_from(counted)) or 0)


async def resend(tx: Tx, id_: str, *, tenant_id: str | None = None) -> DeliveryRecord | None:
    """Make a delivery due now, to the current webhook URL of its job. The attempts of a finished delivery are reset,
    but not the attempts of a pending one, because another process may be sending it."""
    job_url = select(ai_jobs.c.webhook_url).where(ai_jobs.c.id == d.c.job_id).scalar_subquery()
    tenant_url = select(webhooks.c.url).where(webhooks.c.tenant_id == d.c.tenant_id).scalar_subquery()
    is_finished = d.c.status != sql_literal(DeliveryStatus.PENDING)
    query = update(d).values(
        url=func.coalesce(job_url, tenant_url, d.c.url),
        status=DeliveryStatus.PENDING,
        attempts=case((is_finished, 0), else_=d.c.attempts),
        due_at=relay_now(),
        delivered_at=None,
    )
    query = query.where(d.c.id == id_)
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
