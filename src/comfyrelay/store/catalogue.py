"""Workflows, effects and fleets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Float, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql import Executable

from comfyrelay.errors import Conflict
from comfyrelay.store.central import effects, fleets, workflow_fleets, workflows
from comfyrelay.store.database import Tx
from comfyrelay.store.rows import rows_table, with_rows
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class Workflow:
    id: int
    slug: str
    name: str
    tenant_id: str | None
    kind: str
    provider: str
    graph_path: str
    properties: Sequence[Mapping[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    id: int
    slug: str
    name: str
    workflow_id: int
    property_overrides: Mapping[str, Any]
    credits_cost: int
    is_active: bool
    last_processing_time_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    id: int
    slug: str
    stage: str
    name: str
    max_workers: int | None


_WORKFLOW = [workflows.c[name] for name in Workflow.__dataclass_fields__]
_EFFECT = [effects.c[name] for name in Effect.__dataclass_fields__]
_FLEET = [fleets.c[name] for name in Fleet.__dataclass_fields__]


async def create_workflow(tx: Tx, **values: Any) -> Workflow:
    query = insert(workflows).values(**values, created_at=relay_now(), updated_at=relay_now())
    try:
        row = (await tx.execute(query.returning(*_WORKFLOW))).one()
    except IntegrityError as error:
        raise Conflict(f"There is already a workflow {values['slug']!r}.") from error
    return Workflow(**row._mapping)


async def update_workflow(tx: Tx, workflow_id: int, **values: Any) -> Workflow:
    query = update(workflows).where(workflows.c.id == workflow_id).values(**values, updated_at=relay_now())
    return Workflow(**(await tx.execute(query.returning(*_WORKFLOW))).one()._mapping)


async def workflow(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> Workflow | None:
    condition = workflows.c.slug == slug if slug is not None else workflows.c.id == id_
    row = (await tx.execute(select(*_WORKFLOW).where(condition))).one_or_none()
    return Workflow(**row._mapping) if row else None


async def existing_workflows(tx: Tx, ids: Iterable[int]) -> set[int]:
    return set((await tx.scalars(select(workflows.c.id).where(workflows.c.id.in_(list(ids))))).all())


async def create_effect(tx: Tx, **values: Any) -> Effect:
    query = insert(effects).values(**values, created_at=relay_now(), updated_at=relay_now())
    try:
        row = (await tx.execute(query.returning(*_EFFECT))).one()
    except IntegrityError as error:
        raise Conflict(f"There is already an effect {values['slug']!r}.") from error
    return Effect(**row._mapping)


async def update_effect(tx: Tx, effect_id: int, **values: Any) -> Effect:
    query = update(effects).where(effects.c.id == effect_id).values(**values, updated_at=relay_now())
    return Effect(**(await tx.execute(query.returning(*_EFFECT))).one()._mapping)


async def effect(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> Effect | None:
    condition = effects.c.slug == slug if slug is not None else effects.c.id == id_
    row = (await tx.execute(select(*_EFFECT).where(condition))).one_or_none()
    return Effect(**row._mapping) if row else None


async def note_processing_times(tx: Tx, seconds: Mapping[int, float]) -> None:
    rows = [{"id": effect_id, "seconds": value} for effect_id, value in seconds.items()]
    await tx.write(_note_processing_times, with_rows(rows))


@cache
def _note_processing_times(dialect: str) -> Executable:
    r = rows_table(dialect, {"id": BigInteger(), "seconds": Float(53)})
    # An effect that another settlement is timing this moment is left to it: one row that every completion of a popular
    # effect had to lock would make them all queue up behind each other.
    locked = (
        select(effects.c.id, r.c.seconds)
        .join(r, effects.c.id == r.c.id)
        .with_for_update(of=effects, skip_locked=True)
        .subquery()
    )
    return update(effects).values(last_processing_time_seconds=locked.c.seconds).where(effects.c.id == locked.c.id)


async def create_fleet(tx: Tx, **values: Any) -> Fleet:
    query = insert(fleets).values(**values, created_at=relay_now())
    try:
        row = (await tx.execute(query.returning(*_FLEET))).one()
    except IntegrityError as error:
        raise Conflict(f"There is already a {values['stage']} fleet {values['slug']!r}.") from error
    return Fleet(**row._mapping)


async def fleet(tx: Tx, *, stage: str, slug: str, lock: bool = False) -> Fleet | None:
    query = select(*_FLEET).where(fleets.c.stage == stage, fleets.c.slug == slug)
    if lock:
        query = query.with_for_update(key_share=True)
    row = (await tx.execute(query)).one_or_none()
    return Fleet(**row._mapping) if row else None


async def map_workflows(tx: Tx, fleet_id: int, workflow_ids: Sequence[int]) -> None:
    """Make these, and only these, the workflows of a fleet."""
    await tx.execute(delete(workflow_fleets).where(workflow_fleets.c.fleet_id == fleet_id))
    if workflow_ids:
        rows = [{"fleet_id": fleet_id, "workflow_id": each} for each in workflow_ids]
        await tx.execute(insert(workflow_fleets).values(rows))
