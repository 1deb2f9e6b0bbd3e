"""Fleets with their workflows, queues and recent results, for operators."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, func, select, update

from comfyrelay.domain.queue.states import DispatchStatus, Provider
from comfyrelay.domain.records.workers import FleetRecord
from comfyrelay.store import paging
from comfyrelay.store.central.catalogue import FLEET_COLUMNS
from comfyrelay.store.central.queue.dispatches import LEASED
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import fleets, worker_audit_logs, workers, workflow_fleets
from comfyrelay.store.database import Tx, conflict_on_violation
from comfyrelay.store.types import sql_literal


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowQueue:
    """The queued jobs of a workflow, and the time of the oldest."""

    queued: int
    oldest_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedWork:
    jobs: int
    mean_seconds: float | None


async def page(tx: Tx, *, stage: str | None, after_id: int | None, limit: int) -> tuple[list[FleetRecord], int | None]:
    """Return a page of fleets in order of creation, and the id of the next page."""
    query = select(*FLEET_COLUMNS)
    if stage is not None:
        query = query.where(fleets.c.stage == stage)
    return await paging.page(tx, FleetRecord, query, fleets.c.id, after=after_id, limit=limit)


async def slug_of(tx: Tx, fleet_id: int) -> str:
    return str(await tx.scalar(select(fleets.c.slug).where(fleets.c.id == fleet_id)))


async def change(tx: Tx, fleet_id: int, **values: Any) -> FleetRecord:
    query = update(fleets).where(fleets.c.id == fleet_id).values(**values).returning(*FLEET_COLUMNS)
    return await tx.one(FleetRecord, query)


async def remove(tx: Tx, fleet: FleetRecord) -> None:
    with conflict_on_violation(f"The {fleet.stage} fleet {fleet.slug!r} still has workers."):
        await tx.execute(delete(fleets).where(fleets.c.id == fleet.id))


async def worker_counts(tx: Tx, fleet_ids: Iterable[int]) -> dict[int, int]:
    query = select(workers.c.fleet_id, func.count().label("workers")).group_by(workers.c.fleet_id)
    rows = await tx.execute(query.where(workers.c.fleet_id.in_(set(fleet_ids))))
    return {row.fleet_id: row.workers for row in rows}


async def workflows_of(tx: Tx, fleet_ids: Iterable[int]) -> dict[int, dict[int, str]]:
    """Return the workflows of each fleet: fleet id → workflow id → slug."""
    query = (
        select(workflow_fleets.c.fleet_id, workflows.c.id, workflows.c.slug)
        .join(workflows, workflows.c.id == workflow_fleets.c.workflow_id)
        .where(workflow_fleets.c.fleet_id.in_(set(fleet_ids)))
        .order_by(workflows.c.slug)
    )
    found: dict[int, dict[int, str]] = {}
    for row in await tx.execute(query):
        found.setdefault(row.fleet_id, {})[row.id] = row.slug
    return found


async def workflow_ids_of(tx: Tx, fleet_id: int) -> set[int]:
    return set(await tx.scalars(select(workflow_fleets.c.workflow_id).where(workflow_fleets.c.fleet_id == fleet_id)))


async def leases_of(tx: Tx, fleet_id: int) -> int:
    """Count the leases of the workers of a fleet."""
    query = select(func.count()).join_from(workers, d, (d.c.worker_id == workers.c.worker_id) & LEASED)
    return int(await tx.scalar(query.where(workers.c.fleet_id == fleet_id)) or 0)


async def queues(tx: Tx, *, stage: str, workflow_ids: Sequence[int]) -> dict[int, WorkflowQueue]:
    """Return the queue of each workflow. The query names all leading columns of the queue index in order to use it."""
    query = (
        select(d.c.workflow_id, func.count().label("queued"), func.min(d.c.created_at).label("oldest_at"))
        .where(
            d.c.status == sql_literal(DispatchStatus.QUEUED),
            d.c.stage == stage,
            d.c.provider.in_([sql_literal(provider) for provider in Provider]),
            d.c.workflow_id.in_(workflow_ids),
        )
        .group_by(d.c.workflow_id)
    )
    return {
        row.workflow_id: WorkflowQueue(queued=row.queued, oldest_at=row.oldest_at) for row in await tx.execute(query)
    }


async def completed_since(
    tx: Tx, since: datetime, *, stage: str, workflow_ids: Sequence[int]
) -> dict[int, FinishedWork]:
    """Return the completed work of each workflow. Completed dispatches have no index by time, but the audit log is
    ordered by time."""
    a = worker_audit_logs
    floor = await tx.scalar(select(a.c.id).where(a.c.created_at < since).order_by(a.c.id.desc()).limit(1)) or 0
    query = (
        select(d.c.workflow_id, func.count().label("jobs"), func.avg(d.c.duration_seconds).label("mean"))
        .join_from(a, d, d.c.id == a.c.dispatch_id)
        .where(
            a.c.id > floor,
            a.c.event == "complete",
            d.c.status == sql_literal(DispatchStatus.COMPLETED),
            d.c.stage == stage,
            d.c.workflow_id.in_(workflow_ids),
        )
        .group_by(d.c.workflow_id)
    )
    return {
        row.workflow_id: FinishedWork(jobs=row.jobs, mean_seconds=None if row.mean is None else float(row.mean))
        for row in await tx.execute(query)
    }


async def failed_since(tx: Tx, since: datetime, *, stage: str, workflow_ids: Sequence[int]) -> dict[int, int]:
    """Count the failed jobs of each workflow."""
    query = failed_query(since, stage=stage, workflow_ids=workflow_ids)
    return {row.workflow_id: row.jobs for row in await tx.execute(query)}


def failed_query(since: datetime, *, stage: str, workflow_ids: Sequence[int]) -> Select[Any]:
    return (
        select(d.c.workflow_id, func.count().label("jobs"))
        .where(
            d.c.status == sql_literal(DispatchStatus.FAILED),
            d.c.finished_at >= since,
            d.c.stage == stage,
            d.c.workflow_id.in_(workflow_ids),
        )
        .group_by(d.c.workflow_id)
    )
