"""Presets: named inputs of a tenant."""

from typing import Any

from sqlalchemy import delete, func, insert, select

from comfyrelay.domain.records.catalogue import PresetRecord
from comfyrelay.store.database import Tx, conflict_on_violation
from comfyrelay.store.paging import newest, short_page
from comfyrelay.store.tenant.tables import presets
from comfyrelay.store.types import relay_now

_PRESET = [presets.c[name] for name in PresetRecord.__dataclass_fields__]


async def create(tx: Tx, **values: Any) -> PresetRecord:
    query = insert(presets).values(**values, created_at=relay_now())
    with conflict_on_violation(f"There is already a preset {values['name']!r}."):
        return await tx.one(PresetRecord, query.returning(*_PRESET))


async def count(tx: Tx, tenant_id: str) -> int:
    found: int = await tx.scalar(select(func.count()).where(presets.c.tenant_id == tenant_id))
    return found


async def page(
    tx: Tx, tenant_id: str, *, before_id: str | None = None, limit: int = 50
) -> tuple[list[PresetRecord], bool]:
    """Return a page, newest first, and whether there are more."""
    return await short_page(
        tx,
        PresetRecord,
        select(*_PRESET).where(presets.c.tenant_id == tenant_id),
        presets.c.settings,
        lambda query, rows: newest(query, presets.c.id, before=before_id, limit=rows),
        limit=limit,
    )


async def named(tx: Tx, tenant_id: str, name: str) -> PresetRecord | None:
    query = select(*_PRESET).where(presets.c.tenant_id == tenant_id, presets.c.name == name)
    return await tx.one_or_none(PresetRecord, query)


async def remove(tx: Tx, tenant_id: str, preset_id: str) -> bool:
    """Delete a preset; false if it does not exist."""
    query = delete(presets).where(presets.c.tenant_id == tenant_id, presets.c.id == preset_id)
    return await tx.exists(query.returning(presets.c.id))
