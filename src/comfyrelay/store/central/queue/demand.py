"""Read queued work and the waiting workers that could run it, without locks."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Float, Integer, Select, Text, bindparam, select, text
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.routing import QueuedDispatch, ReclaimableDispatch
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.queue.dispatches import LEASES
from comfyrelay.store.central.queue.pauses import IS_FREE, is_free
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_workflows, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import rows_table, select_by_ids, with_ids, with_rows
from comfyrelay.store.types import relay_now, sql_literal

_QUEUED = [d.c[name] for name in QueuedDispatch.__dataclass_fields__]
_NAMES = ", ".join(f"q.{column.name}" for column in _QUEUED)

# A kind is a stage, a provider and a workflow. The statements skip from one kind to the next in the queue index, so
# that they read only the first rows of each kind.
_KINDS = """
    WITH RECURSIVE kinds AS (
        SELECT * FROM (
            SELECT stage, provider, workflow_id
              FROM ai_job_dispatches
             WHERE status = 'queued'
             ORDER BY stage, provider, workflow_id
             LIMIT 1
        ) AS first
        UNION ALL
        {next_kind}
    )"""
_FIRST_WHERE = """
              FROM ai_job_dispatches AS q
             WHERE q.status = 'queued'
               AND {condition}
             ORDER BY q.stage, q.provider, q.workflow_id
             LIMIT 1"""
_AFTER = _FIRST_WHERE.format(condition="(q.stage, q.provider, q.workflow_id) > (k.stage, k.provider, k.workflow_id)")
# The same for SQLite, which uses only the first index column when it compares rows.
_AFTER_SQLITE = ", ".join(
    f"(SELECT q.id {_FIRST_WHERE.format(condition=condition)})"
    for condition in (
        "q.stage = k.stage AND q.provider = k.provider AND q.workflow_id > k.workflow_id",
        "q.stage = k.stage AND q.provider > k.provider",
        "q.stage > k.stage",
    )
)
_OF_KIND = """
          FROM ai_job_dispatches AS q
         WHERE q.status = 'queued'
           AND q.stage = k.stage
           AND q.provider = k.provider
           AND q.workflow_id = k.workflow_id
           AND {is_free}
           AND q.attempts < q.max_attempts
           AND q.available_at <= relay_now(0)
           AND q.only_worker IS NULL
           AND {not_down}
         ORDER BY q.priority DESC, q.rank, q.id
         LIMIT :limit"""
# Dispatches for one chosen worker are read separately, so that they do not use up the limit of their kind.
_CHOSEN = """
    UNION ALL
    SELECT * FROM (
        SELECT {names}
          FROM ai_job_dispatches AS q
         WHERE q.status = 'queued'
           AND q.only_worker IS NOT NULL
           AND q.attempts < q.max_attempts
           AND q.available_at <= relay_now(0)
           AND {not_down}
           AND {is_free}
         ORDER BY q.id
         LIMIT :limit
    ) AS chosen"""
_NOT_DOWN = "NOT CAST(:down_shards AS jsonb) ? q.shard"
_NOT_DOWN_SQLITE = "q.shard NOT IN (SELECT value FROM json_each(:down_shards))"

POSTGRES = text(
    _KINDS.format(
        next_kind=f"""
        SELECT n.* FROM kinds AS k
         CROSS JOIN LATERAL (SELECT q.stage, q.provider, q.workflow_id {_AFTER}) AS n"""
    )
    + f"""
    SELECT q.* FROM kinds AS k
     CROSS JOIN LATERAL (
        SELECT {_NAMES} {_OF_KIND.format(not_down=_NOT_DOWN, is_free=IS_FREE)}
     ) AS q
    """
    + _CHOSEN.format(names=_NAMES, not_down=_NOT_DOWN, is_free=IS_FREE)
).columns(*_QUEUED)

# SQLite has no LATERAL: each step looks up the id that a subquery finds.
SQLITE = text(
    _KINDS.format(
        next_kind=f"""
        SELECT n.stage, n.provider, n.workflow_id FROM kinds AS k
          JOIN ai_job_dispatches AS n ON n.id = coalesce({_AFTER_SQLITE})"""
    )
    + f"""
    SELECT {_NAMES.replace("q.", "o.")} FROM kinds AS k
      JOIN ai_job_dispatches AS o ON o.id IN (
        SELECT q.id {_OF_KIND.format(not_down=_NOT_DOWN_SQLITE, is_free=IS_FREE)}
      )
    """
    + _CHOSEN.format(names=_NAMES, not_down=_NOT_DOWN_SQLITE, is_free=IS_FREE)
).columns(*_QUEUED)


def _queued(dialect: str) -> Executable:
    return SQLITE if dialect == "sqlite" else POSTGRES


async def queued(tx: Tx, *, limit: int, down_shards: Sequence[str]) -> list[QueuedDispatch]:
    """Return the first leasable dispatches of each stage, provider and workflow."""
    rows = await tx.fetch(_queued, {"limit": limit, "down_shards": list(down_shards)})
    return [QueuedDispatch(**row._mapping) for row in rows]


async def prefetched(tx: Tx, *, for_seconds: float, limit: int) -> list[ReclaimableDispatch]:
    """Return dispatches that were prefetched at least `for_seconds` ago and have neither started nor been recalled,
    oldest first."""
    rows = await tx.fetch(prefetched_query, {"for_seconds": -for_seconds, "limit": limit})
    return [ReclaimableDispatch(**row._mapping) for row in rows]


@cache
def prefetched_query(_dialect: str = "") -> Select[Any]:
    return (
        select(*_QUEUED, d.c.worker_id)
        .where(
            d.c.status == sql_literal(DispatchStatus.LEASED),
            d.c.is_prefetch,
            d.c.progress.is_(None),
            d.c.release_requested_at.is_(None),
            d.c.leased_at <= relay_now(bindparam("for_seconds", type_=Float())),
        )
        .order_by(d.c.id)
        .limit(bindparam("limit", type_=Integer()))
    )


async def late(tx: Tx, *, down_shards: Sequence[str]) -> list[ReclaimableDispatch]:
    """Return expired leases whose jobs could be restarted, in queue order.

    No limit is needed: there are at most as many leases as slots.
    """
    query = late_query().where(d.c.shard.not_in(list(down_shards)))
    return await tx.all(ReclaimableDispatch, query)


def late_query() -> Select[Any]:
    return (
        select(*_QUEUED, d.c.worker_id)
        .where(
            d.c.status == sql_literal(DispatchStatus.LEASED),
            d.c.lease_expires_at <= relay_now(),
            d.c.cancel_requested_at.is_(None),
            d.c.pause_requested_at.is_(None),
            d.c.attempts < d.c.max_attempts,
            is_free(),
        )
        .order_by(d.c.priority.desc(), d.c.rank, d.c.id)
    )


class WorkerSlots(NamedTuple):
    max_concurrency: int
    leases: int


async def worker_slots(tx: Tx, worker_ids: Iterable[str], wanted: Iterable[tuple[str, int]]) -> dict[str, WorkerSlots]:
    """Return the slots and leases, by worker id, of those of the given workers that may run a wanted workflow.

    `wanted` contains pairs of stage and workflow id.
    """
    kinds = with_rows(({"stage": stage, "id": id_} for stage, id_ in wanted), "wanted")
    found = await tx.fetch(_worker_slots, {**with_ids(worker_ids), **kinds})
    return {row.worker_id: WorkerSlots(row.max_concurrency, row.leases) for row in found}


@cache
def _worker_slots(dialect: str) -> Executable:
    wanted = rows_table(dialect, {"stage": Text(), "id": BigInteger()}, parameter="wanted", alias="wanted")
    may_run = (
        select(worker_workflows.c.workflow_id)
        .join(workflows, workflows.c.id == worker_workflows.c.workflow_id)
        .join(wanted, wanted.c.id == worker_workflows.c.workflow_id)
        .where(
            worker_workflows.c.worker_id == workers.c.worker_id,
            workflows.c.is_active,
            wanted.c.stage == workers.c.stage,
        )
        .exists()
    )
    columns = (workers.c.worker_id, workers.c.max_concurrency, LEASES.label("leases"))
    query = select_by_ids(dialect, workers.c.worker_id, *columns)
    return query.where(workers.c.is_approved, ~workers.c.is_draining, may_run)
