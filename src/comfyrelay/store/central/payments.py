"""Payments by the event id of the payment provider."""

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select

from comfyrelay.store.central.tables.accounts import payment_events, tenants, users
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class PaymentEvent:
    provider_event_id: str
    tenant_id: str
    amount: int
    currency: str | None
    refund_of: str | None = None
    # The account was already deleted: nothing was credited.
    is_refused: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPayment:
    """A payment with its user, and the number of tokens that were refunded."""

    provider_event_id: str
    tenant_id: str
    # Null once the account is deleted.
    email: str | None
    amount: int
    refunded: int
    currency: str | None
    is_refused: bool
    created_at: datetime


_EVENT = [payment_events.c[name] for name in PaymentEvent.__dataclass_fields__]


async def tenant_of(tx: Tx, *, tenant_id: str | None, email: str | None) -> str | None:
    """Return the id of the tenant, given by id or email."""
    if tenant_id is not None:
        query = select(tenants.c.id).where(tenants.c.id == tenant_id)
    else:
        query = select(users.c.tenant_id).where(users.c.email == email)
    found: str | None = await tx.scalar(query)
    return found


async def is_deleted(tx: Tx, tenant_id: str) -> bool:
    """Whether the account of a tenant is deleted. Locks the tenant against its deletion."""
    query = select(tenants.c.deleted_at).where(tenants.c.id == tenant_id).with_for_update(read=True)
    return await tx.scalar(query) is not None


async def record(tx: Tx, event: PaymentEvent) -> PaymentEvent:
    """Record the event unless it exists. Return the stored event."""
    query = insert_into(tx.dialect, payment_events).values(**asdict(event), created_at=relay_now())
    await tx.execute(query.on_conflict_do_nothing())
    stored = select(*_EVENT).where(payment_events.c.provider_event_id == event.provider_event_id)
    return await tx.one(PaymentEvent, stored)


async def lock(tx: Tx, event_id: str) -> PaymentEvent | None:
    """Return a payment, locked so that its refunds are counted one after the other."""
    query = select(*_EVENT).where(payment_events.c.provider_event_id == event_id, payment_events.c.refund_of.is_(None))
    return await tx.one_or_none(PaymentEvent, query.with_for_update())


async def get(tx: Tx, event_id: str) -> PaymentEvent | None:
    return await tx.one_or_none(PaymentEvent, select(*_EVENT).where(payment_events.c.provider_event_id == event_id))


async def refunded(tx: Tx, payment_id: str) -> int:
    """Return how many tokens of a payment were taken back by refunds."""
    total = select(func.coalesce(func.sum(payment_events.c.amount), 0)).where(payment_events.c.refund_of == payment_id)
    return int(await tx.scalar(total) or 0)


async def newest(
    tx: Tx, *, begins: datetime | None, ends: datetime | None, before_id: str | None, limit: int
) -> list[ListedPayment]:
    """Return payments of a period, newest first, starting after the payment with this id."""
    e, r = payment_events, payment_events.alias("refund")
    returned = select(func.coalesce(func.sum(r.c.amount), 0)).where(r.c.refund_of == e.c.provider_event_id)
    names = ("provider_event_id", "tenant_id", "amount", "currency", "is_refused", "created_at")
    query = (
        select(*(e.c[name] for name in names), users.c.email, returned.scalar_subquery().label("refunded"))
        .outerjoin(users, users.c.tenant_id == e.c.tenant_id)
        .where(e.c.refund_of.is_(None))
        .order_by(e.c.created_at.desc(), e.c.provider_event_id.desc())
        .limit(limit)
    )
    if begins is not None:
        query = query.where(e.c.created_at >= begins)
    if ends is not None:
        query = query.where(e.c.created_at < ends)
    if before_id is not None:
        last = payment_events.alias("last")
        at = select(last.c.created_at).where(last.c.provider_event_id == before_id).scalar_subquery()
        query = query.where(or_(e.c.created_at < at, and_(e.c.created_at == at, e.c.provider_event_id < before_id)))
    return [ListedPayment(**{**row._mapping, "refunded": int(row.refunded)}) for row in await tx.execute(query)]
