"""Named views of an area of the web app."""

from collections.abc import Mapping

from sqlalchemy import delete, insert, select

from comfyrelay.domain.records.jobs import SavedView
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.tables import saved_views as v
from comfyrelay.store.types import relay_now

_VIEW = [v.c[name] for name in SavedView.__dataclass_fields__]


async def of_area(tx: Tx, tenant_id: str, area: str) -> list[SavedView]:
    """Return the views of an area in order of creation."""
    query = select(*_VIEW).where(v.c.tenant_id == tenant_id, v.c.area == area).order_by(v.c.id)
    return await tx.all(SavedView, query)


async def save(tx: Tx, *, id_: str, tenant_id: str, area: str, name: str, search: Mapping[str, str]) -> SavedView:
    """Save a view, replacing one of the same name."""
    await tx.execute(delete(v).where(v.c.tenant_id == tenant_id, v.c.area == area, v.c.name == name))
    values = {"id": id_, "tenant_id": tenant_id, "area": area, "name": name, "search": dict(search)}
    return await tx.one(SavedView, insert(v).values(**values, created_at=relay_now()).returning(*_VIEW))


async def remove(tx: Tx, tenant_id: str, view_id: str) -> bool:
    """Delete a view; false if it does not exist."""
    query = delete(v).where(v.c.tenant_id == tenant_id, v.c.id == view_id)
    return await tx.exists(query.returning(v.c.id))
