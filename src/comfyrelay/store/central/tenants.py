"""Tenants, their users and their shards."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, type_coerce, update

from comfyrelay.domain.credentials import normalize_email
from comfyrelay.domain.records.accounts import ListedTenant, ListedUser, OwnLimits, TenantRecord, User
from comfyrelay.store.central.tables.accounts import api_tokens, tenants, users
from comfyrelay.store.database import Tx, conflict_on_violation
from comfyrelay.store.paging import newest_page
from comfyrelay.store.types import UtcTime, relay_now

_TENANT = [tenants.c[name] for name in TenantRecord.__dataclass_fields__]
# Number of tenants per pass.
MAX_ERASED = 50
_LIMITS = tuple(OwnLimits.__dataclass_fields__)
USER_COLUMNS = [users.c[name] for name in User.__dataclass_fields__]


async def create(tx: Tx, tenant: TenantRecord, **user: Any) -> User:
    values = {"id": tenant.id, "name": tenant.name, "shard": tenant.shard}
    await tx.execute(insert(tenants).values(**values, created_at=relay_now()))
    query = insert(users).values(**user, tenant_id=tenant.id, created_at=relay_now())
    with conflict_on_violation(f"There is already a user {user['email']!r}."):
        return await tx.one(User, query.returning(*USER_COLUMNS))


async def get(tx: Tx, tenant_id: str) -> TenantRecord | None:
    return await tx.one_or_none(TenantRecord, select(*_TENANT).where(tenants.c.id == tenant_id))


async def lock(tx: Tx, tenant_id: str) -> None:
    """Lock a tenant until the transaction ends."""
    await tx.execute(select(tenants.c.id).where(tenants.c.id == tenant_id).with_for_update(key_share=True))


async def change(tx: Tx, tenant_id: str, **limits: int | None) -> bool:
    """Set limits of a tenant; false if it does not exist."""
    query = update(tenants).where(tenants.c.id == tenant_id).values(**limits)
    return await tx.exists(query.returning(tenants.c.id))


async def own_limits(tx: Tx, tenant_id: str) -> OwnLimits:
    query = select(*(tenants.c[name] for name in _LIMITS)).where(tenants.c.id == tenant_id)
    return await tx.one_or_none(OwnLimits, query) or OwnLimits()


async def users_of(tx: Tx, tenant_id: str, *, session: str) -> list[ListedUser]:
    """Return a tenant's users. Tokens named `session` belong to browsers."""
    t = api_tokens.c
    is_session, of_user = t.name == session, t.user_id == users.c.id
    is_valid = t.revoked_at.is_(None) & (t.expires_at.is_(None) | (t.expires_at > relay_now()))
    last_session = select(func.max(t.created_at)).where(of_user, is_session).scalar_subquery()
    # Tokens with a parent are sessions of the editor.
    tokens = select(func.count()).where(of_user, ~is_session, t.parent_id.is_(None), is_valid).scalar_subquery()
    names = ("id", "tenant_id", "email", "name", "is_admin", "created_at", "disabled_at", "email_verified_at")
    query = select(
        *(users.c[name] for name in names),
        users.c.password_hash.is_not(None).label("has_password"),
        type_coerce(last_session, UtcTime()).label("last_sign_in_at"),
        tokens.label("api_tokens"),
    )
    return await tx.all(ListedUser, query.where(users.c.tenant_id == tenant_id))


async def lock_admins(tx: Tx) -> set[str]:
    """Return the administrators, locked against changes."""
    is_enabled_admin = users.c.is_admin & users.c.disabled_at.is_(None)
    return set(await tx.scalars(select(users.c.id).where(is_enabled_admin).order_by(users.c.id).with_for_update()))


async def change_user(
    tx: Tx, user_id: str, *, is_admin: bool | None, is_disabled: bool | None, name: str | None
) -> User | None:
    given = {"is_admin": is_admin, "name": name}
    values: dict[str, Any] = {column: value for column, value in given.items() if value is not None}
    if is_disabled is not None:
        values["disabled_at"] = func.coalesce(users.c.disabled_at, relay_now()) if is_disabled else None
    query = update(users).where(users.c.id == user_id).values(values)
    return await tx.one_or_none(User, query.returning(*USER_COLUMNS))


async def is_disabled(tx: Tx, user_id: str) -> bool:
    return await tx.exists(select(users.c.id).where(users.c.id == user_id, users.c.disabled_at.is_not(None)))


async def listed(tx: Tx, tenant_id: str) -> ListedTenant | None:
    return await tx.one_or_none(ListedTenant, _listed().where(tenants.c.id == tenant_id))


def _listed() -> Select[Any]:
    of_tenant = [tenants.c[name] for name in ("id", "shard", "max_wait_seconds", *_LIMITS, "created_at")]
    of_user = (users.c.id.label("user_id"), users.c.email, users.c.name, users.c.is_admin, users.c.disabled_at)
    return select(*of_tenant, *of_user).join_from(tenants, users, users.c.tenant_id == tenants.c.id)


async def user(tx: Tx, user_id: str) -> User | None:
    return await tx.one_or_none(User, select(*USER_COLUMNS).where(users.c.id == user_id))


async def emails_by_tenant(tx: Tx, tenant_ids: Collection[str]) -> dict[str, str]:
    query = select(users.c.tenant_id, users.c.email).where(users.c.tenant_id.in_(list(tenant_ids)))
    return {row.tenant_id: row.email for row in await tx.execute(query)}


async def emails_by_user(tx: Tx, user_ids: Collection[str]) -> dict[str, str]:
    query = select(users.c.id, users.c.email).where(users.c.id.in_(list(user_ids)))
    return {row.id: row.email for row in await tx.execute(query)}


async def has_admin(tx: Tx) -> bool:
    return await tx.exists(select(users.c.id).where(users.c.is_admin).limit(1))


async def password_hash(tx: Tx, email: str) -> tuple[User, str | None] | None:
    """Return a user and the password hash by email."""
    query = select(*USER_COLUMNS, users.c.password_hash).where(users.c.email == email)
    return await tx.one_or_none(lambda *, password_hash, **fields: (User(**fields), password_hash), query)


async def lock_password(tx: Tx, user_id: str, password_hash: str) -> bool:
    """Return whether this is the password hash of an enabled user, and lock it against changes."""
    query = select(users.c.id).where(
        users.c.id == user_id, users.c.password_hash == password_hash, users.c.disabled_at.is_(None)
    )
    return await tx.exists(query.with_for_update(read=True))


async def set_password(tx: Tx, user_id: str, password_hash: str) -> None:
    await tx.execute(update(users).where(users.c.id == user_id).values(password_hash=password_hash))


async def set_email(tx: Tx, user_id: str, email: str, *, is_verified: bool) -> None:
    """Set the address of a user. Raises `Conflict` if another user has it."""
    verified_at = relay_now() if is_verified else None
    query = update(users).where(users.c.id == user_id).values(email=email, email_verified_at=verified_at)
    with conflict_on_violation("There is already a user with this address."):
        await tx.execute(query)


async def email_verified_at(tx: Tx, user_id: str) -> datetime | None:
    found: datetime | None = await tx.scalar(select(users.c.email_verified_at).where(users.c.id == user_id))
    return found


async def by_email(tx: Tx, email: str) -> User | None:
    return await tx.one_or_none(User, select(*USER_COLUMNS).where(users.c.email == email))


async def delete_user(tx: Tx, user: User) -> None:
    """Delete a user with all tokens and links, and mark the tenant for erasure. The tenant remains for its payments."""
    await tx.execute(delete(users).where(users.c.id == user.id))
    # The name of a deleted tenant is the id of its user, for the erasure of the audit log.
    deleted = {"name": user.id, "deleted_at": relay_now(), "queue_paused_at": None}
    await tx.execute(update(tenants).where(tenants.c.id == user.tenant_id).values(**deleted))


async def to_erase(tx: Tx) -> list[TenantRecord]:
    """Return deleted tenants whose data has not been erased yet."""
    query = select(*_TENANT).where(tenants.c.deleted_at.is_not(None), tenants.c.erased_at.is_(None))
    return await tx.all(TenantRecord, query.order_by(tenants.c.id).limit(MAX_ERASED))


async def set_erased(tx: Tx, tenant_id: str, *, after_seconds: float) -> None:
    """Record that the data of a tenant is erased, unless the tenant was deleted less than `after_seconds` ago."""
    is_settled = tenants.c.deleted_at <= relay_now(-after_seconds)
    await tx.execute(update(tenants).where(tenants.c.id == tenant_id, is_settled).values(erased_at=relay_now()))


async def count_by_shard(tx: Tx) -> dict[str, int]:
    rows = await tx.execute(select(tenants.c.shard, func.count().label("tenants")).group_by(tenants.c.shard))
    return {row.shard: row.tenants for row in rows}


async def page(
    tx: Tx, *, email: str | None = None, before_id: str | None = None, limit: int = 50
) -> tuple[list[ListedTenant], str | None]:
    """Return a page of tenants whose user's email contains `email`, newest first, and the id of the next page."""
    unindexed = None if email is None else lambda c: [c.email.contains(normalize_email(email), autoescape=True)]
    return await newest_page(
        tx, ListedTenant, _listed(), tenants.c.id, before=before_id, limit=limit, unindexed=unindexed
    )
