"""Data for the metrics of fleets: queued work, online workers and recently ended leases."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select

from comfyrelay.domain.queue.states import DispatchStatus, Provider
from comfyrelay.store.central.queue.dispatches import LEASES
from comfyrelay.store.central.queue.pauses import is_free
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases
from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers, workflow_fleets
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now, sql_literal

# Maximum number of audit entries to read. It is enough for metrics at a hundred ended leases per second.
MAX_ENTRIES = 100_000
LEASE_EVENT = "lease"


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedFleet:
    id: int
    slug: str
    stage: str
    workflow_ids: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLoad:
    fleet_id: int
    max_concurrency: int
    leases: int
    is_draining: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedLease:
    worker_id: str
    ended_at: datetime
    outcome: str
    status_after: str
    reason: str | None
    # The duration of a completed job.
    duration_seconds: float | None


async def fleets_with_workflows(tx: Tx) -> list[MappedFleet]:
    mapped: dict[int, set[int]] = defaultdict(set)
    for row in await tx.execute(mappings_query()):
        mapped[row.fleet_id].add(row.workflow_id)
    return [
        MappedFleet(**row._mapping, workflow_ids=frozenset(mapped[row.id])) for row in await tx.execute(fleets_query())
    ]


def fleets_query() -> Select[Any]:
    return select(fleets.c.id, fleets.c.slug, fleets.c.stage).order_by(fleets.c.id)


def mappings_query() -> Select[Any]:
    return select(workflow_fleets.c.fleet_id, workflow_fleets.c.workflow_id).order_by(workflow_fleets.c.fleet_id)


async def count_active_jobs(tx: Tx) -> Counter[tuple[str, int]]:
    """Count queued and leased jobs by stage and workflow, without jobs that are scheduled for later or held."""
    jobs: Counter[tuple[str, int]] = Counter()
    for query in (queued_query(), leased_query()):
        for row in await tx.execute(query):
            jobs[row.stage, row.workflow_id] += row.jobs
    return jobs


def queued_query() -> Select[Any]:
    is_queued = d.c.status == sql_literal(DispatchStatus.QUEUED)
    return _counts().where(is_queued, d.c.available_at <= relay_now(), is_free())


def leased_query() -> Select[Any]:
    return _counts().where(d.c.status == sql_literal(DispatchStatus.LEASED))


def _counts() -> Select[Any]:
    # Jobs in the cloud need no machines.
    counts = select(d.c.stage, d.c.workflow_id, func.count().label("jobs"))
    return counts.where(d.c.provider == sql_literal(Provider.SELF_HOSTED)).group_by(d.c.stage, d.c.workflow_id)


async def online_workers(tx: Tx, fleet_ids: Sequence[int], *, seconds: float) -> list[WorkerLoad]:
    """Return approved workers that were seen within the last `seconds`."""
    return await tx.all(WorkerLoad, workers_query(fleet_ids, seconds=seconds))


def workers_query(fleet_ids: Sequence[int], *, seconds: float) -> Select[Any]:
    columns = (workers.c.fleet_id, workers.c.max_concurrency, workers.c.is_draining, LEASES.label("leases"))
    return select(*columns).where(
        workers.c.fleet_id.in_(fleet_ids),
        workers.c.is_approved,
        workers.c.unavailable_since.is_(None),
        workers.c.last_seen_at >= relay_now(-seconds),
    )


async def ended_since(tx: Tx, since: datetime) -> list[EndedLease]:
    """Return recently ended leases. Leases have no index by end, but the audit log contains each end in order."""
    newest = await tx.scalar(newest_query())
    if newest is None:
        return []
    floor = max(newest - MAX_ENTRIES, await tx.scalar(floor_query(since)) or 0)
    return await tx.all(EndedLease, ended_query(since, floor=floor))


def newest_query() -> Select[Any]:
    return select(worker_audit_logs.c.id).order_by(worker_audit_logs.c.id.desc()).limit(1)


def floor_query(since: datetime) -> Select[Any]:
    a = worker_audit_logs
    return select(a.c.id).where(a.c.created_at < since).order_by(a.c.id.desc()).limit(1)


def ended_query(since: datetime, *, floor: int) -> Select[Any]:
    a, leases = worker_audit_logs, dispatch_leases
    logged = (
        select(a.c.dispatch_id)
        .where(a.c.id > floor, a.c.dispatch_id.is_not(None), a.c.event != sql_literal(LEASE_EVENT))
        .distinct()
        .subquery("logged")
    )
    columns = [leases.c[name] for name in ("worker_id", "ended_at", "outcome", "status_after", "reason")]
    return (
        select(*columns, d.c.duration_seconds)
        .join_from(logged, leases, leases.c.dispatch_id == logged.c.dispatch_id)
        .join(d, d.c.id == leases.c.dispatch_id)
        .where(leases.c.ended_at >= since, leases.c.outcome.is_not(None))
    )
