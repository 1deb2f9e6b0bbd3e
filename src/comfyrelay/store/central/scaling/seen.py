"""What a decision about machines sees of the queue and the workers: reads that lock nothing."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from comfyrelay.domain.queue.states import DispatchStatus, Provider
from comfyrelay.domain.records.fleet import Fleet
from comfyrelay.store.central.catalogue import FLEET_COLUMNS
from comfyrelay.store.central.tables import ai_job_dispatches as d
from comfyrelay.store.central.tables import fleets, worker_audit_logs, workers, workflow_fleets
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now, word


class Waiting(NamedTuple):
    """What of a workflow and an effect could be leased now."""

    workflow_id: int
    effect_id: int | None
    jobs: int


class SeenWorker(NamedTuple):
    """`last_at` is when something last happened to it: when nothing runs, it is idle since then."""

    worker_id: str
    fleet_id: int
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    is_stale: bool
    instance_type: str | None
    created_at: datetime
    last_seen_at: datetime
    last_at: datetime | None
    # as `serves` understands it
    providers: Sequence[str] | None


class Lease(NamedTuple):
    worker_id: str
    workflow_id: int
    effect_id: int | None
    leased_at: datetime


class Arrival(NamedTuple):
    id: int
    stage: str
    workflow_id: int
    created_at: datetime


async def fleets_of(tx: Tx) -> list[Fleet]:
    """All fleets, in the order in which they were made: there are few."""
    return [Fleet(**row._mapping) for row in await tx.execute(select(*FLEET_COLUMNS).order_by(fleets.c.id))]


async def fleets_with(tx: Tx, workflow_id: int, *, stage: str) -> list[Fleet]:
    """The fleets of a stage that run a workflow."""
    its = select(workflow_fleets.c.fleet_id).where(workflow_fleets.c.workflow_id == workflow_id)
    query = select(*FLEET_COLUMNS).where(fleets.c.stage == stage, fleets.c.id.in_(its)).order_by(fleets.c.id)
    return [Fleet(**row._mapping) for row in await tx.execute(query)]


async def workflows_of(tx: Tx, fleet_ids: Collection[int]) -> dict[int, set[int]]:
    """By fleet, the workflows that it runs."""
    query = select(workflow_fleets).where(workflow_fleets.c.fleet_id.in_(sorted(fleet_ids)))
    found: dict[int, set[int]] = {}
    for row in await tx.execute(query):
        found.setdefault(row.fleet_id, set()).add(row.workflow_id)
    return found


def waiting_query(stage: str, workflow_ids: Collection[int], *, down_pools: Sequence[str]) -> Select[Any]:
    """All leading columns of the queue's index are named, so that it is used."""
    return (
        select(d.c.workflow_id, d.c.effect_id, func.count().label("jobs"))
        .where(
            d.c.status == word(DispatchStatus.QUEUED),
            d.c.stage == stage,
            d.c.provider == word(Provider.SELF_HOSTED),
            d.c.workflow_id.in_(sorted(workflow_ids)),
            d.c.attempts < d.c.max_attempts,
            d.c.available_at <= relay_now(),
            d.c.db_pool.not_in(list(down_pools)),
        )
        .group_by(d.c.workflow_id, d.c.effect_id)
    )


async def waiting(tx: Tx, stage: str, workflow_ids: Collection[int], *, down_pools: Sequence[str]) -> list[Waiting]:
    if not workflow_ids:
        return []
    rows = await tx.execute(waiting_query(stage, workflow_ids, down_pools=down_pools))
    return [Waiting._make(row) for row in rows]


def workers_query(fleet_ids: Collection[int], *, stale_seconds: float) -> Select[Any]:
    a = worker_audit_logs
    last = (
        select(a.c.created_at)
        .where(a.c.worker_id == workers.c.worker_id)
        .order_by(a.c.id.desc())
        .limit(1)
        .correlate(workers)
        .scalar_subquery()
    )
    w = workers.c
    is_stale = w.last_seen_at < relay_now(-stale_seconds)
    shown = (w.worker_id, w.fleet_id, w.max_concurrency, w.is_approved, w.is_draining)
    rest = (w.instance_type, w.created_at, w.last_seen_at, last.label("last_at"), w.providers)
    return select(*shown, is_stale.label("is_stale"), *rest).where(w.fleet_id.in_(sorted(fleet_ids)))


async def workers_of(tx: Tx, fleet_ids: Collection[int], *, stale_seconds: float) -> list[SeenWorker]:
    if not fleet_ids:
        return []
    rows = await tx.execute(workers_query(fleet_ids, stale_seconds=stale_seconds))
    return [SeenWorker._make(row) for row in rows]


def leases_query(fleet_ids: Collection[int]) -> Select[Any]:
    held = (d.c.worker_id == workers.c.worker_id) & (d.c.status == word(DispatchStatus.LEASED))
    return (
        select(d.c.worker_id, d.c.workflow_id, d.c.effect_id, d.c.leased_at)
        .join_from(workers, d, held)
        .where(workers.c.fleet_id.in_(sorted(fleet_ids)))
    )


async def leases_of(tx: Tx, fleet_ids: Collection[int]) -> list[Lease]:
    if not fleet_ids:
        return []
    return [Lease._make(row) for row in await tx.execute(leases_query(fleet_ids))]


def arrivals_query(*, after: int | None, most: int) -> Select[Any]:
    """By the ids, which grow with time; without `after` the newest."""
    query = select(d.c.id, d.c.stage, d.c.workflow_id, d.c.created_at).limit(most)
    return query.order_by(d.c.id.desc()) if after is None else query.where(d.c.id > after).order_by(d.c.id)


async def arrivals(tx: Tx, *, after: int | None, most: int) -> list[Arrival]:
    """Jobs that came to the queue, whatever became of them."""
    found = [Arrival._make(row) for row in await tx.execute(arrivals_query(after=after, most=most))]
    return sorted(found)
