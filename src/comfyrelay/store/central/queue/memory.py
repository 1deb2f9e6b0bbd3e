"""Workflows that ran out of GPU memory, and the workers that may have enough."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.memory import LARGER_PERCENT
from comfyrelay.domain.queue.states import Outcome, Provider
from comfyrelay.store.central.tables.autoscaling import machines
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases as leases
from comfyrelay.store.central.tables.workers import worker_missing_requirements as missing
from comfyrelay.store.central.tables.workers import worker_workflows, workers, workflow_blocks
from comfyrelay.store.central.tables.workers import workflow_memory as m
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, insert_into, with_ids
from comfyrelay.store.types import json_value, relay_now

# Number of a worker's newest leases that are searched for a completed job of a workflow.
NEWEST_LEASES = 100
# Workflow id and hash: two workflows with the same graph may have different workers.
OversizedWorkflow = tuple[int, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CapableWorker:
    """Another worker that may run a job: an online one, or one of the same machine type as a starting machine."""

    worker_id: str
    memory_bytes: int | None
    # Whether it is blocked because it ran out of memory for the workflow.
    has_run_out: bool


async def record_too_small(tx: Tx, dispatch: Dispatch, gpu_bytes: int) -> None:
    """Record that a job ran out of memory on a GPU of this size that it had to itself."""
    query = insert_into(tx.dialect, m).values(
        workflow_id=dispatch.workflow_id,
        workflow_hash=dispatch.workflow_hash,
        ran_out_bytes=gpu_bytes,
        updated_at=relay_now(),
    )
    await tx.execute(
        query.on_conflict_do_update(
            index_elements=["workflow_id", "workflow_hash"],
            set_={"ran_out_bytes": query.excluded.ran_out_bytes, "updated_at": relay_now()},
            where=m.c.ran_out_bytes <= query.excluded.ran_out_bytes,
        )
    )


async def memory_of(tx: Tx, worker_id: str | None) -> int | None:
    """Return the memory of a worker's largest GPU, or `None` if unknown."""
    found: int | None = await tx.scalar(select(workers.c.memory_bytes).where(workers.c.worker_id == worker_id))
    return found


async def record_memory(tx: Tx, worker_id: str | None, gpu_bytes: int) -> None:
    """Record the memory of a worker that has not reported its GPUs yet."""
    is_unreported = (workers.c.worker_id == worker_id) & workers.c.memory_bytes.is_(None)
    await tx.execute(update(workers).values(memory_bytes=gpu_bytes).where(is_unreported))


def ran_out_on(dialect: str, worker_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a dispatch has run out of memory on a worker."""
    if dialect == "postgresql":
        return cast(d.c.ran_out_on, JSONB()).bool_op("?")(worker_id)
    worker = func.json_each(d.c.ran_out_on).table_valued("key")
    return select(worker.c.key).where(worker.c.key == worker_id).correlate_except(worker).exists()


def _ready(candidates: FromClause, *, workflow_hash: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a worker is online and meets the requirements, or a machine of its type is starting."""
    misses_requirement = select(missing.c.worker_id).where(
        missing.c.worker_id == candidates.c.worker_id, missing.c.workflow_hash == workflow_hash
    )
    is_online = (
        ~candidates.c.is_draining
        & (candidates.c.last_seen_at >= relay_now(bindparam("offline_seconds", type_=Float())))
        & ~misses_requirement.correlate_except(missing).exists()
    )
    starting = select(machines.c.key).where(
        machines.c.fleet_id == candidates.c.fleet_id,
        machines.c.instance_type == candidates.c.instance_type,
        machines.c.registered_at.is_(None),
        machines.c.ending_at.is_(None),
        machines.c.ended_at.is_(None),
    )
    return is_online | starting.correlate_except(machines).exists()


def _block(candidates: FromClause, workflow_hash: ColumnElement[Any]) -> Select[Any]:
    """Select the block of a worker for a workflow."""
    return (
        select(workflow_blocks.c.worker_id)
        .where(
            workflow_blocks.c.worker_id == candidates.c.worker_id,
            workflow_blocks.c.workflow_hash == workflow_hash,
            workflow_blocks.c.blocked_until > relay_now(),
        )
        .correlate_except(workflow_blocks)
    )


async def capable_workers(tx: Tx, dispatch: Dispatch, *, offline_seconds: float) -> list[CapableWorker]:
    """Return the workers that may run the dispatch, except the one that holds it; none if it is pinned to a worker."""
    if dispatch.only_worker is not None:
        return []
    parameters = {
        "workflow_id": dispatch.workflow_id,
        "workflow_hash": dispatch.workflow_hash,
        "stage": dispatch.stage,
        "offline_seconds": -offline_seconds,
    }
    return [
        CapableWorker(worker_id=row.worker_id, memory_bytes=row.memory_bytes, has_run_out=bool(row.has_run_out))
        for row in await tx.fetch(_capable_workers, parameters)
        if row.worker_id != dispatch.worker_id and Provider.SELF_HOSTED in (json_value(row.providers) or Provider)
    ]


@cache
def _capable_workers(_dialect: str) -> Executable:
    workflow_hash = bindparam("workflow_hash", type_=Text())
    has_run_out = _block(workers, workflow_hash).where(workflow_blocks.c.is_out_of_memory).exists()
    columns = (workers.c.worker_id, workers.c.memory_bytes, workers.c.providers, has_run_out.label("has_run_out"))
    return (
        select(*columns)
        .join(worker_workflows, worker_workflows.c.worker_id == workers.c.worker_id)
        .where(
            worker_workflows.c.workflow_id == bindparam("workflow_id", type_=BigInteger()),
            workers.c.stage == bindparam("stage", type_=Text()),
            workers.c.is_approved,
            _ready(workers, workflow_hash=workflow_hash),
        )
        .order_by(workers.c.worker_id)
    )


async def completed_by(tx: Tx, dispatch: Dispatch, gpu_bytes: int | None) -> set[str]:
    """Return the workers with an equal or smaller GPU that have completed the workflow, except workers that ran out
    of memory for this dispatch. Without a known size, only workers without a known size count."""
    newest = (
        select(leases.c.dispatch_id)
        .where(leases.c.worker_id == workers.c.worker_id, leases.c.outcome == Outcome.COMPLETED)
        .order_by(leases.c.dispatch_id.desc())
        .limit(NEWEST_LEASES)
        .correlate(workers)
    )
    has_completed = select(d.c.id).where(d.c.id.in_(newest), d.c.workflow_hash == dispatch.workflow_hash)
    size = workers.c.memory_bytes
    query = select(workers.c.worker_id).where(
        workers.c.worker_id.not_in([dispatch.worker_id or "", *dispatch.memory_failures]),
        size.is_(None) if gpu_bytes is None else size * 100 <= gpu_bytes * (100 + LARGER_PERCENT),
        has_completed.correlate(workers).exists(),
    )
    return set(await tx.scalars(query))


async def oversized(
    tx: Tx, worker_ids: Iterable[str], *, offline_seconds: float
) -> dict[str, frozenset[OversizedWorkflow]]:
    """Return for each worker the workflows that are too large for its GPUs, if a larger GPU exists."""
    found: defaultdict[str, set[OversizedWorkflow]] = defaultdict(set)
    for row in await tx.fetch(_oversized, {**with_ids(sorted(worker_ids)), "offline_seconds": -offline_seconds}):
        found[row.worker_id].add((row.workflow_id, row.workflow_hash))
    return {worker_id: frozenset(workflows) for worker_id, workflows in found.items()}


@cache
def _oversized(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    candidates, assigned = workers.alias("candidates"), worker_workflows.alias("assigned")
    larger = (
        select(candidates.c.worker_id)
        .select_from(candidates.join(assigned, assigned.c.worker_id == candidates.c.worker_id))
        .where(
            assigned.c.workflow_id == m.c.workflow_id,
            candidates.c.stage == workers.c.stage,
            candidates.c.is_approved,
            candidates.c.memory_bytes * 100 > m.c.ran_out_bytes * (100 + LARGER_PERCENT),
            _ready(candidates, workflow_hash=m.c.workflow_hash),
            ~_block(candidates, m.c.workflow_hash).exists(),
        )
    )
    return (
        select(workers.c.worker_id, m.c.workflow_id, m.c.workflow_hash)
        .select_from(workers.join(r, workers.c.worker_id == r.c.id), m)
        .where(
            workers.c.memory_bytes * 100 <= m.c.ran_out_bytes * (100 + LARGER_PERCENT),
            larger.correlate(m, workers).exists(),
        )
    )


async def out_of_memory_bytes(tx: Tx, workflow_ids: Iterable[int]) -> dict[OversizedWorkflow, int]:
    """Return by workflow the memory of the largest GPU on which it ran out of memory."""
    rows = await tx.execute(select(m).where(m.c.workflow_id.in_(sorted(workflow_ids))))
    return {(row.workflow_id, row.workflow_hash): row.ran_out_bytes for row in rows}


async def delete_old(tx: Tx, *, seconds: float) -> int:
    """Delete old records, so that these GPUs are tried again: a model or an image size may have changed."""
    query = delete(m).where(m.c.updated_at < relay_now(-seconds))
    return len(await tx.scalars(query.returning(m.c.workflow_hash)))
