"""API tokens of users, stored as hashes."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, FromClause, delete, func, insert, select, update

from comfyrelay.domain.records.accounts import TokenRecord, TokenScope, User
from comfyrelay.store.central.tables.accounts import api_tokens as t
from comfyrelay.store.central.tables.accounts import users
from comfyrelay.store.central.tenants import USER_COLUMNS
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest
from comfyrelay.store.types import relay_now

# Ended sessions are kept for the date of the last sign-in.
KEPT_SECONDS = 30 * 86_400.0
_TOKEN = [t.c[name] for name in TokenRecord.__dataclass_fields__]
_parents = t.alias("parents")


def _has_not_ended(tokens: FromClause) -> ColumnElement[bool]:
    return tokens.c.revoked_at.is_(None) & (tokens.c.expires_at.is_(None) | (tokens.c.expires_at > relay_now()))


_HAS_VALID_PARENT = select(_parents.c.id).where(_parents.c.id == t.c.parent_id, _has_not_ended(_parents)).exists()
_IS_VALID = _has_not_ended(t) & (t.c.parent_id.is_(None) | _HAS_VALID_PARENT)


async def create(
    tx: Tx,
    *,
    id_: str,
    user_id: str,
    name: str,
    token_hash: str,
    lifetime_seconds: float | None,
    scope: TokenScope | None = None,
    parent_id: str | None = None,
) -> TokenRecord:
    """Create a token, which ends with its parent.

    Delete the user's tokens that ended long ago, and any ended tokens with a scope, such as links to the editor.
    """
    ended_at = func.coalesce(t.c.revoked_at, t.c.expires_at)
    is_old = (ended_at <= relay_now(-KEPT_SECONDS)) | (t.c.scope.is_not(None) & (ended_at <= relay_now()))
    await tx.execute(delete(t).where(t.c.user_id == user_id, is_old))
    expires_at = None if lifetime_seconds is None else relay_now(lifetime_seconds)
    query = insert(t).values(id=id_, user_id=user_id, name=name, token_hash=token_hash, scope=scope)
    query = query.values(parent_id=parent_id, created_at=relay_now(), expires_at=expires_at)
    return await tx.one(TokenRecord, query.returning(*_TOKEN))


async def count_except(tx: Tx, user_id: str, *, name: str) -> int:
    """Count the user's valid tokens with other names."""
    query = select(func.count()).where(t.c.user_id == user_id, t.c.name != name, _IS_VALID)
    found: int = await tx.scalar(query)
    return found


async def owner(tx: Tx, token_hash: str, *, scope: TokenScope | None = None) -> User | None:
    """Return the user of a token; `None` if it was revoked or has expired, the user is disabled, or the token is for
    another API."""
    is_in_scope = t.c.scope.is_(None) if scope is None else t.c.scope.is_(None) | (t.c.scope == scope)
    query = select(*USER_COLUMNS).join(t, t.c.user_id == users.c.id).where(is_in_scope)
    return await tx.one_or_none(
        User, query.where(t.c.token_hash == token_hash, _IS_VALID, users.c.disabled_at.is_(None))
    )


async def name_of(tx: Tx, token_hash: str) -> str | None:
    """Return the name of a token, including revoked and expired ones."""
    found: str | None = await tx.scalar(select(t.c.name).where(t.c.token_hash == token_hash))
    return found


async def id_of(tx: Tx, token_hash: str) -> str | None:
    found: str | None = await tx.scalar(select(t.c.id).where(t.c.token_hash == token_hash))
    return found


async def parent_of(tx: Tx, token_hash: str) -> str | None:
    found: str | None = await tx.scalar(select(t.c.parent_id).where(t.c.token_hash == token_hash))
    return found


async def of_user(tx: Tx, user_id: str, *, before_id: str | None = None, limit: int = 200) -> Sequence[TokenRecord]:
    """Return a page of valid tokens, newest first."""
    query = select(*_TOKEN).where(t.c.user_id == user_id, _IS_VALID)
    return await tx.all(TokenRecord, newest(query, t.c.id, before=before_id, limit=limit))


async def revoke_all(tx: Tx, user_id: str, *, name: str | None = None, except_hash: str | None = None) -> None:
    """Revoke the user's tokens, or only tokens with this name, except the one with this hash."""
    query = update(t).where(t.c.user_id == user_id, t.c.revoked_at.is_(None))
    query = query.where(t.c.name == name) if name is not None else query
    query = query.where(t.c.token_hash != except_hash) if except_hash is not None else query
    await tx.execute(query.values(revoked_at=relay_now()))


async def revoke(tx: Tx, user_id: str, *, id_: str | None = None, token_hash: str | None = None) -> bool:
    """Revoke a token of the user by id or hash; false if there is none."""
    is_given = t.c.id == id_ if id_ is not None else t.c.token_hash == token_hash
    query = update(t).where(t.c.user_id == user_id, t.c.revoked_at.is_(None), is_given)
    return await tx.exists(query.values(revoked_at=relay_now()).returning(t.c.id))
