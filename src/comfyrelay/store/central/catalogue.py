"""Workflows, effects and fleets."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Float, Text, and_, bindparam, delete, insert, or_, select, union, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.gallery import prompt_placeholder
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord, WorkflowVersionRecord
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.store.central.tables.catalogue import effects, workflow_versions, workflows
from comfyrelay.store.central.tables.workers import fleets, worker_workflows, workflow_fleets
from comfyrelay.store.database import Tx, conflict_on_violation
from comfyrelay.store.paging import newest_page, page
from comfyrelay.store.row_parameters import rows_table, with_rows
from comfyrelay.store.types import json_value, relay_now

_WORKFLOW_FIELDS = tuple(WorkflowRecord.__dataclass_fields__)
_EFFECT_FIELDS = tuple(EffectRecord.__dataclass_fields__)
_WORKFLOW = [workflows.c[name] for name in _WORKFLOW_FIELDS]
_EFFECT = [effects.c[name] for name in _EFFECT_FIELDS]
FLEET_COLUMNS = [fleets.c[name] for name in FleetRecord.__dataclass_fields__]
_VERSION = [workflow_versions.c[name] for name in WorkflowVersionRecord.__dataclass_fields__]
_VERSIONED = ("graph_path", "properties", "output_node_id", "output_extension", "output_mime_type")
_PRESENT = workflows.c.deleted_at.is_(None)
# Versions of a private workflow that are kept. Their graphs count towards the limit of the tenant.
MAX_PRIVATE_VERSIONS = 20


async def create_workflow(tx: Tx, **values: Any) -> WorkflowRecord:
    # Both times are equal until the first change.
    now = await tx.now()
    query = insert(workflows).values(**values, created_at=now, updated_at=now)
    with conflict_on_violation(f"There is already a workflow {values['slug']!r}."):
        created = await tx.one(WorkflowRecord, query.returning(*_WORKFLOW))
    await _record_version(tx, created)
    return created


async def update_workflow(tx: Tx, workflow_id: int, **values: Any) -> WorkflowRecord:
    query = update(workflows).where(workflows.c.id == workflow_id).values(**values, updated_at=relay_now())
    changed = await tx.one(WorkflowRecord, query.returning(*_WORKFLOW))
    if values.keys() & set(_VERSIONED):
        await _record_version(tx, changed)
    return changed


async def _record_version(tx: Tx, workflow: WorkflowRecord) -> None:
    """Record a new version if it differs from the last one. A workflow that waits for nodes has no version."""
    newest = await version(tx, workflow.id)
    values = {name: getattr(workflow, name) for name in _VERSIONED}
    if workflow.waiting is not None or (newest and values == {name: getattr(newest, name) for name in _VERSIONED}):
        return
    number = newest.number + 1 if newest else 1
    query = insert(workflow_versions).values(workflow_id=workflow.id, number=number, **values)
    await tx.execute(query.values(created_at=relay_now()))
    if workflow.tenant_id is not None:
        v = workflow_versions.c
        is_old = (v.workflow_id == workflow.id) & (v.number <= number - MAX_PRIVATE_VERSIONS)
        await tx.execute(delete(workflow_versions).where(is_old))


async def used_graphs(tx: Tx, paths: Collection[str]) -> set[str]:
    """Return the graphs that are used by a workflow or one of its versions."""
    of_workflows = select(workflows.c.graph_path).where(workflows.c.graph_path.in_(list(paths)), _PRESENT)
    of_versions = select(workflow_versions.c.graph_path).where(workflow_versions.c.graph_path.in_(list(paths)))
    return set(await tx.scalars(union(of_workflows, of_versions)))


async def forget_properties(tx: Tx, paths: Collection[str]) -> None:
    """Clear the properties of deleted workflows whose graph was removed, because they only described inputs of jobs."""
    is_unused = workflows.c.graph_path.in_(list(paths)) & workflows.c.deleted_at.is_not(None)
    await tx.execute(update(workflows).where(is_unused).values(properties=[]))


async def version(tx: Tx, workflow_id: int, number: int | None = None) -> WorkflowVersionRecord | None:
    """Return a version by number, or the newest."""
    query = select(*_VERSION).where(workflow_versions.c.workflow_id == workflow_id)
    if number is not None:
        query = query.where(workflow_versions.c.number == number)
    return await tx.one_or_none(WorkflowVersionRecord, query.order_by(workflow_versions.c.number.desc()).limit(1))


async def list_versions(
    tx: Tx, workflow_id: int, *, before: int | None, limit: int
) -> tuple[list[WorkflowVersionRecord], int | None]:
    """Return a page, newest first, and the number of the next page."""
    query = select(*_VERSION).where(workflow_versions.c.workflow_id == workflow_id)
    return await newest_page(tx, WorkflowVersionRecord, query, workflow_versions.c.number, before=before, limit=limit)


async def workflow(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> WorkflowRecord | None:
    rows = await tx.fetch(_workflow_by_slug if slug is not None else _workflow_by_id, {"slug": slug, "id": id_})
    return _as_workflow(rows[0]) if rows else None


def _as_workflow(values: Sequence[Any]) -> WorkflowRecord:
    found = dict(zip(_WORKFLOW_FIELDS, values, strict=True))
    return WorkflowRecord(**{**found, **{name: json_value(found[name]) for name in ("properties", "waiting")}})


@cache
def _workflow_by_slug(_dialect: str) -> Executable:
    return select(*_WORKFLOW).where(workflows.c.slug == bindparam("slug", type_=Text()), _PRESENT)


@cache
def _workflow_by_id(_dialect: str) -> Executable:
    return select(*_WORKFLOW).where(workflows.c.id == bindparam("id", type_=BigInteger()), _PRESENT)


async def lock_workflow(tx: Tx, slug: str, *, to_delete: bool = False) -> WorkflowRecord | None:
    """Lock the workflow against changes; with `to_delete`, also against new use."""
    query = select(*_WORKFLOW).where(workflows.c.slug == slug, _PRESENT)
    return await tx.one_or_none(WorkflowRecord, query.with_for_update(key_share=not to_delete))


async def workflow_to_use(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> WorkflowRecord | None:
    """Return the workflow, locked against changes and deletion until the transaction ends."""
    condition = workflows.c.slug == slug if slug is not None else workflows.c.id == id_
    query = select(*_WORKFLOW).where(condition, _PRESENT).with_for_update(read=True)
    return await tx.one_or_none(WorkflowRecord, query)


async def present_workflows(tx: Tx, ids: Iterable[int]) -> set[int]:
    """Return the ids of the workflows that exist."""
    return set(await tx.scalars(select(workflows.c.id).where(_PRESENT, workflows.c.id.in_(sorted(ids)))))


async def list_workflows(
    tx: Tx, *, tenant_id: str | None, is_active: bool | None, after_slug: str | None, limit: int
) -> tuple[list[WorkflowRecord], str | None]:
    """Return a page of the catalogue's workflows, or of a tenant's, by slug, and the slug of the next page."""
    # SQLAlchemy renders a comparison with `None` as IS NULL.
    query = select(*_WORKFLOW).where(_PRESENT, workflows.c.tenant_id == tenant_id)
    if is_active is not None:
        query = query.where(workflows.c.is_active == is_active)
    return await page(tx, WorkflowRecord, query, workflows.c.slug, after=after_slug, limit=limit)


async def delete_workflow(tx: Tx, workflow_id: int) -> None:
    """Delete a workflow from the view of users. Its row remains for finished dispatches."""
    for table in (workflow_fleets, worker_workflows, workflow_versions):
        await tx.execute(delete(table).where(table.c.workflow_id == workflow_id))
    query = update(workflows).where(workflows.c.id == workflow_id)
    await tx.execute(query.values(deleted_at=relay_now(), updated_at=relay_now(), is_active=False))


async def workflows_by_id(tx: Tx, ids: Iterable[int]) -> dict[int, WorkflowRecord]:
    """Return workflows by id, including deleted ones."""
    query = select(*_WORKFLOW).where(workflows.c.id.in_(set(ids)))
    return {workflow.id: workflow for workflow in await tx.all(WorkflowRecord, query)}


async def effect_slugs(tx: Tx, ids: Iterable[int]) -> dict[int, str]:
    query = select(effects.c.id, effects.c.slug).where(effects.c.id.in_(set(ids)))
    return {row.id: row.slug for row in await tx.execute(query)}


async def workflow_slugs(tx: Tx, ids: Iterable[int]) -> dict[int, str]:
    """Return slugs by id, including deleted workflows."""
    query = select(workflows.c.id, workflows.c.slug).where(workflows.c.id.in_(set(ids)))
    return {row.id: row.slug for row in await tx.execute(query)}


class NamedWorkflow(NamedTuple):
    """The name of a workflow, and the placeholder of its main prompt, if any. Workflows of the catalogue have no
    tenant."""

    slug: str
    name: str
    kind: str | None = None
    tenant_id: str | None = None
    prompt: str | None = None


async def workflow_names(tx: Tx, ids: Iterable[int]) -> dict[int, NamedWorkflow]:
    """Return names by id, including deleted workflows."""
    w = workflows.c
    columns = (w.id, w.slug, w.name, w.kind, w.tenant_id, w.properties)
    rows = await tx.execute(select(*columns).where(w.id.in_(set(ids))))
    return {
        row.id: NamedWorkflow(row.slug, row.name, row.kind, row.tenant_id, prompt_placeholder(row.properties))
        for row in rows
    }


async def find_workflows(tx: Tx, tenant_id: str, *, slug: str | None = None, part: str = "") -> frozenset[int]:
    """Return workflows of the catalogue and the tenant by slug, or by a part of slug or name, including deleted ones,
    whose outputs remain."""
    w = workflows.c
    matches = (
        w.slug == slug
        if slug is not None
        else or_(w.slug.icontains(part, autoescape=True), w.name.icontains(part, autoescape=True))
    )
    is_visible = or_(w.tenant_id.is_(None), w.tenant_id == tenant_id)
    return frozenset(await tx.scalars(select(w.id).where(matches, is_visible)))


async def create_effect(tx: Tx, **values: Any) -> EffectRecord:
    query = insert(effects).values(**values, created_at=relay_now(), updated_at=relay_now())
    with conflict_on_violation(f"There is already an effect {values['slug']!r}."):
        return await tx.one(EffectRecord, query.returning(*_EFFECT))


async def update_effect(tx: Tx, effect_id: int, **values: Any) -> EffectRecord:
    query = update(effects).where(effects.c.id == effect_id).values(**values, updated_at=relay_now())
    return await tx.one(EffectRecord, query.returning(*_EFFECT))


async def effect(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> EffectRecord | None:
    rows = await tx.fetch(_effect_by_slug if slug is not None else _effect_by_id, {"slug": slug, "id": id_})
    return _as_effect(rows[0]) if rows else None


def _as_effect(values: Sequence[Any]) -> EffectRecord:
    found = dict(zip(_EFFECT_FIELDS, values, strict=True))
    return EffectRecord(
        **{**found, **{name: json_value(found[name]) for name in ("property_overrides", "asset_hashes")}}
    )


async def effect_with_workflow(tx: Tx, id_: int) -> tuple[EffectRecord | None, WorkflowRecord | None]:
    """Return an effect and its workflow in one query, because every submission needs both."""
    rows = await tx.fetch(_effect_with_workflow, {"id": id_})
    if not rows:
        return None, None
    values = tuple(rows[0])
    of_effect, of_workflow = values[: len(_EFFECT)], values[len(_EFFECT) :]
    # The id is null if there is no workflow.
    return _as_effect(of_effect), _as_workflow(of_workflow) if of_workflow[0] is not None else None


@cache
def _effect_with_workflow(_dialect: str) -> Executable:
    joined = effects.outerjoin(workflows, and_(workflows.c.id == effects.c.workflow_id, _PRESENT))
    # Both tables have a column `id`, so the columns need labels.
    columns = [column.label(f"c{number}") for number, column in enumerate([*_EFFECT, *_WORKFLOW])]
    return select(*columns).select_from(joined).where(effects.c.id == bindparam("id", type_=BigInteger()))


@cache
def _effect_by_slug(_dialect: str) -> Executable:
    return select(*_EFFECT).where(effects.c.slug == bindparam("slug", type_=Text()))


@cache
def _effect_by_id(_dialect: str) -> Executable:
    return select(*_EFFECT).where(effects.c.id == bindparam("id", type_=BigInteger()))


async def list_effects(
    tx: Tx, *, workflow_id: int | None, is_active: bool | None, after_slug: str | None, limit: int
) -> tuple[list[EffectRecord], str | None]:
    query = select(*_EFFECT)
    if workflow_id is not None:
        query = query.where(effects.c.workflow_id == workflow_id)
    if is_active is not None:
        query = query.where(effects.c.is_active == is_active)
    return await page(tx, EffectRecord, query, effects.c.slug, after=after_slug, limit=limit)


async def effects_of(tx: Tx, workflow_id: int) -> list[EffectRecord]:
    query = select(*_EFFECT).where(effects.c.workflow_id == workflow_id).order_by(effects.c.slug)
    return await tx.all(EffectRecord, query)


async def lock_effect(tx: Tx, slug: str) -> EffectRecord | None:
    query = select(*_EFFECT).where(effects.c.slug == slug).with_for_update(key_share=True)
    return await tx.one_or_none(EffectRecord, query)


async def delete_effect(tx: Tx, slug: str) -> bool:
    query = delete(effects).where(effects.c.slug == slug).returning(effects.c.id)
    return await tx.exists(query)


async def record_processing_times(tx: Tx, seconds: Mapping[int, float]) -> None:
    rows = [{"id": effect_id, "seconds": value} for effect_id, value in seconds.items()]
    await tx.write(_record_processing_times, with_rows(rows))


@cache
def _record_processing_times(dialect: str) -> Executable:
    r = rows_table(dialect, {"id": BigInteger(), "seconds": Float(53)})
    # Skip effects that another settlement has locked. Otherwise all completions of a popular effect would wait for one
    # row.
    locked = (
        select(effects.c.id, r.c.seconds)
        .join(r, effects.c.id == r.c.id)
        .with_for_update(of=effects, skip_locked=True)
        .subquery()
    )
    return update(effects).values(last_processing_time_seconds=locked.c.seconds).where(effects.c.id == locked.c.id)


async def create_fleet(tx: Tx, **values: Any) -> FleetRecord:
    query = insert(fleets).values(**values, created_at=relay_now())
    with conflict_on_violation(f"There is already a {values['stage']} fleet {values['slug']!r}."):
        return await tx.one(FleetRecord, query.returning(*FLEET_COLUMNS))


async def fleet(tx: Tx, *, stage: str, slug: str, lock: bool = False) -> FleetRecord | None:
    query = select(*FLEET_COLUMNS).where(fleets.c.stage == stage, fleets.c.slug == slug)
    if lock:
        query = query.with_for_update(key_share=True)
    return await tx.one_or_none(FleetRecord, query)


async def map_workflows(tx: Tx, fleet_id: int, workflow_ids: Sequence[int]) -> None:
    """Replace the workflows of a fleet. Users' own workflows are kept, because operators' lists do not contain them."""
    m = workflow_fleets.c
    own = select(workflows.c.id).where(workflows.c.tenant_id.is_not(None))
    replaced = or_(m.workflow_id.not_in(own), m.workflow_id.in_(workflow_ids))
    await tx.execute(delete(workflow_fleets).where(m.fleet_id == fleet_id, replaced))
    if workflow_ids:
        rows = [{"fleet_id": fleet_id, "workflow_id": workflow_id} for workflow_id in workflow_ids]
        await tx.execute(insert(workflow_fleets).values(rows))


async def map_workflow(tx: Tx, fleet_id: int, workflow_id: int) -> None:
    """Add a workflow to a fleet that does not have it yet."""
    await tx.execute(insert(workflow_fleets).values(fleet_id=fleet_id, workflow_id=workflow_id))
