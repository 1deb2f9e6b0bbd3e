"""Mails waiting to be sent."""

from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select, update

from comfyrelay.store.central.tables.accounts import mails as m
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedMail:
    id: str
    recipient: str
    subject: str
    body: str
    attempts: int


async def add(tx: Tx, *, id_: str, recipient: str, subject: str, body: str) -> None:
    query = insert(m).values(id=id_, recipient=recipient, subject=subject, body=body)
    await tx.execute(query.values(created_at=relay_now(), due_at=relay_now()))


async def claim(tx: Tx, *, limit: int, lease_seconds: float) -> list[ClaimedMail]:
    """Claim mails that are due, oldest first, so that no other process sends them during the lease."""
    due = select(m.c.id).where(m.c.due_at <= relay_now()).order_by(m.c.due_at).limit(limit)
    query = update(m).where(m.c.id.in_(due.with_for_update(skip_locked=True)))
    query = query.values(due_at=relay_now(lease_seconds), attempts=m.c.attempts + 1)
    columns = [m.c[name] for name in ClaimedMail.__dataclass_fields__]
    return await tx.all(ClaimedMail, query.returning(*columns))


async def remove(tx: Tx, mail_id: str) -> None:
    """Delete a mail that was sent."""
    await tx.execute(delete(m).where(m.c.id == mail_id))


async def record_failure(tx: Tx, mail_id: str, *, error: str, wait_seconds: float | None) -> None:
    """Schedule another attempt after this time, or abandon the mail and delete its text."""
    given_up = {"due_at": None, "body": None}
    values = given_up if wait_seconds is None else {"due_at": relay_now(wait_seconds)}
    await tx.execute(update(m).where(m.c.id == mail_id).values(**values, last_error=error))


async def remove_old(tx: Tx, *, older_than_seconds: float) -> None:
    """Delete mails that were abandoned some time ago."""
    await tx.execute(delete(m).where(m.c.due_at.is_(None), m.c.created_at < relay_now(-older_than_seconds)))


async def remove_of(tx: Tx, recipient: str) -> None:
    """Delete all mails to an address."""
    await tx.execute(delete(m).where(m.c.recipient == recipient))


async def count_given_up(tx: Tx) -> int:
    found: int = await tx.scalar(select(func.count()).where(m.c.due_at.is_(None)))
    return found
