"""Lists of workers with state and leases, for operators."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, Text, bindparam, case, cast, func, or_, select

from comfyrelay.domain.capabilities import CapabilitySummary
from comfyrelay.domain.queue.states import WorkerState
from comfyrelay.domain.queue.worker_order import SortedWorker, WorkerSort
from comfyrelay.domain.records.workers import (
    BlockedHash,
    ListedWorker,
    UnmetHash,
    WorkerJobRecord,
    WorkerMachine,
    WorkerReport,
)
from comfyrelay.store.central.queue.dispatches import LEASED, LEASES
from comfyrelay.store.central.queue.progress import PROGRESS_COLUMNS, progress_in
from comfyrelay.store.central.tables.autoscaling import machines
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import (
    fleets,
    instance_identities,
    worker_audit_logs,
    worker_workflows,
    workers,
    workflow_blocks,
)
from comfyrelay.store.central.tables.workers import worker_missing_requirements as missing
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import page
from comfyrelay.store.row_parameters import ids_table, with_ids
from comfyrelay.store.types import json_value, relay_now, sql_literal

Seconds = float | ColumnElement[Any]
_COMPUTED = {"fleet_slug", "state", "leases", "blocked", "comfyui"}
_OWN = [workers.c[name] for name in ListedWorker.__dataclass_fields__ if name not in _COMPUTED]
_BLOCKED = (
    select(func.count())
    .where(workflow_blocks.c.worker_id == workers.c.worker_id, workflow_blocks.c.blocked_until > relay_now())
    .correlate(workers)
    .scalar_subquery()
)
# Number of a worker's newest leases that are searched for the names of its workflow hashes.
NEWEST_LEASES = 300


def state_of(offline_seconds: Seconds) -> ColumnElement[str]:
    return case(
        (~workers.c.is_approved, sql_literal(WorkerState.REVOKED)),
        (workers.c.last_seen_at < relay_now(-offline_seconds), sql_literal(WorkerState.OFFLINE)),
        (workers.c.is_draining, sql_literal(WorkerState.DRAINING)),
        (workers.c.unavailable_since.is_not(None), sql_literal(WorkerState.NO_COMFYUI)),
        (LEASES > 0, sql_literal(WorkerState.BUSY)),
        else_=sql_literal(WorkerState.IDLE),
    )


def comfyui_column(dialect: str) -> ColumnElement[Any]:
    """Return the worker's report about its servers at registration."""
    if dialect == "postgresql":
        return func.json_extract_path_text(workers.c.capability_summary, "capabilities", "comfyui")
    return func.json_extract(workers.c.capability_summary, "$.capabilities.comfyui")


def _listed(offline_seconds: Seconds, dialect: str) -> Select[Any]:
    return select(
        *_OWN,
        fleets.c.slug.label("fleet_slug"),
        LEASES.label("leases"),
        state_of(offline_seconds).label("state"),
        _BLOCKED.label("blocked"),
        # A worker that reports its GPUs does not need this report.
        case((workers.c.devices.is_(None), comfyui_column(dialect))).label("comfyui"),
    ).join(fleets, fleets.c.id == workers.c.fleet_id)


def _worker(fields: Mapping[str, Any]) -> ListedWorker:
    decoded = {name: json_value(fields[name]) for name in ("devices", "warm_hashes", "comfyui")}
    return ListedWorker(**{**fields, **decoded})


def _gpu(dialect: str) -> ColumnElement[Any]:
    """Return the name of the first GPU."""
    if dialect == "postgresql":
        return func.json_extract_path_text(workers.c.devices, "0", "name")
    return func.json_extract(workers.c.devices, "$[0].name")


def _sorted_by(sort: WorkerSort, offline_seconds: Seconds, dialect: str) -> ColumnElement[Any]:
    match sort:
        case WorkerSort.NAME:
            return func.coalesce(func.nullif(workers.c.display_name, ""), workers.c.worker_id)
        case WorkerSort.STATE:
            return state_of(offline_seconds)
        case WorkerSort.FLEET:
            return fleets.c.slug + "/" + workers.c.stage
        case WorkerSort.GPU:
            return _gpu(dialect)
        case WorkerSort.VERSION:
            return workers.c.version
        case WorkerSort.SEEN:
            return workers.c.last_seen_at


async def places(
    tx: Tx,
    *,
    offline_seconds: float,
    sort: WorkerSort,
    fleet_slug: str | None = None,
    stage: str | None = None,
    search: str | None = None,
) -> list[SortedWorker]:
    """Return all matching workers, unordered, with only the fields that sorting and counting need."""
    parameters = {"offline_seconds": offline_seconds, "fleet_slug": fleet_slug, "stage": stage}
    if not (terms := (search or "").split()):
        return list(map(SortedWorker._make, await tx.fetch(places_query(sort), parameters)))
    query = places_query(sort)(tx.dialect).where(*(_matches(term, tx.dialect) for term in terms))
    return list(map(SortedWorker._make, await tx.execute(query, parameters)))


@cache
def places_query(sort: WorkerSort) -> Callable[[str], Select[Any]]:
    """Return the builder of the query. It is cached per order, because every page of the list reads all workers."""

    @cache
    def query(dialect: str) -> Select[Any]:
        offline_seconds = bindparam("offline_seconds", type_=Float())
        fleet_slug, stage = bindparam("fleet_slug", type_=Text()), bindparam("stage", type_=Text())
        key = _sorted_by(sort, offline_seconds, dialect).label("key")
        return (
            select(workers.c.worker_id, state_of(offline_seconds).label("state"), key)
            .join(fleets, fleets.c.id == workers.c.fleet_id)
            .where(
                or_(cast(fleet_slug, Text).is_(None), fleets.c.slug == fleet_slug),
                or_(cast(stage, Text).is_(None), workers.c.stage == stage),
            )
        )

    return query


def _matches(term: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition that a visible field of a worker contains the term."""
    w = workers.c
    columns = (w.worker_id, w.display_name, fleets.c.slug, w.version, w.instance_type, _gpu(dialect))
    runs = (
        select(d.c.id)
        .join(workflows, workflows.c.id == d.c.workflow_id)
        .where(d.c.worker_id == w.worker_id, LEASED, workflows.c.slug.icontains(term, autoescape=True))
        .correlate(workers)
        .exists()
    )
    return or_(*(column.icontains(term, autoescape=True) for column in columns), runs)


async def listed(tx: Tx, worker_ids: Sequence[str], *, offline_seconds: float) -> list[ListedWorker]:
    """Return these workers in this order, without deleted ones."""
    if not worker_ids:
        return []
    rows = await tx.fetch(listed_query, {**with_ids(worker_ids), "offline_seconds": offline_seconds})
    found = {row.worker_id: _worker(row._mapping) for row in rows}
    return [found[worker_id] for worker_id in worker_ids if worker_id in found]


@cache
def listed_query(dialect: str) -> Select[Any]:
    r = ids_table(dialect, Text)
    return _listed(bindparam("offline_seconds", type_=Float()), dialect).join(r, workers.c.worker_id == r.c.id)


async def get(tx: Tx, worker_id: str, *, offline_seconds: float) -> tuple[ListedWorker, CapabilitySummary] | None:
    """Return a worker with a summary of its capabilities."""
    query = _listed(offline_seconds, tx.dialect).add_columns(workers.c.capability_summary)
    return await tx.one_or_none(_with_summary, query.where(workers.c.worker_id == worker_id))


def _with_summary(
    *, capability_summary: Mapping[str, Any] | None, **fields: Any
) -> tuple[ListedWorker, CapabilitySummary]:
    return _worker(fields), CapabilitySummary(**(capability_summary or {}))


async def jobs_of(tx: Tx, worker_ids: Sequence[str]) -> dict[str, list[WorkerJobRecord]]:
    """Return the leased jobs of each worker, oldest first."""
    if not worker_ids:
        return {}
    found: dict[str, list[WorkerJobRecord]] = {}
    for row in await tx.fetch(jobs_query, with_ids(worker_ids)):
        values = {name: row._mapping[name] for name in WorkerJobRecord.__dataclass_fields__}
        job = WorkerJobRecord(**{**values, "progress": progress_in(row)})
        found.setdefault(job.worker_id, []).append(job)
    return found


@cache
def jobs_query(dialect: str) -> Select[Any]:
    r = ids_table(dialect, Text)
    return (
        select(
            d.c.id.label("dispatch_id"),
            d.c.tenant_job_id.label("job_id"),
            d.c.tenant_id,
            d.c.worker_id,
            workflows.c.slug.label("workflow_slug"),
            *PROGRESS_COLUMNS,
        )
        .join(workflows, workflows.c.id == d.c.workflow_id)
        .join(r, d.c.worker_id == r.c.id)
        .where(LEASED)
        .order_by(d.c.leased_at, d.c.id)
    )


async def recent_hashes(tx: Tx, worker_id: str) -> dict[str, str]:
    """Return workflow slugs by hash, from the recent leases of a worker."""
    a = worker_audit_logs
    newest = select(a.c.dispatch_id).where(a.c.worker_id == worker_id).order_by(a.c.id.desc()).limit(NEWEST_LEASES)
    query = select(d.c.workflow_hash, workflows.c.slug).join(workflows, workflows.c.id == d.c.workflow_id)
    return {row.workflow_hash: row.slug for row in await tx.execute(query.where(d.c.id.in_(newest)).distinct())}


async def unmet_hashes(tx: Tx, worker_id: str) -> list[UnmetHash]:
    columns = [missing.c[name] for name in UnmetHash.__dataclass_fields__]
    query = select(*columns).where(missing.c.worker_id == worker_id).order_by(missing.c.workflow_hash)
    return await tx.all(UnmetHash, query)


async def has_identity(tx: Tx, worker_id: str) -> bool:
    """Return whether the worker registered with its identity document."""
    return await tx.exists(select(instance_identities).where(instance_identities.c.instance_id == worker_id))


async def machine_of(tx: Tx, worker_id: str) -> WorkerMachine | None:
    columns = [machines.c[name] for name in WorkerMachine.__dataclass_fields__]
    query = select(*columns).where(machines.c.worker_id == worker_id).order_by(machines.c.ordered_at.desc()).limit(1)
    return await tx.one_or_none(WorkerMachine, query)


async def count_by_state(tx: Tx, fleet_id: int, *, offline_seconds: float) -> dict[str, int]:
    states = select(state_of(offline_seconds).label("state")).where(workers.c.fleet_id == fleet_id).subquery()
    query = select(states.c.state, func.count().label("workers")).group_by(states.c.state)
    return {row.state: row.workers for row in await tx.execute(query)}


async def assigned_workflows(tx: Tx, worker_id: str) -> list[str]:
    query = (
        select(workflows.c.slug)
        .join(worker_workflows, worker_workflows.c.workflow_id == workflows.c.id)
        .where(worker_workflows.c.worker_id == worker_id)
        .order_by(workflows.c.slug)
    )
    return await tx.scalars(query)


async def blocks_of(tx: Tx, worker_id: str) -> list[BlockedHash]:
    """Return the recent failures of a worker and the end of each block."""
    b = workflow_blocks
    columns = [b.c[name] for name in BlockedHash.__dataclass_fields__]
    query = select(*columns).where(b.c.worker_id == worker_id).order_by(b.c.workflow_hash)
    return await tx.all(BlockedHash, query)


async def current_blocks(tx: Tx) -> list[tuple[str, BlockedHash]]:
    """Return the workers that are blocked now, with each block."""
    b = workflow_blocks
    names = tuple(BlockedHash.__dataclass_fields__)
    query = select(b.c.worker_id, *(b.c[name] for name in names)).where(b.c.blocked_until > relay_now())
    rows = await tx.execute(query.order_by(b.c.worker_id, b.c.workflow_hash))
    return [(row.worker_id, BlockedHash(**{name: row._mapping[name] for name in names})) for row in rows]


async def reports_of(
    tx: Tx, workflow_id: int, *, after_id: str | None, limit: int
) -> tuple[Sequence[WorkerReport], str | None]:
    """Return a page of the workers of a workflow with their capabilities, and the id of the next page."""
    report = cast(workers.c.capabilities, Text).label("report")
    query = (
        select(workers.c.worker_id, fleets.c.slug.label("fleet_slug"), workers.c.stage, report)
        .join(worker_workflows, worker_workflows.c.worker_id == workers.c.worker_id)
        .join(fleets, fleets.c.id == workers.c.fleet_id)
        .where(worker_workflows.c.workflow_id == workflow_id)
    )
    return await page(tx, WorkerReport, query, workers.c.worker_id, after=after_id, limit=limit)


async def node_types(tx: Tx, *, stage: str, fleet_slug: str | None = None) -> list[list[str]]:
    """Return the node types of each approved worker that reports them."""
    query = (
        select(workers.c.capabilities)
        .join(fleets, fleets.c.id == workers.c.fleet_id)
        .where(workers.c.stage == stage, workers.c.is_approved)
    )
    if fleet_slug is not None:
        query = query.where(fleets.c.slug == fleet_slug)
    reported = [capabilities.get("node_types") for capabilities in await tx.scalars(query)]
    return [[name for name in names if isinstance(name, str)] for names in reported if isinstance(names, list)]


async def assigned_to(tx: Tx, workflow_id: int) -> int:
    """Count the workers of a workflow."""
    query = select(func.count()).where(worker_workflows.c.workflow_id == workflow_id)
    return int(await tx.scalar(query) or 0)
