"""Read the observations of the autoscaler, without locks."""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Float, Integer, Select, bindparam, case, false, func, select

from comfyrelay.domain.queue.states import DispatchStatus, Provider
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.store.central.catalogue import FLEET_COLUMNS
from comfyrelay.store.central.queue.pauses import is_free
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers, workflow_fleets
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, with_ids
from comfyrelay.store.types import json_value, relay_now, sql_literal


class WaitingWork(NamedTuple):
    """Leasable work of a workflow and an effect."""

    workflow_id: int
    effect_id: int | None
    jobs: int


class ObservedWorker(NamedTuple):
    """A worker of a fleet. `last_at` is the time of its last event, since which an idle worker has been idle. While a
    job runs, it is the current time."""

    worker_id: str
    fleet_id: int
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    is_offline: bool
    instance_type: str | None
    created_at: datetime
    last_seen_at: datetime
    last_at: datetime | None
    providers: Sequence[str] | None


class ObservedLease(NamedTuple):
    worker_id: str
    workflow_id: int
    effect_id: int | None
    leased_at: datetime


class Arrival(NamedTuple):
    id: int
    stage: str
    workflow_id: int
    created_at: datetime


async def all_fleets(tx: Tx) -> list[FleetRecord]:
    """Return all fleets in order of creation."""
    return await tx.all(FleetRecord, select(*FLEET_COLUMNS).order_by(fleets.c.id))


async def fleets_with(tx: Tx, workflow_id: int, *, stage: str) -> list[FleetRecord]:
    """Return the fleets of a stage that run a workflow."""
    ids = select(workflow_fleets.c.fleet_id).where(workflow_fleets.c.workflow_id == workflow_id)
    query = select(*FLEET_COLUMNS).where(fleets.c.stage == stage, fleets.c.id.in_(ids)).order_by(fleets.c.id)
    return await tx.all(FleetRecord, query)


async def workflows_of(tx: Tx, fleet_ids: Collection[int]) -> dict[int, set[int]]:
    """Return the workflows of each fleet."""
    found: dict[int, set[int]] = {}
    for row in await tx.fetch(_workflows_of, with_ids(sorted(fleet_ids))):
        found.setdefault(row.fleet_id, set()).add(row.workflow_id)
    return found


@cache
def _workflows_of(dialect: str) -> Select[Any]:
    r = ids_table(dialect)
    return select(workflow_fleets).join_from(r, workflow_fleets, workflow_fleets.c.fleet_id == r.c.id)


def waiting_query(stage: str, workflow_ids: Collection[int], *, down_shards: Sequence[str]) -> Select[Any]:
    """Return the query. It names all leading columns of the queue index, so that the index is used."""
    return (
        select(d.c.workflow_id, d.c.effect_id, func.count().label("jobs"))
        .where(
            d.c.status == sql_literal(DispatchStatus.QUEUED),
            d.c.stage == stage,
            d.c.provider == sql_literal(Provider.SELF_HOSTED),
            d.c.workflow_id.in_(sorted(workflow_ids)),
            d.c.attempts < d.c.max_attempts,
            d.c.available_at <= relay_now(),
            d.c.shard.not_in(list(down_shards)),
            is_free(),
        )
        .group_by(d.c.workflow_id, d.c.effect_id)
    )


async def waiting(
    tx: Tx, stage: str, workflow_ids: Collection[int], *, down_shards: Sequence[str]
) -> list[WaitingWork]:
    if not workflow_ids:
        return []
    rows = await tx.execute(waiting_query(stage, workflow_ids, down_shards=down_shards))
    return [WaitingWork._make(row) for row in rows]


@cache
def workers_query(dialect: str) -> Select[Any]:
    """Select the workers of the given fleets. Only idle ones are looked up in the audit log, which is long."""
    a, w, r = worker_audit_logs, workers.c, ids_table(dialect)
    last = select(a.c.created_at).where(a.c.worker_id == w.worker_id).order_by(a.c.id.desc()).limit(1)
    is_leased = (d.c.worker_id == w.worker_id) & (d.c.status == sql_literal(DispatchStatus.LEASED))
    is_busy = select(d.c.id).where(is_leased).correlate(workers).exists()
    last_at = case((is_busy, relay_now()), else_=last.correlate(workers).scalar_subquery()).label("last_at")
    deadline = relay_now(bindparam("offline_seconds", type_=Float()))
    # A worker whose ComfyUI remains dead is as useless as a missing worker.
    is_dead = func.coalesce(w.unavailable_since < deadline, false())
    is_offline = ((w.last_seen_at < deadline) | is_dead).label("is_offline")
    columns = (w.worker_id, w.fleet_id, w.max_concurrency, w.is_approved, w.is_draining, is_offline)
    query = select(*columns, w.instance_type, w.created_at, w.last_seen_at, last_at, w.providers)
    # Until its ComfyUI has started once, the machine of a worker is still booting.
    has_started = w.unavailable_since.is_(None) | (w.unavailable_since > w.created_at)
    return query.join_from(r, workers, w.fleet_id == r.c.id).where(has_started)


async def workers_of(tx: Tx, fleet_ids: Collection[int], *, offline_seconds: float) -> list[ObservedWorker]:
    if not fleet_ids:
        return []
    rows = await tx.fetch(workers_query, {**with_ids(sorted(fleet_ids)), "offline_seconds": -offline_seconds})
    return [ObservedWorker._make((*others, json_value(providers))) for *others, providers in rows]


@cache
def leases_query(dialect: str) -> Select[Any]:
    """Select the leases of the workers of the given fleets."""
    is_leased = (d.c.worker_id == workers.c.worker_id) & (d.c.status == sql_literal(DispatchStatus.LEASED))
    r = ids_table(dialect)
    query = select(*(d.c[name] for name in ObservedLease._fields))
    return query.join_from(r, workers, workers.c.fleet_id == r.c.id).join(d, is_leased)


async def leases_of(tx: Tx, fleet_ids: Collection[int]) -> list[ObservedLease]:
    if not fleet_ids:
        return []
    return list(map(ObservedLease._make, await tx.fetch(leases_query, with_ids(sorted(fleet_ids)))))


_ARRIVAL = [d.c[name] for name in Arrival._fields]
_LIMIT = bindparam("limit", type_=Integer())


@cache
def newest_arrivals_query(_dialect: str = "") -> Select[Any]:
    return select(*_ARRIVAL).where(is_free()).order_by(d.c.id.desc()).limit(_LIMIT)


@cache
def arrivals_query(_dialect: str = "") -> Select[Any]:
    is_new = d.c.id > bindparam("after", type_=BigInteger())
    return select(*_ARRIVAL).where(is_new, is_free()).order_by(d.c.id).limit(_LIMIT)


async def arrivals(tx: Tx, *, after: int | None, limit: int) -> list[Arrival]:
    """Return jobs that entered the queue, in any state; if `after` is `None`, the newest. Omit paused queues."""
    if after is None:
        found = await tx.fetch(newest_arrivals_query, {"limit": limit})
    else:
        found = await tx.fetch(arrivals_query, {"after": after, "limit": limit})
    return sorted(map(Arrival._make, found))
