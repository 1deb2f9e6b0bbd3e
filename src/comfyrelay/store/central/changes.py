"""Detect changes in the central database for subscribers, at a low cost for any amount of data."""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select

from comfyrelay.store.central.tables.accounts import tenants
from comfyrelay.store.central.tables.autoscaling import autoscaling_decisions
from comfyrelay.store.central.tables.operations import reconcile_runs, samples
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now


class NewestIds(NamedTuple):
    """The newest id of each table. Ids are in order of creation, which briefly differs from the order of commits."""

    dispatch: int | None
    audit: int | None
    decision: int | None
    tenant: str | None
    sample: int | None
    run: int | None
    # The number of finished runs.
    runs: int


class WorkerFlags(NamedTuple):
    is_approved: bool
    is_draining: bool
    is_offline: bool
    is_unavailable: bool


async def newest_ids(tx: Tx) -> NewestIds:
    """Read the newest ids in one statement, by primary key."""
    tables = (d, worker_audit_logs, autoscaling_decisions, tenants)
    keys = [*(table.c.id for table in tables), samples.c.minute, reconcile_runs.c.id]
    ids = [select(func.max(key)).scalar_subquery() for key in keys]
    finished = select(func.count(reconcile_runs.c.ended_at)).scalar_subquery()
    return NewestIds._make((await tx.execute(select(*ids, finished))).one())


async def worker_flags(tx: Tx, *, offline_seconds: float) -> dict[str, WorkerFlags]:
    is_offline = workers.c.last_seen_at < relay_now(-offline_seconds)
    is_unavailable = workers.c.unavailable_since.is_not(None)
    query = select(workers.c.worker_id, workers.c.is_approved, workers.c.is_draining, is_offline, is_unavailable)
    return {row[0]: WorkerFlags(*map(bool, row[1:])) for row in await tx.execute(query)}


async def audited_workers(tx: Tx, after_id: int, *, limit: int) -> list[tuple[int, str]]:
    """Return the audit entries after an id with their workers, newest first."""
    a = worker_audit_logs
    query = select(a.c.id, a.c.worker_id).where(a.c.id > after_id).order_by(a.c.id.desc()).limit(limit)
    return [(row.id, row.worker_id) for row in await tx.execute(query)]


async def decided_fleets(tx: Tx, after_id: int) -> list[str]:
    """Return the fleets with a decision after this id as `stage/slug`."""
    decisions = autoscaling_decisions.c
    return await _fleet_names(tx, select(decisions.fleet_id).where(decisions.id > after_id))


async def fleets_of(tx: Tx, worker_ids: Collection[str]) -> list[str]:
    """Return the fleets of workers as `stage/slug`."""
    return await _fleet_names(tx, select(workers.c.fleet_id).where(workers.c.worker_id.in_(list(worker_ids))))


async def _fleet_names(tx: Tx, ids: Select[Any]) -> list[str]:
    rows = await tx.execute(select(fleets.c.stage, fleets.c.slug).where(fleets.c.id.in_(ids)))
    return [f"{row.stage}/{row.slug}" for row in rows]


async def tenants_after(tx: Tx, after_id: str, *, limit: int) -> list[str]:
    return await tx.scalars(select(tenants.c.id).where(tenants.c.id > after_id).order_by(tenants.c.id).limit(limit))
