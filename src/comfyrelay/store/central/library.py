"""The effects and the private workflows that a tenant can run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select, tuple_

from comfyrelay.domain.queue.states import WorkflowKind
from comfyrelay.domain.records.catalogue import EffectRecord, WorkflowRecord
from comfyrelay.store.central.tables.catalogue import effects, workflows
from comfyrelay.store.central.tables.workers import workflow_fleets
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest, short_page
from comfyrelay.store.types import relay_now

_EFFECT = [effects.c[name].label(f"effect_{name}") for name in EffectRecord.__dataclass_fields__]
_OF_EFFECT = [workflows.c[name].label(f"workflow_{name}") for name in WorkflowRecord.__dataclass_fields__]
_WORKFLOW = [workflows.c[name] for name in WorkflowRecord.__dataclass_fields__]


@dataclass(frozen=True, kw_only=True, slots=True)
class UsableEffect:
    """An active effect and its workflow."""

    effect: EffectRecord
    workflow: WorkflowRecord


async def usable_effects(tx: Tx, *, after_id: int = 0, limit: int = 50) -> tuple[list[UsableEffect], bool]:
    """Return a page of active effects by position, then by age, and whether there are more."""
    last = effects.alias()
    # The effect may have been deleted.
    position = func.coalesce(select(last.c.position).where(last.c.id == after_id).scalar_subquery(), 0)
    rows = _usable_effects().where(tuple_(effects.c.position, effects.c.id) > tuple_(position, after_id))
    return await short_page(
        tx,
        _usable_effect,
        rows,
        workflows.c.properties,
        lambda query, rows: query.order_by(effects.c.position, effects.c.id).limit(rows),
        limit=limit,
    )


async def usable_effect(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> UsableEffect | None:
    condition = effects.c.slug == slug if slug is not None else effects.c.id == id_
    return await tx.one_or_none(_usable_effect, _usable_effects().where(condition))


def _usable_effects() -> Select[Any]:
    query = select(*_EFFECT, *_OF_EFFECT).join(workflows, workflows.c.id == effects.c.workflow_id)
    return query.where(effects.c.is_active, workflows.c.is_active)


def _usable_effect(**fields: Any) -> UsableEffect:
    return UsableEffect(
        effect=EffectRecord(**{name: fields[f"effect_{name}"] for name in EffectRecord.__dataclass_fields__}),
        workflow=WorkflowRecord(**{name: fields[f"workflow_{name}"] for name in WorkflowRecord.__dataclass_fields__}),
    )


async def slugs(tx: Tx, effect_ids: Iterable[int]) -> dict[int, str]:
    """Return the slugs of effects by id, including inactive ones."""
    query = select(effects.c.id, effects.c.slug).where(effects.c.id.in_(list(effect_ids)))
    return {row.id: row.slug for row in await tx.execute(query)}


def _own(tenant_id: str) -> Select[Any]:
    is_own = (workflows.c.tenant_id == tenant_id) & workflows.c.deleted_at.is_(None)
    return select(*_WORKFLOW).where(is_own, ~workflows.c.is_unlisted)


async def own_workflows(
    tx: Tx, tenant_id: str, *, before_id: int | None = None, limit: int = 50
) -> tuple[list[WorkflowRecord], bool]:
    """Return a page of a tenant's workflows, newest first, and whether there are more."""
    return await short_page(
        tx,
        WorkflowRecord,
        _own(tenant_id),
        workflows.c.properties,
        lambda query, rows: newest(query, workflows.c.id, before=before_id, limit=rows),
        limit=limit,
    )


async def count_own(tx: Tx, tenant_id: str) -> int:
    return await tx.scalar(select(func.count()).select_from(_own(tenant_id).subquery())) or 0


async def own_workflow(tx: Tx, tenant_id: str, slug: str) -> WorkflowRecord | None:
    return await tx.one_or_none(WorkflowRecord, _own(tenant_id).where(workflows.c.slug == slug))


async def own_named(tx: Tx, tenant_id: str, name: str) -> WorkflowRecord | None:
    """Return a tenant's workflow with this name, otherwise one that was added under it; the newest if there are
    several."""
    w = workflows.c
    is_named = (w.name == name) | (w.added_as == name)
    query = _own(tenant_id).where(is_named, w.is_active, w.kind == WorkflowKind.GRAPH)
    return await tx.one_or_none(WorkflowRecord, query.order_by((w.name == name).desc(), w.id.desc()).limit(1))


async def own_names(tx: Tx, tenant_id: str) -> set[str]:
    return set(await tx.scalars(_own(tenant_id).with_only_columns(workflows.c.name)))


async def own_with_graph(tx: Tx, tenant_id: str, graph_path: str) -> list[WorkflowRecord]:
    """Return a tenant's workflows with this graph, oldest first."""
    query = _own(tenant_id).where(workflows.c.graph_path == graph_path).order_by(workflows.c.id)
    return await tx.all(WorkflowRecord, query)


def _unlisted() -> Select[Any]:
    return select(*_WORKFLOW).where(workflows.c.is_unlisted, workflows.c.deleted_at.is_(None))


async def unlisted_with_graph(tx: Tx, tenant_id: str, graph_path: str) -> list[WorkflowRecord]:
    """Return a tenant's unlisted workflows with this graph, oldest first."""
    query = _unlisted().where(workflows.c.tenant_id == tenant_id, workflows.c.graph_path == graph_path)
    return await tx.all(WorkflowRecord, query.order_by(workflows.c.id))


async def recently_used(tx: Tx, workflow_id: int, *, used_seconds: float) -> WorkflowRecord | None:
    """Return an unlisted workflow that a submission has used within this time."""
    query = _unlisted().where(workflows.c.id == workflow_id, workflows.c.updated_at > relay_now(-used_seconds))
    return await tx.one_or_none(WorkflowRecord, query)


async def count_unlisted(tx: Tx, tenant_id: str) -> int:
    query = select(func.count()).select_from(_unlisted().where(workflows.c.tenant_id == tenant_id).subquery())
    return await tx.scalar(query) or 0


async def oldest_unlisted(tx: Tx, tenant_id: str, *, unused_seconds: float, limit: int) -> list[WorkflowRecord]:
    """Return the unlisted workflows of a tenant that no submission has used for this long, oldest use first."""
    is_old = workflows.c.updated_at <= relay_now(-unused_seconds)
    query = _unlisted().where(workflows.c.tenant_id == tenant_id, is_old)
    return await tx.all(WorkflowRecord, query.order_by(workflows.c.updated_at, workflows.c.id).limit(limit))


async def unused_unlisted(tx: Tx, *, unused_seconds: float, after_id: int, limit: int) -> list[WorkflowRecord]:
    """Return a page of the unlisted workflows of all tenants that no submission has used for this long."""
    is_old = workflows.c.updated_at <= relay_now(-unused_seconds)
    query = _unlisted().where(is_old, workflows.c.id > after_id)
    return await tx.all(WorkflowRecord, query.order_by(workflows.c.id).limit(limit))


async def waiting(tx: Tx, *, after_id: int = 0, limit: int) -> list[WorkflowRecord]:
    """Return a page of the private workflows of all tenants that wait for nodes."""
    query = select(*_WORKFLOW).where(workflows.c.waiting.is_not(None), workflows.c.deleted_at.is_(None))
    query = query.where(workflows.c.id > after_id, workflows.c.tenant_id.is_not(None))
    return await tx.all(WorkflowRecord, query.order_by(workflows.c.id).limit(limit))


async def has_fleet(tx: Tx, workflow_id: int) -> bool:
    """Return whether a fleet runs the workflow."""
    return await tx.exists(select(workflow_fleets).where(workflow_fleets.c.workflow_id == workflow_id).limit(1))
