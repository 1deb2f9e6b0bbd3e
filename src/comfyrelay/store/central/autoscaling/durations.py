"""Job durations, learned from completed jobs."""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Select, bindparam, func, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.tables.autoscaling import workflow_durations as t
from comfyrelay.store.central.tables.catalogue import effects
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_audit_logs
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_rows, with_rows
from comfyrelay.store.types import relay_now, sql_literal

# Effect 0 is the whole workflow.
WHOLE_WORKFLOW = 0


class CompletionEntry(NamedTuple):
    """An audit entry with the job that it completes. `workflow_id` is `None` for an entry of another kind."""

    id: int
    worker_id: str
    workflow_id: int | None
    effect_id: int | None
    seconds: float | None


class LearnedDuration(NamedTuple):
    workflow_id: int
    effect_id: int
    jobs: int
    mean_seconds: float


async def newest_entry(tx: Tx) -> int:
    return int(await tx.scalar(select(func.max(worker_audit_logs.c.id))) or 0)


@cache
def completed_query(_dialect: str = "") -> Select[Any]:
    a = worker_audit_logs
    window = (
        select(a.c.id, a.c.worker_id, a.c.dispatch_id, a.c.event)
        .where(a.c.id > bindparam("after", type_=BigInteger()))
        .order_by(a.c.id)
        .limit(bindparam("limit", type_=BigInteger()))
        .subquery("entries")
    )
    is_completion = (d.c.id == window.c.dispatch_id) & (window.c.event == "complete")
    is_completed = d.c.status == sql_literal(DispatchStatus.COMPLETED)
    return (
        select(window.c.id, window.c.worker_id, d.c.workflow_id, d.c.effect_id, d.c.duration_seconds.label("seconds"))
        .select_from(window.outerjoin(d, is_completion & is_completed))
        .order_by(window.c.id)
    )


async def completed_after(tx: Tx, after: int, *, limit: int) -> list[CompletionEntry]:
    """Return the next audit entries in order."""
    return [CompletionEntry(*row) for row in await tx.fetch(completed_query, {"after": after, "limit": limit})]


def known_query(workflow_ids: Collection[int]) -> Select[Any]:
    columns = [t.c[name] for name in LearnedDuration._fields]
    return select(*columns).where(t.c.workflow_id.in_(sorted(workflow_ids)))


async def known(tx: Tx, workflow_ids: Collection[int]) -> dict[tuple[int, int], LearnedDuration]:
    """Return durations by workflow and effect."""
    rows = await tx.execute(known_query(workflow_ids)) if workflow_ids else ()
    return {(row.workflow_id, row.effect_id): LearnedDuration._make(row) for row in rows}


async def last_of_effects(tx: Tx, workflow_ids: Collection[int]) -> dict[tuple[int, int], float]:
    """Return the duration of the last job by workflow and effect."""
    query = select(effects.c.workflow_id, effects.c.id, effects.c.last_processing_time_seconds).where(
        effects.c.workflow_id.in_(sorted(workflow_ids)), effects.c.last_processing_time_seconds.is_not(None)
    )
    return {(row.workflow_id, row.id): row.last_processing_time_seconds for row in await tx.execute(query)}


async def write(tx: Tx, learned: Sequence[LearnedDuration]) -> None:
    await tx.write(_write, with_rows(duration._asdict() for duration in learned))


@cache
def _write(dialect: str) -> Executable:
    query = insert_rows(dialect, t, *LearnedDuration._fields, updated_at=relay_now())
    changed = {name: query.excluded[name] for name in ("jobs", "mean_seconds", "updated_at")}
    return query.on_conflict_do_update(index_elements=["workflow_id", "effect_id"], set_=changed)
