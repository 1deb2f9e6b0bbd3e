"""Workers with their reported GPUs and their leases."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, select

from comfyrelay.domain.queue.progress import Progress
from comfyrelay.domain.queue.slots import SlotLease
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store import paging
from comfyrelay.store.central.queue.progress import PROGRESS_COLUMNS, progress_in
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workers
from comfyrelay.store.central.workers.worker_list import comfyui_column, state_of
from comfyrelay.store.database import Tx
from comfyrelay.store.types import json_value, sql_literal


class SlotWorker(NamedTuple):
    """A worker with its GPUs. `comfyui` is its report about its servers at registration."""

    worker_id: str
    display_name: str | None
    stage: str
    registration_source: str
    state: str
    max_concurrency: int
    devices: Sequence[Mapping[str, Any]] | None
    comfyui: Any


async def page(
    tx: Tx, *, offline_seconds: float, after_id: str | None, limit: int
) -> tuple[list[SlotWorker], str | None]:
    """Return a page of workers in order of id, without their full capabilities, and the id of the next page."""
    query = select(
        workers.c.worker_id,
        workers.c.display_name,
        workers.c.stage,
        workers.c.registration_source,
        state_of(offline_seconds).label("state"),
        workers.c.max_concurrency,
        workers.c.devices,
        comfyui_column(tx.dialect).label("comfyui"),
    )
    found, following = await paging.page(tx, SlotWorker, query, workers.c.worker_id, after=after_id, limit=limit)
    return [worker._replace(comfyui=json_value(worker.comfyui)) for worker in found], following


_HELD = (
    select(
        d.c.tenant_id,
        d.c.tenant_job_id.label("job_id"),
        d.c.batch_id,
        d.c.shard,
        d.c.workflow_id,
        d.c.worker_id,
        *PROGRESS_COLUMNS,
    )
    .where(d.c.status == sql_literal(DispatchStatus.LEASED))
    .order_by(d.c.leased_at, d.c.id)
)


def held_query() -> Select[Any]:
    return _HELD.where(d.c.worker_id.in_(bindparam("ids", expanding=True)))


async def held_by(tx: Tx, worker_ids: Sequence[str]) -> tuple[list[SlotLease], datetime]:
    """Return the leases of these workers, oldest first, and the time."""
    rows = await tx.execute(held_query(), {"ids": list(worker_ids)})
    return [_lease(row) for row in rows], await tx.now()


async def held_of(tx: Tx, tenant_id: str) -> tuple[list[SlotLease], datetime]:
    """Return the leases of a tenant's jobs, oldest first, and the time."""
    # Use the partial index of leased rows. SQLite would otherwise scan all jobs of the tenant.
    rows = await tx.execute(_HELD.where(d.c.tenant_id.concat("") == tenant_id))
    return [_lease(row) for row in rows], await tx.now()


def _lease(row: Any) -> SlotLease:
    return SlotLease(
        tenant_id=row.tenant_id,
        job_id=row.job_id,
        batch_id=row.batch_id,
        shard=row.shard,
        workflow_id=row.workflow_id,
        worker_id=row.worker_id,
        is_prefetch=row.is_prefetch,
        leased_at=row.leased_at,
        progress=Progress.from_report(progress_in(row)),
    )
