"""One-time links and setup codes for accounts, stored as hashes."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete, func, insert, select, update

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import LinkRecord
from comfyrelay.store.central.tables.accounts import account_links as links
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now

_RECORD = [links.c[name] for name in LinkRecord.__dataclass_fields__]
_IS_VALID = links.c.used_at.is_(None) & (links.c.expires_at > relay_now())


async def create(
    tx: Tx,
    *,
    token_hash: str,
    kind: LinkKind,
    lifetime_seconds: float,
    user_id: str | None = None,
    created_by: str | None = None,
    email: str | None = None,
    name: str | None = None,
) -> datetime:
    """Create a link, and delete expired ones. Return when the link expires."""
    await tx.execute(delete(links).where(links.c.expires_at <= relay_now()))
    query = insert(links).values(token_hash=token_hash, kind=kind, user_id=user_id, created_by=created_by)
    query = query.values(email=email, name=name)
    query = query.values(created_at=relay_now(), expires_at=relay_now(lifetime_seconds))
    expires_at: datetime = await tx.scalar(query.returning(links.c.expires_at))
    return expires_at


async def find(tx: Tx, token_hash: str, kinds: Collection[LinkKind]) -> LinkRecord | None:
    """Return a link; `None` if it was used or has expired."""
    query = select(*_RECORD).where(links.c.token_hash == token_hash, links.c.kind.in_(kinds), _IS_VALID)
    return await tx.one_or_none(LinkRecord, query)


async def use(tx: Tx, token_hash: str, kinds: Collection[LinkKind]) -> LinkRecord | None:
    """Use up a link and return it; `None` if it is invalid. Only one of several concurrent callers succeeds."""
    query = update(links).where(links.c.token_hash == token_hash, links.c.kind.in_(kinds), _IS_VALID)
    return await tx.one_or_none(LinkRecord, query.values(used_at=relay_now()).returning(*_RECORD))


async def count_mailed(tx: Tx, email: str, *, seconds: float) -> int:
    """Count the links that were mailed to an address within the last `seconds`."""
    query = select(func.count()).where(links.c.email == email, links.c.created_at > relay_now(-seconds))
    found: int = await tx.scalar(query)
    return found


async def invalidate_links(tx: Tx, user_id: str) -> None:
    """Invalidate all links of a user, after a newer link or a new password."""
    await tx.execute(update(links).where(links.c.user_id == user_id, _IS_VALID).values(used_at=relay_now()))


async def invalidate_links_by(tx: Tx, admin_id: str) -> None:
    """Invalidate all links that a former administrator created, for any account."""
    await tx.execute(update(links).where(links.c.created_by == admin_id, _IS_VALID).values(used_at=relay_now()))


async def delete_mailed(tx: Tx, email: str) -> None:
    """Delete all links that were mailed to an address."""
    await tx.execute(delete(links).where(links.c.email == email))


async def is_setup_code(tx: Tx, token_hash: str) -> bool:
    """Return whether this is a valid setup code."""
    is_setup = links.c.kind == LinkKind.SETUP
    return await tx.exists(select(links.c.kind).where(links.c.token_hash == token_hash, is_setup, _IS_VALID))


async def use_setup_codes(tx: Tx) -> list[str]:
    """Use up all setup codes and return their hashes. Only one of several concurrent callers gets any."""
    query = update(links).where(links.c.kind == LinkKind.SETUP, _IS_VALID).values(used_at=relay_now())
    return await tx.scalars(query.returning(links.c.token_hash))
