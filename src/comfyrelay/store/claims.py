"""Claiming: which queued dispatches a group of workers may run, and the leases that take them.

For any number of workers it is two statements: one that picks and locks, one that grants.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Float, Integer, Text, bindparam, func, select, text, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.lifecycle import Dispatch
from comfyrelay.domain.routing import Candidate, Entitlement
from comfyrelay.domain.states import DispatchStatus
from comfyrelay.store.central import ai_job_dispatches as d
from comfyrelay.store.central import worker_workflows, workers, workflow_blocks, workflows
from comfyrelay.store.database import Tx
from comfyrelay.store.dispatches import COLUMNS, from_row
from comfyrelay.store.rows import columns_of, ids_table, rows_table, with_ids, with_rows
from comfyrelay.store.types import json_text, relay_now

# Rows that other claimers hold are stepped over; this many more are looked at so that a claim is not left short.
_SLACK = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFacts:
    """What decides whether and what a worker may lease."""

    worker_id: str
    stage: str
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    leases: int
    workflow_ids: tuple[int, ...]
    blocks: Mapping[str, datetime | None]
    now: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLease:
    id: int
    worker_id: str
    lease_token: str
    lease_request_id: str | None
    is_prefetch: bool


async def worker_facts(tx: Tx, worker_ids: Sequence[str]) -> dict[str, WorkerFacts]:
    """Facts of the workers, whose rows are locked so that two servers cannot fill the same slot.

    A worker that another server is serving this moment is left out; it is served there, or at the next tick.
    """
    named = with_ids(worker_ids)
    locked = (await tx.execute(_lock_workers(tx.dialect.name), named)).all()
    if not locked:
        return {}
    assigned: dict[str, list[int]] = {row.worker_id: [] for row in locked}
    for row in await tx.execute(_assigned(tx.dialect.name), named):
        if row.worker_id in assigned:
            assigned[row.worker_id].append(row.workflow_id)
    blocks: dict[str, dict[str, datetime | None]] = {}
    if any(row.blocks for row in locked):
        for row in await tx.execute(_blocks(tx.dialect.name), named):
            blocks.setdefault(row.worker_id, {})[row.workflow_hash] = row.blocked_until
    return {
        row.worker_id: WorkerFacts(
            worker_id=row.worker_id,
            stage=row.stage,
            max_concurrency=row.max_concurrency,
            is_approved=row.is_approved,
            is_draining=row.is_draining,
            leases=row.leases,
            workflow_ids=tuple(assigned[row.worker_id]),
            blocks=blocks.get(row.worker_id, {}),
            now=row.now,
        )
        for row in locked
    }


async def known_workers(tx: Tx, worker_ids: Iterable[str]) -> set[str]:
    query = select(workers.c.worker_id).where(workers.c.worker_id.in_(list(worker_ids)))
    return set((await tx.scalars(query)).all())


@cache
def _lock_workers(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    leases = (
        select(func.count())
        .where(d.c.worker_id == workers.c.worker_id, d.c.status == text("'leased'"))
        .scalar_subquery()
    )
    blocks = select(func.count()).where(workflow_blocks.c.worker_id == workers.c.worker_id).scalar_subquery()
    return (
        select(
            workers.c.worker_id,
            workers.c.stage,
            workers.c.max_concurrency,
            workers.c.is_approved,
            workers.c.is_draining,
            leases.label("leases"),
            blocks.label("blocks"),
            relay_now().label("now"),
        )
        .join(r, workers.c.worker_id == r.c.id)
        .with_for_update(of=workers, key_share=True, skip_locked=True)
    )


@cache
def _assigned(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return (
        select(worker_workflows.c.worker_id, worker_workflows.c.workflow_id)
        .join(r, worker_workflows.c.worker_id == r.c.id)
        .join(workflows, workflows.c.id == worker_workflows.c.workflow_id)
        .where(workflows.c.is_active)
        .order_by(worker_workflows.c.worker_id, worker_workflows.c.workflow_id)
    )


@cache
def _blocks(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(workflow_blocks).join(r, workflow_blocks.c.worker_id == r.c.id)


# Through the hot index once per workflow, merged, and locked in queue order until there are enough: LIMIT stops the
# locking, so no row is held that is not taken, and rows others hold are stepped over.
PICK_POSTGRES = text(
    """
    SELECT g.no, p.id, p.priority, p.workflow_hash, p.passed_over_at
      FROM jsonb_to_recordset(CAST(:groups AS jsonb))
           AS g(no int, stage text, providers jsonb, workflow_ids jsonb, blocked jsonb, slots int)
     CROSS JOIN LATERAL (
        SELECT d.id, d.priority, d.rank, d.workflow_hash, d.passed_over_at
          FROM (
            SELECT c.id, c.priority, c.rank
              FROM jsonb_array_elements_text(g.providers) AS provider(name)
             CROSS JOIN jsonb_array_elements_text(g.workflow_ids) AS workflow(id)
             CROSS JOIN LATERAL (
                SELECT q.id, q.priority, q.rank
                  FROM ai_job_dispatches AS q
                 WHERE q.status = 'queued'
                   AND q.stage = g.stage
                   AND q.provider = provider.name
                   AND q.workflow_id = CAST(workflow.id AS bigint)
                   AND q.attempts < q.max_attempts
                   AND q.available_at <= relay_now(0)
                   AND NOT g.blocked ? q.workflow_hash
                   AND NOT CAST(:down_pools AS jsonb) ? q.db_pool
                 ORDER BY q.priority DESC, q.rank, q.id
                 LIMIT g.slots + :slack
             ) AS c
             ORDER BY c.priority DESC, c.rank, c.id
             LIMIT g.slots + :slack
          ) AS c
          JOIN ai_job_dispatches AS d ON d.id = c.id
         WHERE d.status = 'queued'
         ORDER BY c.priority DESC, c.rank, c.id
         LIMIT g.slots
           FOR UPDATE OF d SKIP LOCKED
     ) AS p
     ORDER BY g.no, p.priority DESC, p.rank, p.id
    """
).columns(no=Integer, **columns_of(d, "id", "priority", "workflow_hash", "passed_over_at"))

# SQLite has one writer, so there is nothing to lock or to step over.
PICK_SQLITE = text(
    """
    SELECT q.id, q.priority, q.workflow_hash, q.passed_over_at
      FROM ai_job_dispatches AS q
     WHERE q.status = 'queued'
       AND q.stage = :stage
       AND q.provider IN (SELECT value FROM json_each(:providers))
       AND q.workflow_id IN (SELECT value FROM json_each(:workflow_ids))
       AND q.attempts < q.max_attempts
       AND q.available_at <= relay_now(0)
       AND q.workflow_hash NOT IN (SELECT value FROM json_each(:blocked))
       AND q.db_pool NOT IN (SELECT value FROM json_each(:down_pools))
     ORDER BY q.priority DESC, q.rank, q.id
     LIMIT :slots
    """
).columns(**columns_of(d, "id", "priority", "workflow_hash", "passed_over_at"))


async def pick(
    tx: Tx, slots: Mapping[Entitlement, int], *, down_pools: Sequence[str]
) -> dict[Entitlement, list[Candidate]]:
    """For each entitlement, its next dispatches in queue order: at most `slots` of them, locked."""
    down = json_text(list(down_pools))
    if tx.dialect.name == "sqlite":
        return {each: await _pick_sqlite(tx, each, wanted, down) for each, wanted in slots.items()}
    order = list(slots)
    groups = [{"no": no, **_group(each), "slots": slots[each]} for no, each in enumerate(order)]
    parameters = {"groups": json_text(groups), "down_pools": down, "slack": _SLACK}
    found: dict[Entitlement, list[Candidate]] = {each: [] for each in order}
    for row in await tx.execute(PICK_POSTGRES, parameters):
        found[order[row.no]].append(_candidate(row))
    return found


async def _pick_sqlite(tx: Tx, entitlement: Entitlement, slots: int, down: str) -> list[Candidate]:
    group = _group(entitlement)
    lists = {name: json_text(group[name]) for name in ("providers", "workflow_ids", "blocked")}
    result = await tx.execute(PICK_SQLITE, {**lists, "stage": entitlement.stage, "slots": slots, "down_pools": down})
    return [_candidate(row) for row in result]


def _group(entitlement: Entitlement) -> dict[str, Any]:
    return {
        "stage": entitlement.stage,
        "providers": entitlement.providers,
        "workflow_ids": entitlement.workflow_ids,
        "blocked": entitlement.blocked_hashes,
    }


def _candidate(row: Any) -> Candidate:
    return Candidate(
        id=row.id, priority=row.priority, workflow_hash=row.workflow_hash, passed_over_at=row.passed_over_at
    )


async def grant(tx: Tx, leases: Sequence[NewLease], *, ttl_seconds: float) -> dict[int, Dispatch]:
    """Turn picked dispatches into leases: the attempt is counted and the epoch grows, here and nowhere else."""
    rows = [{name: getattr(each, name) for name in NewLease.__dataclass_fields__} for each in leases]
    result = await tx.execute(_grant(tx.dialect.name), {**with_rows(rows), "ttl": ttl_seconds})
    return {row.id: from_row(row) for row in result}


@cache
def _grant(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, *NewLease.__dataclass_fields__))
    return (
        update(d)
        .values(
            status=DispatchStatus.LEASED,
            attempts=d.c.attempts + 1,
            epoch=d.c.epoch + 1,
            version=d.c.version + 1,
            worker_id=r.c.worker_id,
            lease_token=r.c.lease_token,
            lease_request_id=r.c.lease_request_id,
            is_prefetch=r.c.is_prefetch,
            leased_at=relay_now(),
            lease_expires_at=relay_now(bindparam("ttl", type_=Float())),
            passed_over_at=None,
            progress=None,
        )
        .where(d.c.id == r.c.id, d.c.status == DispatchStatus.QUEUED)
        .returning(*COLUMNS)
    )


async def note_passed_over(tx: Tx, ids: Sequence[int]) -> None:
    """Remember since when warm workflows have been preferred to these, so that it ends in time."""
    await tx.execute(_note_passed_over(tx.dialect.name), with_ids(ids))


@cache
def _note_passed_over(dialect: str) -> Executable:
    r = ids_table(dialect, BigInteger)
    return (
        update(d)
        .values(passed_over_at=relay_now())
        .where(d.c.id == r.c.id, d.c.passed_over_at.is_(None), d.c.status == DispatchStatus.QUEUED)
    )
