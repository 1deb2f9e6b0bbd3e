"""Workflows that ran out of GPU memory, and workers with larger GPUs."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, Text, bindparam, delete, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.memory import LARGER_PERCENT
from comfyrelay.store.central.tables.autoscaling import machines
from comfyrelay.store.central.tables.workers import worker_missing_requirements as missing
from comfyrelay.store.central.tables.workers import worker_workflows, workers, workflow_blocks
from comfyrelay.store.central.tables.workers import workflow_memory as m
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, insert_into, with_ids
from comfyrelay.store.types import relay_now

# Workflow id and hash: two workflows with the same graph may have different workers.
OversizedWorkflow = tuple[int, str]


async def record_out_of_memory(tx: Tx, dispatch: Dispatch, gpu_bytes: int) -> None:
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
    # If the worker has not reported its GPUs yet, this is the first report.
    is_unreported = (workers.c.worker_id == dispatch.worker_id) & workers.c.memory_bytes.is_(None)
    await tx.execute(update(workers).values(memory_bytes=gpu_bytes).where(is_unreported))


def _larger(
    than: ColumnElement[Any],
    *,
    workflow_id: ColumnElement[Any],
    workflow_hash: ColumnElement[Any],
    stage: ColumnElement[Any],
) -> Any:
    """Select workers with more memory that could run the workflow: online ones, and offline ones of the same machine
    type as a starting machine."""
    o, assigned = workers.alias("o"), worker_workflows.alias("assigned")
    misses_requirement = select(missing.c.worker_id).where(
        missing.c.worker_id == o.c.worker_id, missing.c.workflow_hash == workflow_hash
    )
    is_blocked = select(workflow_blocks.c.worker_id).where(
        workflow_blocks.c.worker_id == o.c.worker_id,
        workflow_blocks.c.workflow_hash == workflow_hash,
        workflow_blocks.c.blocked_until > relay_now(),
    )
    is_online = (
        ~o.c.is_draining
        & (o.c.last_seen_at >= relay_now(bindparam("stale", type_=Float())))
        & ~misses_requirement.correlate_except(missing).exists()
        & ~is_blocked.correlate_except(workflow_blocks).exists()
    )
    starting = select(machines.c.key).where(
        machines.c.fleet_id == o.c.fleet_id,
        machines.c.instance_type == o.c.instance_type,
        machines.c.registered_at.is_(None),
        machines.c.ending_at.is_(None),
        machines.c.ended_at.is_(None),
    )
    return (
        select(o.c.worker_id)
        .select_from(o.join(assigned, assigned.c.worker_id == o.c.worker_id))
        .where(
            assigned.c.workflow_id == workflow_id,
            o.c.stage == stage,
            o.c.is_approved,
            o.c.memory_bytes * 100 > than * (100 + LARGER_PERCENT),
            is_online | starting.correlate_except(machines).exists(),
        )
    )


async def has_larger_gpu(tx: Tx, dispatch: Dispatch, gpu_bytes: int, *, stale_seconds: float) -> bool:
    """Return whether a worker with more memory may run the dispatch; false if it is pinned to a worker."""
    if dispatch.only_worker is not None:
        return False
    parameters = {
        "than": gpu_bytes,
        "workflow_id": dispatch.workflow_id,
        "workflow_hash": dispatch.workflow_hash,
        "stage": dispatch.stage,
        "stale": -stale_seconds,
    }
    return bool(await tx.fetch(_larger_gpu, parameters))


@cache
def _larger_gpu(_dialect: str) -> Executable:
    than, workflow_id = (bindparam(name, type_=BigInteger()) for name in ("than", "workflow_id"))
    workflow_hash, stage = (bindparam(name, type_=Text()) for name in ("workflow_hash", "stage"))
    return _larger(than, workflow_id=workflow_id, workflow_hash=workflow_hash, stage=stage).limit(1)  # type: ignore[no-any-return]


async def oversized(
    tx: Tx, worker_ids: Iterable[str], *, stale_seconds: float
) -> dict[str, frozenset[OversizedWorkflow]]:
    """Return for each worker the workflows that are too large for its GPUs, if a larger GPU exists."""
    found: defaultdict[str, set[OversizedWorkflow]] = defaultdict(set)
    for row in await tx.fetch(_oversized, {**with_ids(sorted(worker_ids)), "stale": -stale_seconds}):
        found[row.worker_id].add((row.workflow_id, row.workflow_hash))
    return {worker_id: frozenset(workflows) for worker_id, workflows in found.items()}


@cache
def _oversized(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    larger = _larger(
        m.c.ran_out_bytes, workflow_id=m.c.workflow_id, workflow_hash=m.c.workflow_hash, stage=workers.c.stage
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
