"""Tenants, their users, and the pool each tenant lives in."""

from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from comfyrelay.domain.records.accounts import ListedTenant, Tenant, User
from comfyrelay.errors import Conflict
from comfyrelay.store.central.tables import tenants, users
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_first
from comfyrelay.store.types import relay_now

_TENANT = [tenants.c[name] for name in Tenant.__dataclass_fields__]
USER_COLUMNS = [users.c[name] for name in User.__dataclass_fields__]


async def create(tx: Tx, tenant: Tenant, **user: Any) -> User:
    query = insert(tenants).values(id=tenant.id, name=tenant.name, db_pool=tenant.db_pool, created_at=relay_now())
    await tx.execute(query)
    new_user = insert(users).values(**user, tenant_id=tenant.id, created_at=relay_now())
    try:
        row = (await tx.execute(new_user.returning(*USER_COLUMNS))).one()
    except IntegrityError as error:
        raise Conflict(f"There is already a user {user['email']!r}.") from error
    return User(**row._mapping)


async def get(tx: Tx, tenant_id: str) -> Tenant | None:
    row = (await tx.execute(select(*_TENANT).where(tenants.c.id == tenant_id))).one_or_none()
    return Tenant(**row._mapping) if row else None


async def lock(tx: Tx, tenant_id: str) -> None:
    """Held against others who change what the tenant has as a whole, until the transaction ends."""
    await tx.execute(select(tenants.c.id).where(tenants.c.id == tenant_id).with_for_update(key_share=True))


async def set_max_wait(tx: Tx, tenant_id: str, seconds: int | None) -> bool:
    """How long its jobs may wait before they may cost more; whether there is such a tenant."""
    query = update(tenants).where(tenants.c.id == tenant_id).values(max_wait_seconds=seconds)
    return (await tx.execute(query.returning(tenants.c.id))).first() is not None


async def user(tx: Tx, user_id: str) -> User | None:
    row = (await tx.execute(select(*USER_COLUMNS).where(users.c.id == user_id))).one_or_none()
    return User(**row._mapping) if row else None


async def password_hash(tx: Tx, email: str) -> tuple[User, str | None] | None:
    """A user and the hash of the password, by email."""
    row = (await tx.execute(select(*USER_COLUMNS, users.c.password_hash).where(users.c.email == email))).one_or_none()
    if row is None:
        return None
    fields = dict(row._mapping)
    hashed = fields.pop("password_hash")
    return User(**fields), hashed


async def count_by_pool(tx: Tx) -> dict[str, int]:
    result = await tx.execute(select(tenants.c.db_pool, func.count().label("jobs")).group_by(tenants.c.db_pool))
    return {row.db_pool: row.jobs for row in result}


async def page(
    tx: Tx, *, email: str | None = None, before_id: str | None = None, limit: int = 50
) -> tuple[list[ListedTenant], str | None]:
    """The newest tenants first, those whose user's email contains `email`; and the id to go on before."""
    of_user = [users.c.id.label("user_id"), users.c.email, users.c.name, users.c.is_admin]
    query = select(tenants.c.id, tenants.c.db_pool, tenants.c.max_wait_seconds, tenants.c.created_at, *of_user)
    query = query.join_from(tenants, users, users.c.tenant_id == tenants.c.id)
    if before_id is not None:
        query = query.where(tenants.c.id < before_id)
    loose = None if email is None else lambda c: [c.email.contains(email.lower(), autoescape=True)]
    rows, before = await newest_first(tx, query, tenants.c.id, limit=limit, loose=loose)
    return [ListedTenant(**row._mapping) for row in rows], before
