"""Payments by the event id of the payment provider."""

from dataclasses import asdict, dataclass

from sqlalchemy import select

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


_EVENT = [payment_events.c[name] for name in PaymentEvent.__dataclass_fields__]


async def tenant_of(tx: Tx, *, tenant_id: str | None, email: str | None) -> str | None:
    """Return the id of the tenant, given by id or email."""
    if tenant_id is not None:
        query = select(tenants.c.id).where(tenants.c.id == tenant_id)
    else:
        query = select(users.c.tenant_id).where(users.c.email == email)
    found: str | None = await tx.scalar(query)
    return found


async def record(tx: Tx, event: PaymentEvent) -> PaymentEvent:
    """Record the event unless it exists. Return the stored event."""
    query = insert_into(tx.dialect, payment_events).values(**asdict(event), created_at=relay_now())
    await tx.execute(query.on_conflict_do_nothing())
    stored = select(*_EVENT).where(payment_events.c.provider_event_id == event.provider_event_id)
    return await tx.one(PaymentEvent, stored)
