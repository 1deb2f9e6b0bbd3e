"""Detect changes in the central database for subscribers. Cheap for any amount of data."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import func, select

from comfyrelay.store.central.tables.accounts import tenants
from comfyrelay.store.central.tables.autoscaling import autoscaling_decisions
from comfyrelay.store.central.tables.operations import reconcile_runs, samples
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now


class Newest(NamedTuple):
    """The newest id of each table. Ids are in order of creation, which briefly differs from the order of commits."""

    dispatch: int | None
    audit: int | None
    decision: int | None
    tenant: str | None
    sample: int | None
    run: int | None
    # number of finished runs
    runs: int


class WorkerStanding(NamedTuple):
    is_approved: bool
    is_draining: bool
    is_offline: bool


async def newest(tx: Tx) -> Newest:
    """Read all of them in one statement, by primary key."""
    tables = (d, worker_audit_logs, autoscaling_decisions, tenants)
    keys = [*(table.c.id for table in tables), samples.c.minute, reconcile_runs.c.id]
    newest_of = [select(func.max(key)).scalar_subquery() for key in keys]
    ended = select(func.count(reconcile_runs.c.ended_at)).scalar_subquery()
    return Newest._make((await tx.execute(select(*newest_of, ended))).one())


async def standings(tx: Tx, *, stale_seconds: float) -> dict[str, WorkerStanding]:
    is_offline = workers.c.last_seen_at < relay_now(-stale_seconds)
    query = select(workers.c.worker_id, workers.c.is_approved, workers.c.is_draining, is_offline)
    return {row[0]: WorkerStanding(*map(bool, row[1:])) for row in await tx.execute(query)}


async def audited(tx: Tx, after_id: int, *, limit: int) -> list[tuple[int, str]]:
    """Return the audit entries after an id with their workers, newest first."""
    a = worker_audit_logs
    query = select(a.c.id, a.c.worker_id).where(a.c.id > after_id).order_by(a.c.id.desc()).limit(limit)
    return [(row.id, row.worker_id) for row in await tx.execute(query)]


async def fleets_decided(tx: Tx, after_id: int) -> list[str]:
    """Return the fleets with a decision after this id, with their stages."""
    decided = select(autoscaling_decisions.c.fleet_id).where(autoscaling_decisions.c.id > after_id)
    query = select(fleets.c.stage, fleets.c.slug).where(fleets.c.id.in_(decided))
    return [f"{row.stage}/{row.slug}" for row in await tx.execute(query)]


async def fleets_of(tx: Tx, worker_ids: Collection[str]) -> list[str]:
    its = select(workers.c.fleet_id).where(workers.c.worker_id.in_(list(worker_ids)))
    query = select(fleets.c.stage, fleets.c.slug).where(fleets.c.id.in_(its))
    return [f"{row.stage}/{row.slug}" for row in await tx.execute(query)]


async def tenants_after(tx: Tx, after_id: str, *, limit: int) -> list[str]:
    query = select(tenants.c.id).where(tenants.c.id > after_id).order_by(tenants.c.id).limit(limit)
    return await tx.scalars(query)
