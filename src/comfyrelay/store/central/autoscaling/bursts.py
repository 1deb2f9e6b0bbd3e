"""Bursts: jobs that went to the cloud, their budget and their outcome."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    insert,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.lifecycle import Transition
from comfyrelay.domain.queue.states import DispatchStatus, Provider
from comfyrelay.domain.records.workers import BurstRecord
from comfyrelay.store.central.tables.accounts import tenants
from comfyrelay.store.central.tables.autoscaling import bursts
from comfyrelay.store.central.tables.catalogue import effects, workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_workflows, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_first
from comfyrelay.store.row_parameters import columns_of, ids_table, rows_table, with_ids, with_rows
from comfyrelay.store.types import relay_now, sql_literal

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NewBurst:
    dispatch_id: int
    workflow_id: int
    stage: str
    expected_cost_micros: int
    reason: str
    seen: Mapping[str, Any]


class WaitingDispatch(NamedTuple):
    """A queued dispatch with the fields that decide whether it bursts."""

    id: int
    workflow_id: int
    workflow_hash: str
    effect_id: int | None
    priority: int
    rank: int
    waited_from: datetime
    max_wait_seconds: int | None
    effect_max_wait_seconds: int | None
    tenant_max_wait_seconds: int | None
    cloud_micros_per_second: int | None
    expected_cost_micros: int | None
    shard: str


class ServingWorker(NamedTuple):
    """An online worker and the providers that it reports; `None` if it reports none."""

    worker_id: str
    fleet_id: int
    slots: int
    providers: Sequence[str] | None
    workflow_ids: frozenset[int]


async def lock(tx: Tx) -> None:
    """Lock the budget, so that one process at a time counts and spends it."""
    if tx.dialect == "postgresql":
        await tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('comfyrelay.bursts'))"))


_MAY_BURST = and_(workflows.c.may_burst, workflows.c.is_active, workflows.c.deleted_at.is_(None))
_IS_OPEN = bursts.c.ended_at.is_(None)


async def concerns_any(tx: Tx) -> bool:
    """Whether any workflow may burst, or has jobs in the cloud."""
    (row,) = await tx.fetch(_concerns_any, {})
    return bool(row.concerns_any)


@cache
def _concerns_any(_dialect: str) -> Executable:
    may_go, are_there = select(workflows.c.id).where(_MAY_BURST), select(bursts.c.id).where(_IS_OPEN)
    return select(or_(may_go.exists(), are_there.exists()).label("concerns_any"))


async def limits(tx: Tx) -> dict[int, int | None]:
    """Return the workflows that may burst, with their cost limits per hour."""
    rows = await tx.execute(select(workflows.c.id, workflows.c.burst_micros_per_hour).where(_MAY_BURST))
    return {row.id: row.burst_micros_per_hour for row in rows}


async def spent(tx: Tx) -> dict[int, int]:
    """Return by workflow the cost of bursts that ended within the hour, plus the expected cost of open ones."""
    found: dict[int, int] = defaultdict(int)
    for query in (open_query(), ended_query()):
        for row in await tx.execute(query):
            found[row.workflow_id] += int(row.micros)
    return dict(found)


def open_query() -> Select[Any]:
    cost, expected = bursts.c.cost_micros, bursts.c.expected_cost_micros
    micros = func.sum(case((cost > expected, cost), else_=expected)).label("micros")
    return select(bursts.c.workflow_id, micros).where(_IS_OPEN).group_by(bursts.c.workflow_id)


def ended_query() -> Select[Any]:
    micros = func.sum(bursts.c.cost_micros).label("micros")
    lately = bursts.c.ended_at > relay_now(-HOUR_SECONDS)
    return select(bursts.c.workflow_id, micros).where(lately).group_by(bursts.c.workflow_id)


async def open_workflows(tx: Tx) -> set[int]:
    """Return the workflows with open bursts."""
    query = select(bursts.c.workflow_id).where(_IS_OPEN).distinct()
    return set((await tx.scalars(query)).all())


async def queue(
    tx: Tx, *, stage: str, provider: Provider, workflow_ids: Collection[int], most: int, down_shards: Collection[str]
) -> list[WaitingDispatch]:
    """Return leasable dispatches in queue order, at most `most` per workflow."""
    given = {**with_ids(sorted(workflow_ids)), "stage": stage, "provider": provider, "most": most}
    rows = [WaitingDispatch._make(row) for row in await tx.fetch(queue_query, given)]
    return sorted(
        (each for each in rows if each.shard not in down_shards),
        key=lambda each: (-each.priority, each.rank, each.id),
    )


@cache
def queue_query(dialect: str) -> Executable:
    r, q = ids_table(dialect), d.alias("first")
    conditions = [
        q.c.status == sql_literal(DispatchStatus.QUEUED),
        q.c.stage == bindparam("stage", type_=Text()),
        q.c.provider == bindparam("provider", type_=Text()),
        q.c.attempts < q.c.max_attempts,
        q.c.available_at <= relay_now(),
        # a dispatch that is pinned to a worker cannot burst
        q.c.only_worker.is_(None),
    ]
    order = (q.c.priority.desc(), q.c.rank, q.c.id)
    most = bindparam("most", type_=BigInteger())
    if dialect == "postgresql":
        # through the queue index, workflow by workflow, up to the limit
        first = select(q.c.id).where(*conditions, q.c.workflow_id == r.c.id).order_by(*order).limit(most).lateral("q")
        source = r.join(first, true()).join(d, d.c.id == first.c.id)
        return select(*_waiting_columns()).select_from(_with_others(source))
    place = func.row_number().over(partition_by=q.c.workflow_id, order_by=order).label("place")
    placed = select(q.c.id, place).join(r, q.c.workflow_id == r.c.id).where(*conditions).subquery("q")
    source = placed.join(d, d.c.id == placed.c.id)
    return select(*_waiting_columns()).select_from(_with_others(source)).where(placed.c.place <= most)


def _with_others(source: Any) -> Any:
    return source.outerjoin(effects, effects.c.id == d.c.effect_id).outerjoin(tenants, tenants.c.id == d.c.tenant_id)


def _waiting_columns() -> list[ColumnElement[Any]]:
    return [
        d.c.id,
        d.c.workflow_id,
        d.c.workflow_hash,
        d.c.effect_id,
        d.c.priority,
        d.c.rank,
        d.c.available_at,
        d.c.max_wait_seconds,
        effects.c.max_wait_seconds.label("effect_max_wait_seconds"),
        tenants.c.max_wait_seconds.label("tenant_max_wait_seconds"),
        d.c.cloud_micros_per_second,
        d.c.expected_cost_micros,
        d.c.shard,
    ]


async def serving(tx: Tx, *, stage: str, stale_seconds: float) -> list[ServingWorker]:
    """Return the workers of a stage that can get jobs."""
    is_there = (
        workers.c.stage == stage,
        workers.c.is_approved,
        ~workers.c.is_draining,
        workers.c.last_seen_at >= relay_now(-stale_seconds),
    )
    query = select(workers.c.worker_id, workers.c.fleet_id, workers.c.max_concurrency, workers.c.providers)
    rows = (await tx.execute(query.where(*is_there).order_by(workers.c.worker_id))).all()
    assigned = select(worker_workflows.c.worker_id, worker_workflows.c.workflow_id)
    ids = [row.worker_id for row in rows]
    its: dict[str, set[int]] = defaultdict(set)
    for row in await tx.execute(assigned.where(worker_workflows.c.worker_id.in_(ids))):
        its[row.worker_id].add(row.workflow_id)
    return [
        ServingWorker(row.worker_id, row.fleet_id, row.max_concurrency, row.providers, frozenset(its[row.worker_id]))
        for row in rows
    ]


async def write(tx: Tx, new: Sequence[NewBurst]) -> None:
    if new:
        await tx.write(_write, with_rows(new))


@cache
def _write(dialect: str) -> Executable:
    names = tuple(NewBurst.__dataclass_fields__)
    r = rows_table(dialect, columns_of(bursts, *names))
    return insert(bursts).from_select([*names, "created_at"], select(*(r.c[name] for name in names), relay_now()))


async def note(tx: Tx, transitions: Iterable[Transition], *, at: datetime) -> None:
    """Record the effect of transitions on bursts: the cost of a cloud run, and its end."""
    rows = [
        {
            "dispatch_id": transition.after.id,
            "cost_micros": transition.after.cost_micros - transition.before.cost_micros
            if _was_there(transition)
            else 0,
            "ended_at": at if transition.after.is_terminal or _is_back(transition) else None,
            "back_reason": transition.reason if _is_back(transition) else None,
        }
        for transition in transitions
        if transition.before.has_burst
        and (_is_back(transition) or transition.after.is_terminal or transition.lease_outcome is not None)
    ]
    if rows:
        await tx.write(_note, with_rows(rows))


def _was_there(transition: Transition) -> bool:
    return transition.before.provider == Provider.CLOUD


def _is_back(transition: Transition) -> bool:
    return _was_there(transition) and transition.after.provider == Provider.SELF_HOSTED


@cache
def _note(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(bursts, "dispatch_id", "cost_micros", "ended_at", "back_reason"))
    values = {
        "cost_micros": bursts.c.cost_micros + r.c.cost_micros,
        "ended_at": func.coalesce(bursts.c.ended_at, r.c.ended_at),
        "back_reason": func.coalesce(bursts.c.back_reason, r.c.back_reason),
    }
    return update(bursts).values(values).where(bursts.c.dispatch_id == r.c.dispatch_id)


async def of_dispatch(tx: Tx, dispatch_id: int) -> BurstRecord | None:
    row = (await tx.execute(select(bursts).where(bursts.c.dispatch_id == dispatch_id))).one_or_none()
    return BurstRecord(**row._mapping) if row else None


async def page(
    tx: Tx, *, workflow_id: int | None = None, before_id: int | None = None, limit: int
) -> tuple[list[BurstRecord], int | None]:
    """Return a page, newest first, and the id of the next page."""
    query = select(bursts)
    if before_id is not None:
        query = query.where(bursts.c.id < before_id)
    loose = None if workflow_id is None else lambda c: [c.workflow_id == workflow_id]
    rows, before = await newest_first(tx, query, bursts.c.id, limit=limit, loose=loose)
    return [BurstRecord(**row._mapping) for row in rows], before
