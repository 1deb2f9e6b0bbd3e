"""One-time links and setup codes for accounts, stored as hashes."""

from datetime import datetime

from sqlalchemy import delete, insert, select, update

from comfyrelay.domain.queue.states import LinkKind
from comfyrelay.domain.records.accounts import User
from comfyrelay.store.central.tables.accounts import account_links as links
from comfyrelay.store.central.tables.accounts import users
from comfyrelay.store.central.tenants import USER_COLUMNS
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now

_IS_VALID = links.c.used_at.is_(None) & (links.c.expires_at > relay_now())


async def create(
    tx: Tx,
    *,
    token_hash: str,
    kind: LinkKind,
    lifetime_seconds: float,
    user_id: str | None = None,
    created_by: str | None = None,
) -> datetime:
    """Create a link, and delete expired ones. Return when the link expires."""
    await tx.execute(delete(links).where(links.c.expires_at <= relay_now()))
    query = insert(links).values(token_hash=token_hash, kind=kind, user_id=user_id, created_by=created_by)
    query = query.values(created_at=relay_now(), expires_at=relay_now(lifetime_seconds))
    expires_at: datetime = await tx.scalar(query.returning(links.c.expires_at))
    return expires_at


async def user_of(tx: Tx, token_hash: str) -> User | None:
    """Return the user of a link; `None` if it was used or has expired."""
    query = select(*USER_COLUMNS).join(links, links.c.user_id == users.c.id)
    return await tx.one_or_none(User, query.where(links.c.token_hash == token_hash, _IS_VALID))


async def use(tx: Tx, token_hash: str) -> str | None:
    """Use the link and return the id of its user; `None` if it is invalid. Of concurrent callers, one succeeds."""
    query = update(links).where(links.c.token_hash == token_hash, links.c.kind == LinkKind.RESET, _IS_VALID)
    user_id: str | None = await tx.scalar(query.values(used_at=relay_now()).returning(links.c.user_id))
    return user_id


async def invalidate_links(tx: Tx, user_id: str) -> None:
    """Invalidate all links of a user, after a newer link or a new password."""
    await tx.execute(update(links).where(links.c.user_id == user_id, _IS_VALID).values(used_at=relay_now()))


async def invalidate_links_by(tx: Tx, admin_id: str) -> None:
    """Invalidate all links that a former administrator created, for any account."""
    await tx.execute(update(links).where(links.c.created_by == admin_id, _IS_VALID).values(used_at=relay_now()))


async def is_setup_code(tx: Tx, token_hash: str) -> bool:
    """Return whether this is a valid setup code."""
    is_setup = links.c.kind == LinkKind.SETUP
    return await tx.exists(select(links.c.kind).where(links.c.token_hash == token_hash, is_setup, _IS_VALID))


async def use_setup_codes(tx: Tx) -> list[str]:
    """Use all setup codes, and return their hashes. Of concurrent callers, only one gets any."""
    query = update(links).where(links.c.kind == LinkKind.SETUP, _IS_VALID).values(used_at=relay_now())
    return await tx.scalars(query.returning(links.c.token_hash))
