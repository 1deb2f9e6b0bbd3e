"""Tenants, their users, and the pool each tenant lives in."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError

from comfyrelay.errors import Conflict
from comfyrelay.store.central import tenants, users
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    id: str
    name: str
    db_pool: str


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    id: str
    tenant_id: str
    email: str
    name: str
    is_admin: bool


_TENANT = [tenants.c[name] for name in Tenant.__dataclass_fields__]
_USER = [users.c[name] for name in User.__dataclass_fields__]


async def create(tx: Tx, tenant: Tenant, **user: Any) -> User:
    query = insert(tenants).values(id=tenant.id, name=tenant.name, db_pool=tenant.db_pool, created_at=relay_now())
    await tx.execute(query)
    new_user = insert(users).values(**user, tenant_id=tenant.id, created_at=relay_now())
    try:
        row = (await tx.execute(new_user.returning(*_USER))).one()
    except IntegrityError as error:
        raise Conflict(f"There is already a user {user['email']!r}.") from error
    return User(**row._mapping)


async def get(tx: Tx, tenant_id: str) -> Tenant | None:
    row = (await tx.execute(select(*_TENANT).where(tenants.c.id == tenant_id))).one_or_none()
    return Tenant(**row._mapping) if row else None


async def user(tx: Tx, user_id: str) -> User | None:
    row = (await tx.execute(select(*_USER).where(users.c.id == user_id))).one_or_none()
    return User(**row._mapping) if row else None


async def count_by_pool(tx: Tx) -> dict[str, int]:
    result = await tx.execute(select(tenants.c.db_pool, func.count().label("jobs")).group_by(tenants.c.db_pool))
    return {row.db_pool: row.jobs for row in result}
