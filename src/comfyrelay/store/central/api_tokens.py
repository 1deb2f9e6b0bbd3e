"""API tokens of users, stored as hashes."""

from collections.abc import Sequence

from sqlalchemy import insert, select, update

from comfyrelay.domain.records.accounts import TokenRecord, User
from comfyrelay.store.central.tables.accounts import api_tokens, users
from comfyrelay.store.central.tenants import USER_COLUMNS
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now

_TOKEN = [api_tokens.c[name] for name in TokenRecord.__dataclass_fields__]


async def create(
    tx: Tx, *, id_: str, user_id: str, name: str, token_hash: str, lifetime_seconds: float | None
) -> TokenRecord:
    query = insert(api_tokens).values(
        id=id_,
        user_id=user_id,
        name=name,
        token_hash=token_hash,
        created_at=relay_now(),
        expires_at=None if lifetime_seconds is None else relay_now(lifetime_seconds),
    )
    return await tx.one(TokenRecord, query.returning(*_TOKEN))


async def owner(tx: Tx, token_hash: str) -> User | None:
    """Return the user of a token; `None` if it was revoked or has expired, or the user is disabled."""
    query = (
        select(*USER_COLUMNS)
        .join(api_tokens, api_tokens.c.user_id == users.c.id)
        .where(
            api_tokens.c.token_hash == token_hash,
            api_tokens.c.revoked_at.is_(None),
            api_tokens.c.expires_at.is_(None) | (api_tokens.c.expires_at > relay_now()),
            users.c.disabled_at.is_(None),
        )
    )
    return await tx.one_or_none(User, query)


async def name_of(tx: Tx, token_hash: str) -> str | None:
    """Return the name of a token, including revoked and expired ones."""
    found: str | None = await tx.scalar(select(api_tokens.c.name).where(api_tokens.c.token_hash == token_hash))
    return found


async def id_of(tx: Tx, token_hash: str) -> str | None:
    found: str | None = await tx.scalar(select(api_tokens.c.id).where(api_tokens.c.token_hash == token_hash))
    return found


async def of_user(tx: Tx, user_id: str, *, before_id: str | None = None, limit: int = 200) -> Sequence[TokenRecord]:
    """Return a page of valid tokens, newest first."""
    query = (
        select(*_TOKEN)
        .where(
            api_tokens.c.user_id == user_id,
            api_tokens.c.revoked_at.is_(None),
            api_tokens.c.expires_at.is_(None) | (api_tokens.c.expires_at > relay_now()),
        )
        .order_by(api_tokens.c.id.desc())
        .limit(limit)
    )
    if before_id is not None:
        query = query.where(api_tokens.c.id < before_id)
    return await tx.all(TokenRecord, query)


async def revoke_all_named(tx: Tx, user_id: str, name: str) -> None:
    """Revoke the user's tokens with this name."""
    query = update(api_tokens).where(
        api_tokens.c.user_id == user_id, api_tokens.c.name == name, api_tokens.c.revoked_at.is_(None)
    )
    await tx.execute(query.values(revoked_at=relay_now()))


async def revoke(tx: Tx, user_id: str, *, id_: str | None = None, token_hash: str | None = None) -> bool:
    """Revoke a token of the user by id or hash; false if there is none."""
    query = update(api_tokens).where(api_tokens.c.user_id == user_id, api_tokens.c.revoked_at.is_(None))
    query = (
        query.where(api_tokens.c.id == id_) if id_ is not None else query.where(api_tokens.c.token_hash == token_hash)
    )
    return await tx.exists(query.values(revoked_at=relay_now()).returning(api_tokens.c.id))
