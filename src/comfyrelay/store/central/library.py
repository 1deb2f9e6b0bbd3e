"""What a tenant may choose from: effects that are switched on, and workflows of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, exists, select
from sqlalchemy.exc import IntegrityError

from comfyrelay.domain.records.catalogue import Effect, Workflow
from comfyrelay.errors import Conflict
from comfyrelay.store.central.tables import ai_job_dispatches, effects, workflows
from comfyrelay.store.database import Tx

_EFFECT = [effects.c[name].label(f"effect_{name}") for name in Effect.__dataclass_fields__]
_WORKFLOW = [workflows.c[name].label(f"workflow_{name}") for name in Workflow.__dataclass_fields__]
_OFFERED = effects.c.is_active & workflows.c.is_active


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """An effect that may be used, and the workflow behind it."""

    effect: Effect
    workflow: Workflow


async def offers(tx: Tx, *, after_id: int = 0, limit: int = 50) -> list[Offer]:
    """Effects that may be used, in the order in which they were made, page by page through `after_id`."""
    query = _offers().where(effects.c.id > after_id).order_by(effects.c.id).limit(limit)
    return [_offer(row) for row in await tx.execute(query)]


async def offer(tx: Tx, *, slug: str | None = None, id_: int | None = None) -> Offer | None:
    condition = effects.c.slug == slug if slug is not None else effects.c.id == id_
    row = (await tx.execute(_offers().where(condition))).one_or_none()
    return _offer(row) if row else None


def _offers() -> Any:
    return select(*_EFFECT, *_WORKFLOW).join(workflows, workflows.c.id == effects.c.workflow_id).where(_OFFERED)


def _offer(row: Any) -> Offer:
    fields = row._mapping
    return Offer(
        effect=Effect(**{name: fields[f"effect_{name}"] for name in Effect.__dataclass_fields__}),
        workflow=Workflow(**{name: fields[f"workflow_{name}"] for name in Workflow.__dataclass_fields__}),
    )


async def slugs(tx: Tx, effect_ids: Iterable[int]) -> dict[int, str]:
    """The slugs of effects, switched on or not."""
    query = select(effects.c.id, effects.c.slug).where(effects.c.id.in_(list(effect_ids)))
    return {row.id: row.slug for row in await tx.execute(query)}


def _own(tenant_id: str) -> Any:
    columns = [workflows.c[name] for name in Workflow.__dataclass_fields__]
    return select(*columns).where(workflows.c.tenant_id == tenant_id, workflows.c.deleted_at.is_(None))


async def own_workflows(tx: Tx, tenant_id: str, *, before_id: int | None = None, limit: int = 50) -> list[Workflow]:
    """A tenant's own workflows, newest first, page by page through `before_id`."""
    query = _own(tenant_id).order_by(workflows.c.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(workflows.c.id < before_id)
    return [Workflow(**row._mapping) for row in await tx.execute(query)]


async def own_workflow(tx: Tx, tenant_id: str, slug: str) -> Workflow | None:
    row = (await tx.execute(_own(tenant_id).where(workflows.c.slug == slug))).one_or_none()
    return Workflow(**row._mapping) if row else None


async def older_twin(tx: Tx, workflow: Workflow) -> Workflow | None:
    """Another workflow of the tenant's with this name, graph and properties, made before."""
    columns = workflows.c
    query = (
        _own(workflow.tenant_id or "")
        .where(
            columns.id < workflow.id,
            columns.graph_path == workflow.graph_path,
            columns.name == workflow.name,
            columns.is_active,
        )
        .order_by(columns.id)
    )
    found = [Workflow(**row._mapping) for row in await tx.execute(query)]
    return next((each for each in found if each.properties == workflow.properties), None)


async def remove_workflow(tx: Tx, workflow_id: int) -> None:
    """Remove a workflow that nothing refers to."""
    used = select(exists().where(ai_job_dispatches.c.workflow_id == workflow_id))
    if await tx.scalar(used):
        raise Conflict("Jobs were made with this workflow, so it cannot be deleted.")
    try:
        await tx.execute(delete(workflows).where(workflows.c.id == workflow_id))
    except IntegrityError as error:
        raise Conflict("This workflow is in use, so it cannot be deleted.") from error
