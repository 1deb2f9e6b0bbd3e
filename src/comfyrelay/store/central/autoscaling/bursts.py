"""Bursts: jobs that went to the cloud, their budget and their outcome."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    FromClause,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.dispatch import Transition
from comfyrelay.domain.queue.states import DispatchStatus, Provider
from comfyrelay.domain.records.workers import BurstRecord
from comfyrelay.store.central.queue.pauses import is_free
from comfyrelay.store.central.tables.accounts import tenants
from comfyrelay.store.central.tables.autoscaling import bursts
from comfyrelay.store.central.tables.catalogue import effects, workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_workflows, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest_page
from comfyrelay.store.row_parameters import columns_of, ids_table, insert_rows, rows_table, with_ids, with_rows
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
    """A queued dispatch with the fields that decide whether it goes to the cloud."""

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
    """A worker that gets jobs while it is online. `providers` is `None` if the worker reports none."""

    worker_id: str
    fleet_id: int
    slots: int
    providers: Sequence[str] | None
    workflow_ids: frozenset[int]


async def lock(tx: Tx) -> None:
    """Lock the burst budget, so that only one process at a time reads and spends it."""
    if tx.dialect == "postgresql":
        await tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('comfyrelay.bursts'))"))


_MAY_BURST = and_(workflows.c.may_burst, workflows.c.is_active, workflows.c.deleted_at.is_(None))
_IS_OPEN = bursts.c.ended_at.is_(None)


async def are_in_use(tx: Tx) -> bool:
    """Return whether any workflow may burst, or has jobs in the cloud."""
    (row,) = await tx.fetch(_are_in_use, {})
    return bool(row.are_in_use)


@cache
def _are_in_use(_dialect: str) -> Executable:
    may_burst, is_open = select(workflows.c.id).where(_MAY_BURST), select(bursts.c.id).where(_IS_OPEN)
    return select(or_(may_burst.exists(), is_open.exists()).label("are_in_use"))


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
    is_recent = bursts.c.ended_at > relay_now(-HOUR_SECONDS)
    return select(bursts.c.workflow_id, micros).where(is_recent).group_by(bursts.c.workflow_id)


async def open_workflows(tx: Tx) -> set[int]:
    """Return the workflows with open bursts."""
    return set(await tx.scalars(select(bursts.c.workflow_id).where(_IS_OPEN).distinct()))


async def queue(
    tx: Tx, *, stage: str, provider: Provider, workflow_ids: Collection[int], limit: int, down_shards: Collection[str]
) -> list[WaitingDispatch]:
    """Return leasable dispatches in queue order, at most `limit` per workflow."""
    parameters = {**with_ids(sorted(workflow_ids)), "stage": stage, "provider": provider, "limit": limit}
    waiting = map(WaitingDispatch._make, await tx.fetch(queue_query, parameters))
    reachable = (dispatch for dispatch in waiting if dispatch.shard not in down_shards)
    return sorted(reachable, key=lambda dispatch: (-dispatch.priority, dispatch.rank, dispatch.id))


@cache
def queue_query(dialect: str) -> Executable:
    r, q = ids_table(dialect), d.alias("first")
    conditions = [
        q.c.status == sql_literal(DispatchStatus.QUEUED),
        q.c.stage == bindparam("stage", type_=Text()),
        q.c.provider == bindparam("provider", type_=Text()),
        q.c.attempts < q.c.max_attempts,
        q.c.available_at <= relay_now(),
        # A dispatch that is pinned to a worker cannot burst.
        q.c.only_worker.is_(None),
        is_free(q.c.tenant_id),
    ]
    order = (q.c.priority.desc(), q.c.rank, q.c.id)
    limit = bindparam("limit", type_=BigInteger())
    if dialect == "postgresql":
        # Read the queue index workflow by workflow, up to the limit.
        first = select(q.c.id).where(*conditions, q.c.workflow_id == r.c.id).order_by(*order).limit(limit).lateral("q")
        return _select_waiting(r.join(first, true()).join(d, d.c.id == first.c.id))
    place = func.row_number().over(partition_by=q.c.workflow_id, order_by=order).label("place")
    placed = select(q.c.id, place).join(r, q.c.workflow_id == r.c.id).where(*conditions).subquery("q")
    return _select_waiting(placed.join(d, d.c.id == placed.c.id)).where(placed.c.place <= limit)


def _select_waiting(source: FromClause) -> Select[Any]:
    """Select the fields of `WaitingDispatch`, in their order."""
    query = select(
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
    )
    joined = source.outerjoin(effects, effects.c.id == d.c.effect_id)
    return query.select_from(joined.outerjoin(tenants, tenants.c.id == d.c.tenant_id))


async def serving(tx: Tx, *, stage: str, offline_seconds: float | None) -> list[ServingWorker]:
    """Return the workers of a stage that can get jobs; without `offline_seconds`, also those that are offline."""
    w = workers.c
    is_online = true() if offline_seconds is None else w.last_seen_at >= relay_now(-offline_seconds)
    query = select(w.worker_id, w.fleet_id, w.max_concurrency, w.providers).order_by(w.worker_id)
    is_able = is_online & w.unavailable_since.is_(None)
    rows = (await tx.execute(query.where(w.stage == stage, w.is_approved, ~w.is_draining, is_able))).all()
    assigned: dict[str, set[int]] = defaultdict(set)
    of_workers = worker_workflows.c.worker_id.in_([row.worker_id for row in rows])
    for row in await tx.execute(select(worker_workflows).where(of_workers)):
        assigned[row.worker_id].add(row.workflow_id)
    return [ServingWorker._make((*row, frozenset(assigned[row.worker_id]))) for row in rows]


async def write(tx: Tx, new: Sequence[NewBurst]) -> None:
    if new:
        await tx.write(_write, with_rows(new))


@cache
def _write(dialect: str) -> Executable:
    names = NewBurst.__dataclass_fields__
    return insert_rows(dialect, bursts, *names, created_at=relay_now())


async def record_transitions(tx: Tx, transitions: Iterable[Transition], *, at: datetime) -> None:
    """Record the cost of cloud runs, and the end of bursts."""
    rows = []
    for transition in transitions:
        before, after = transition.before, transition.after
        was_in_cloud = before.provider == Provider.CLOUD
        has_returned = was_in_cloud and after.provider == Provider.SELF_HOSTED
        has_ended = has_returned or after.is_terminal
        if before.has_burst and (has_ended or transition.lease_outcome is not None):
            row = {
                "dispatch_id": after.id,
                "cost_micros": after.cost_micros - before.cost_micros if was_in_cloud else 0,
                "ended_at": at if has_ended else None,
                "back_reason": transition.reason if has_returned else None,
            }
            rows.append(row)
    if rows:
        await tx.write(_record_transitions, with_rows(rows))


@cache
def _record_transitions(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(bursts, "dispatch_id", "cost_micros", "ended_at", "back_reason"))
    values = {
        "cost_micros": bursts.c.cost_micros + r.c.cost_micros,
        "ended_at": func.coalesce(bursts.c.ended_at, r.c.ended_at),
        "back_reason": func.coalesce(bursts.c.back_reason, r.c.back_reason),
    }
    return update(bursts).values(values).where(bursts.c.dispatch_id == r.c.dispatch_id)


async def of_dispatch(tx: Tx, dispatch_id: int) -> BurstRecord | None:
    return await tx.one_or_none(BurstRecord, select(bursts).where(bursts.c.dispatch_id == dispatch_id))


async def page(
    tx: Tx, *, workflow_id: int | None = None, before_id: int | None = None, limit: int
) -> tuple[list[BurstRecord], int | None]:
    """Return a page, newest first, and the id of the next page."""
    unindexed = None if workflow_id is None else lambda c: [c.workflow_id == workflow_id]
    return await newest_page(
        tx, BurstRecord, select(bursts), bursts.c.id, before=before_id, limit=limit, unindexed=unindexed
    )
