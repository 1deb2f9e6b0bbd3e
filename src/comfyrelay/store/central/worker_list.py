"""The worker registry as an operator looks at it: who is in which state, with how many leases."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select

from comfyrelay.domain.records.fleet import BlockedHash, Equipped, ListedWorker
from comfyrelay.domain.states import WorkerState
from comfyrelay.store.central.dispatches import LEASES
from comfyrelay.store.central.tables import fleets, worker_workflows, workers, workflow_blocks, workflows
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import one_page
from comfyrelay.store.types import relay_now, word

_OWN = [workers.c[name] for name in ListedWorker.__dataclass_fields__ if name not in {"fleet_slug", "state", "leases"}]


def _state(stale_seconds: float) -> ColumnElement[str]:
    return case(
        (~workers.c.is_approved, word(WorkerState.REVOKED)),
        (workers.c.last_seen_at < relay_now(-stale_seconds), word(WorkerState.OFFLINE)),
        (workers.c.is_draining, word(WorkerState.DRAINING)),
        (LEASES > 0, word(WorkerState.BUSY)),
        else_=word(WorkerState.IDLE),
    )


def _listed(stale_seconds: float) -> Select[Any]:
    shown = [*_OWN, fleets.c.slug.label("fleet_slug"), LEASES.label("leases"), _state(stale_seconds).label("state")]
    return select(*shown).join(fleets, fleets.c.id == workers.c.fleet_id)


async def page(
    tx: Tx,
    *,
    stale_seconds: float,
    fleet_slug: str | None = None,
    stage: str | None = None,
    state: str | None = None,
    after_id: str | None = None,
    limit: int = 50,
) -> tuple[list[ListedWorker], str | None]:
    """Workers by their ids, and the id to go on after."""
    query = _listed(stale_seconds).order_by(workers.c.worker_id).limit(limit + 1)
    if fleet_slug is not None:
        query = query.where(fleets.c.slug == fleet_slug)
    if stage is not None:
        query = query.where(workers.c.stage == stage)
    if state is not None:
        query = query.where(_state(stale_seconds) == state)
    if after_id is not None:
        query = query.where(workers.c.worker_id > after_id)
    rows, after = one_page((await tx.execute(query)).all(), "worker_id", limit=limit)
    return [ListedWorker(**row._mapping) for row in rows], after


async def get(tx: Tx, worker_id: str, *, stale_seconds: float) -> tuple[ListedWorker, Mapping[str, Any]] | None:
    """A worker, and what it says it has."""
    query = _listed(stale_seconds).add_columns(workers.c.capabilities).where(workers.c.worker_id == worker_id)
    row = (await tx.execute(query)).one_or_none()
    if row is None:
        return None
    fields = dict(row._mapping)
    capabilities = fields.pop("capabilities")
    return ListedWorker(**fields), capabilities


async def count_by_state(tx: Tx, fleet_id: int, *, stale_seconds: float) -> dict[str, int]:
    each = select(_state(stale_seconds).label("state")).where(workers.c.fleet_id == fleet_id).subquery()
    query = select(each.c.state, func.count().label("workers")).group_by(each.c.state)
    return {row.state: row.workers for row in await tx.execute(query)}


async def assigned_workflows(tx: Tx, worker_id: str) -> list[str]:
    query = (
        select(workflows.c.slug)
        .join(worker_workflows, worker_workflows.c.workflow_id == workflows.c.id)
        .where(worker_workflows.c.worker_id == worker_id)
        .order_by(workflows.c.slug)
    )
    return list((await tx.scalars(query)).all())


async def blocks_of(tx: Tx, worker_id: str) -> list[BlockedHash]:
    """What the worker failed at lately, and until when it is kept from it."""
    b = workflow_blocks
    columns = [b.c[name] for name in BlockedHash.__dataclass_fields__]
    query = select(*columns).where(b.c.worker_id == worker_id).order_by(b.c.workflow_hash)
    return [BlockedHash(**row._mapping) for row in await tx.execute(query)]


async def capabilities_of(
    tx: Tx, workflow_id: int, *, after_id: str | None, limit: int
) -> tuple[Sequence[Equipped], str | None]:
    """The workers that have a workflow, with what each says it has; and the id to go on after."""
    query = (
        select(workers.c.worker_id, fleets.c.slug.label("fleet_slug"), workers.c.stage, workers.c.capabilities)
        .join(worker_workflows, worker_workflows.c.worker_id == workers.c.worker_id)
        .join(fleets, fleets.c.id == workers.c.fleet_id)
        .where(worker_workflows.c.workflow_id == workflow_id)
        .order_by(workers.c.worker_id)
        .limit(limit + 1)
    )
    if after_id is not None:
        query = query.where(workers.c.worker_id > after_id)
    rows, after = one_page((await tx.execute(query)).all(), "worker_id", limit=limit)
    return [Equipped(**row._mapping) for row in rows], after


async def node_types(tx: Tx, *, stage: str, fleet_slug: str | None = None) -> list[list[str]]:
    """The classes of nodes of each approved worker that says which it has."""
    query = (
        select(workers.c.capabilities)
        .join(fleets, fleets.c.id == workers.c.fleet_id)
        .where(workers.c.stage == stage, workers.c.is_approved)
    )
    if fleet_slug is not None:
        query = query.where(fleets.c.slug == fleet_slug)
    reported = [each.get("node_types") for each in await tx.scalars(query)]
    return [[name for name in each if isinstance(name, str)] for each in reported if isinstance(each, list)]


async def assigned_to(tx: Tx, workflow_id: int) -> int:
    """How many workers have a workflow."""
    query = select(func.count()).where(worker_workflows.c.workflow_id == workflow_id)
    return int(await tx.scalar(query) or 0)
