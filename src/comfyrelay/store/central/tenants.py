"""Tenants, their users and their shards."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, func, insert, select, type_coerce, update
from sqlalchemy.exc import IntegrityError

from comfyrelay.domain.records.accounts import ListedTenant, ListedUser, TenantRecord, User
from comfyrelay.errors import Conflict
from comfyrelay.store.central.tables.accounts import api_tokens, tenants, users
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_page
from comfyrelay.store.types import UtcTime, relay_now

_TENANT = [tenants.c[name] for name in TenantRecord.__dataclass_fields__]
USER_COLUMNS = [users.c[name] for name in User.__dataclass_fields__]


async def create(tx: Tx, tenant: TenantRecord, **user: Any) -> User:
    query = insert(tenants).values(id=tenant.id, name=tenant.name, shard=tenant.shard, created_at=relay_now())
    await tx.execute(query)
    new_user = insert(users).values(**user, tenant_id=tenant.id, created_at=relay_now())
    try:
        row = (await tx.execute(new_user.returning(*USER_COLUMNS))).one()
    except IntegrityError as error:
        raise Conflict(f"There is already a user {user['email']!r}.") from error
    return User(**row._mapping)


async def get(tx: Tx, tenant_id: str) -> TenantRecord | None:
    return await tx.one_or_none(TenantRecord, select(*_TENANT).where(tenants.c.id == tenant_id))


async def lock(tx: Tx, tenant_id: str) -> None:
    """Lock a tenant until the transaction ends."""
    await tx.execute(select(tenants.c.id).where(tenants.c.id == tenant_id).with_for_update(key_share=True))


async def change(tx: Tx, tenant_id: str, **limits: int | None) -> bool:
    """Set limits of a tenant; false if it does not exist."""
    query = update(tenants).where(tenants.c.id == tenant_id).values(**limits)
    return await tx.exists(query.returning(tenants.c.id))


async def max_active_jobs(tx: Tx, tenant_id: str) -> int | None:
    found: int | None = await tx.scalar(select(tenants.c.max_active_jobs).where(tenants.c.id == tenant_id))
    return found


async def users_of(tx: Tx, tenant_id: str, *, session: str) -> list[ListedUser]:
    """Return a tenant's users. Tokens named `session` belong to browsers."""
    is_session, theirs = api_tokens.c.name == session, api_tokens.c.user_id == users.c.id
    last = select(func.max(api_tokens.c.created_at)).where(theirs, is_session).scalar_subquery()
    is_valid = api_tokens.c.expires_at.is_(None) | (api_tokens.c.expires_at > relay_now())
    tokens = (
        select(func.count()).where(theirs, ~is_session, api_tokens.c.revoked_at.is_(None), is_valid).scalar_subquery()
    )
    own = ("id", "tenant_id", "email", "name", "is_admin", "created_at", "disabled_at")
    query = select(
        *(users.c[name] for name in own),
        users.c.password_hash.is_not(None).label("has_password"),
        type_coerce(last, UtcTime()).label("last_sign_in_at"),
        tokens.label("api_tokens"),
    ).where(users.c.tenant_id == tenant_id)
    return await tx.all(ListedUser, query)


async def lock_admins(tx: Tx) -> set[str]:
    """Return the administrators, locked against changes."""
    may = users.c.is_admin & users.c.disabled_at.is_(None)
    return set(await tx.scalars(select(users.c.id).where(may).order_by(users.c.id).with_for_update()))


async def change_user(
    tx: Tx, user_id: str, *, is_admin: bool | None, is_disabled: bool | None, name: str | None
) -> User | None:
    values: dict[str, Any] = {}
    if is_admin is not None:
        values["is_admin"] = is_admin
    if name is not None:
        values["name"] = name
    if is_disabled is not None:
        values["disabled_at"] = func.coalesce(users.c.disabled_at, relay_now()) if is_disabled else None
    query = update(users).where(users.c.id == user_id).values(**values).returning(*USER_COLUMNS)
    return await tx.one_or_none(User, query)


async def is_disabled(tx: Tx, user_id: str) -> bool:
    query = select(users.c.id).where(users.c.id == user_id, users.c.disabled_at.is_not(None))
    return await tx.exists(query)


async def listed(tx: Tx, tenant_id: str) -> ListedTenant | None:
    return await tx.one_or_none(ListedTenant, _listed().where(tenants.c.id == tenant_id))


def _listed() -> Select[Any]:
    own = ("id", "shard", "max_wait_seconds", "max_active_jobs", "created_at")
    of_user = (users.c.email, users.c.name, users.c.is_admin, users.c.disabled_at)
    query = select(*(tenants.c[name] for name in own), users.c.id.label("user_id"), *of_user)
    return query.join_from(tenants, users, users.c.tenant_id == tenants.c.id)


async def user(tx: Tx, user_id: str) -> User | None:
    return await tx.one_or_none(User, select(*USER_COLUMNS).where(users.c.id == user_id))


async def emails_of(tx: Tx, tenant_ids: Collection[str]) -> dict[str, str]:
    """Return the emails of users by tenant."""
    query = select(users.c.tenant_id, users.c.email).where(users.c.tenant_id.in_(list(tenant_ids)))
    return {row.tenant_id: row.email for row in await tx.execute(query)}


async def emails(tx: Tx, user_ids: Collection[str]) -> dict[str, str]:
    """Return emails by user id."""
    query = select(users.c.id, users.c.email).where(users.c.id.in_(list(user_ids)))
    return {row.id: row.email for row in await tx.execute(query)}


async def has_admin(tx: Tx) -> bool:
    return await tx.exists(select(users.c.id).where(users.c.is_admin).limit(1))


async def password_hash(tx: Tx, email: str) -> tuple[User, str | None] | None:
    """Return a user and the password hash by email."""
    row = (await tx.execute(select(*USER_COLUMNS, users.c.password_hash).where(users.c.email == email))).one_or_none()
    if row is None:
        return None
    fields = dict(row._mapping)
    hashed = fields.pop("password_hash")
    return User(**fields), hashed


async def lock_password(tx: Tx, user_id: str, password_hash: str) -> bool:
    """Whether this is the password hash of an enabled user, locked against changes."""
    query = select(users.c.id).where(
        users.c.id == user_id, users.c.password_hash == password_hash, users.c.disabled_at.is_(None)
    )
    return await tx.exists(query.with_for_update(read=True))


async def set_password(tx: Tx, user_id: str, password_hash: str) -> None:
    await tx.execute(update(users).where(users.c.id == user_id).values(password_hash=password_hash))


async def count_by_shard(tx: Tx) -> dict[str, int]:
    result = await tx.execute(select(tenants.c.shard, func.count().label("jobs")).group_by(tenants.c.shard))
    return {row.shard: row.jobs for row in result}


async def page(
    tx: Tx, *, email: str | None = None, before_id: str | None = None, limit: int = 50
) -> tuple[list[ListedTenant], str | None]:
    """Return a page of tenants whose user's email contains `email`, newest first, and the id of the next page."""
    unindexed = None if email is None else lambda c: [c.email.contains(email.lower(), autoescape=True)]
    return await newest_page(
        tx, ListedTenant, _listed(), tenants.c.id, before=before_id, limit=limit, unindexed=unindexed
    )
