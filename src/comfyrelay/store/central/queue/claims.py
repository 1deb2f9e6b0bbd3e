"""Claim queued dispatches for a group of workers.

For any number of workers, a claim takes two statements: one picks and locks dispatches, and one grants the leases.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, cast, column, func, or_, select, text, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.routing import Candidate, Entitlement
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.queue import memory, missing_requirements
from comfyrelay.store.central.queue.dispatches import COLUMNS, LEASES, from_row
from comfyrelay.store.central.queue.pauses import IS_FREE
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_missing_requirements as missing
from comfyrelay.store.central.tables.workers import worker_workflows, workers, workflow_blocks, workflow_memory
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, select_by_ids, with_ids
from comfyrelay.store.types import relay_now, sql_literal

# Number of additional rows to read, so that a claim finds enough rows although it skips rows locked by other claims.
_SLACK = 16


class WorkerFacts(NamedTuple):
    """Facts that determine which dispatches a worker may lease."""

    worker_id: str
    stage: str
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    token_hash: str | None
    leases: int
    workflow_ids: tuple[int, ...]
    # Workflows whose models stay loaded.
    pinned_ids: tuple[int, ...]
    # Ends of blocks by workflow hash.
    blocks: Mapping[str, datetime | None]
    # Hashes of jobs whose requirements the worker does not meet.
    unmet_hashes: tuple[str, ...]
    # Workflows that need more memory than the worker has, and that another worker can run.
    oversized: tuple[memory.OversizedWorkflow, ...]
    # Whether any workflow has run out of memory on any GPU.
    is_any_oversized: bool
    # Whether a queued dispatch is pinned to the worker, or has run out of memory on it.
    has_own_dispatch: bool
    now: datetime


async def worker_facts(tx: Tx, worker_ids: Sequence[str], *, offline_seconds: float) -> dict[str, WorkerFacts]:
    """Lock the workers, so that two servers cannot fill the same slot, and return facts about them.

    A worker that another server has locked is skipped; that server or the next tick serves it. A worker that was not
    seen for `offline_seconds` does not count as an alternative for others.
    """
    locked_ids = [row.worker_id for row in await tx.fetch(_lock_workers, with_ids(worker_ids))]
    if not locked_ids:
        return {}
    # A separate statement, because only one that begins after the lock sees the newest leases of other servers.
    rows = await tx.fetch(_facts, with_ids(locked_ids))
    blocks: dict[str, dict[str, datetime | None]] = {}
    if any(row.blocks for row in rows):
        for row in await tx.fetch(_blocks, with_ids(locked_ids)):
            blocks.setdefault(row.worker_id, {})[row.workflow_hash] = row.blocked_until
    unmet: dict[str, list[str]] = {}
    if any(row.has_missing for row in rows):
        for worker_id, workflow_hash in sorted(await missing_requirements.pairs_of(tx, locked_ids)):
            unmet.setdefault(worker_id, []).append(workflow_hash)
    oversized: dict[str, frozenset[memory.OversizedWorkflow]] = {}
    if any(row.oversized for row in rows):
        oversized = await memory.oversized(tx, locked_ids, offline_seconds=offline_seconds)
    facts = {}
    # Unpacking rows is faster than access by name.
    for worker_id, *plain, assigned, pinned, _has_blocks, _has_missing, is_any_oversized, has_own, now in rows:
        values = (
            worker_id,
            *plain,
            _ids(assigned),
            _ids(pinned),
            blocks.get(worker_id, {}),
            tuple(unmet.get(worker_id, ())),
            tuple(sorted(oversized.get(worker_id, ()))),
            bool(is_any_oversized),
            bool(has_own),
            now,
        )
        facts[worker_id] = WorkerFacts._make(values)
    return facts


@lru_cache(maxsize=256)
def _ids(listed: str | None) -> tuple[int, ...]:
    return tuple(sorted(map(int, listed.split(",")))) if listed else ()


async def known_workers(tx: Tx, worker_ids: Iterable[str]) -> set[str]:
    return set(await tx.scalars(select(workers.c.worker_id).where(workers.c.worker_id.in_(list(worker_ids)))))


@cache
def _lock_workers(dialect: str) -> Executable:
    query = select_by_ids(dialect, workers.c.worker_id, workers.c.worker_id)
    return query.with_for_update(of=workers, key_share=True, skip_locked=True)


@cache
def _facts(dialect: str) -> Executable:
    join = func.string_agg if dialect == "postgresql" else func.group_concat
    ids = (
        select(join(cast(worker_workflows.c.workflow_id, Text), ","))
        .join(workflows, workflows.c.id == worker_workflows.c.workflow_id)
        .where(worker_workflows.c.worker_id == workers.c.worker_id, workflows.c.is_active)
    )
    assigned, pinned = ids.scalar_subquery(), ids.where(workflows.c.keep_loaded).scalar_subquery()
    blocks = select(func.count()).where(workflow_blocks.c.worker_id == workers.c.worker_id).scalar_subquery()
    has_missing = select(missing.c.worker_id).where(missing.c.worker_id == workers.c.worker_id).exists()
    is_pinned = d.c.only_worker.is_not(None) & (d.c.only_worker == workers.c.worker_id)
    is_queued = d.c.status == sql_literal(DispatchStatus.QUEUED)
    has_pinned = select(d.c.id).where(is_queued, is_pinned).exists()
    ran_out_here = d.c.ran_out_on.is_not(None) & memory.ran_out_on(dialect, workers.c.worker_id)
    has_ran_out = select(d.c.id).where(is_queued, ran_out_here).exists()
    return select_by_ids(
        dialect,
        workers.c.worker_id,
        workers.c.worker_id,
        workers.c.stage,
        workers.c.max_concurrency,
        workers.c.is_approved,
        workers.c.is_draining,
        workers.c.token_hash,
        LEASES.label("leases"),
        assigned.label("assigned"),
        pinned.label("pinned"),
        blocks.label("blocks"),
        has_missing.label("has_missing"),
        select(workflow_memory.c.workflow_id).exists().label("oversized"),
        or_(has_pinned, has_ran_out).label("has_own"),
        relay_now().label("now"),
    )


@cache
def _blocks(dialect: str) -> Executable:
    return select_by_ids(dialect, workflow_blocks.c.worker_id, workflow_blocks)


_PICKED = ", ".join(f"q.{column.name}" for column in [*COLUMNS, d.c.passed_over_at])

# Reads the queue index once per workflow, merges the results, and locks rows in queue order. LIMIT stops the locking,
# so only claimed rows are locked. Rows that others have locked are skipped.
# The rows are locked in a separate LATERAL. With a join, the planner would scan the whole table, because it does not
# know how few rows there are.
PICK_POSTGRES = text(
    f"""
    SELECT g.no, p.*
      FROM jsonb_to_recordset(CAST(:groups AS jsonb))
           AS g(no int, stage text, providers jsonb, workflow_ids jsonb, blocked jsonb, unmet jsonb, oversized jsonb,
                chosen text, slots int)
     CROSS JOIN LATERAL (
        SELECT d.*
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
                   AND NOT (q.provider = 'self_hosted' AND g.unmet ? q.workflow_hash)
                   AND NOT (q.provider = 'self_hosted' AND q.only_worker IS NULL
                            AND g.oversized ? (q.workflow_id || ' ' || q.workflow_hash))
                   AND NOT CAST(:down_shards AS jsonb) ? q.shard
                   AND {IS_FREE}
                   AND (q.only_worker IS NULL OR q.only_worker = g.chosen)
                   AND (q.ran_out_on IS NULL OR NOT CAST(q.ran_out_on AS jsonb) ? COALESCE(g.chosen, ''))
                 ORDER BY q.priority DESC, q.rank, q.id
                 LIMIT g.slots + :slack
             ) AS c
             ORDER BY c.priority DESC, c.rank, c.id
             LIMIT g.slots + :slack
          ) AS c
         CROSS JOIN LATERAL (
            SELECT {_PICKED}
              FROM ai_job_dispatches AS q
             WHERE q.id = c.id AND q.status = 'queued'
               FOR UPDATE SKIP LOCKED
          ) AS d
         ORDER BY c.priority DESC, c.rank, c.id
         LIMIT g.slots
     ) AS p
     ORDER BY g.no, p.priority DESC, p.rank, p.id
    """
).columns(column("no", Integer), *COLUMNS, d.c.passed_over_at)

# SQLite has one writer, so there is nothing to lock or skip. It checks the conditions in this order: the held jobs of a
# paused queue, which may be many, are left out before conditions that cost more (10 instead of 66 ms for 10,000).
PICK_SQLITE = text(
    f"""
    SELECT {_PICKED}
      FROM ai_job_dispatches AS q
     WHERE q.status = 'queued'
       AND q.stage = :stage
       AND q.provider IN (SELECT value FROM json_each(:providers))
       AND q.workflow_id IN (SELECT value FROM json_each(:workflow_ids))
       AND {IS_FREE}
       AND q.attempts < q.max_attempts
       AND q.available_at <= relay_now(0)
       AND q.workflow_hash NOT IN (SELECT value FROM json_each(:blocked))
       AND NOT (q.provider = 'self_hosted' AND q.workflow_hash IN (SELECT value FROM json_each(:unmet)))
       AND NOT (q.provider = 'self_hosted' AND q.only_worker IS NULL
                AND q.workflow_id || ' ' || q.workflow_hash IN (SELECT value FROM json_each(:oversized)))
       AND q.shard NOT IN (SELECT value FROM json_each(:down_shards))
       AND (q.only_worker IS NULL OR q.only_worker = :chosen)
       AND (q.ran_out_on IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(q.ran_out_on) AS w WHERE w.key = :chosen))
     ORDER BY q.priority DESC, q.rank, q.id
     LIMIT :slots
    """
).columns(*COLUMNS, d.c.passed_over_at)


def _pick(dialect: str) -> Executable:
    return PICK_SQLITE if dialect == "sqlite" else PICK_POSTGRES


async def pick(
    tx: Tx, slots: Mapping[Entitlement, int], *, down_shards: Sequence[str]
) -> dict[Entitlement, list[Candidate]]:
    """Lock and return the next dispatches of each entitlement in queue order, at most `slots`."""
    down = list(down_shards)
    groups = [_group(entitlement, count) for entitlement, count in slots.items()]
    if tx.dialect == "sqlite":
        picked = [await tx.fetch(_pick, {**group, "down_shards": down}) for group in groups]
        return {entitlement: [_candidate(row) for row in rows] for entitlement, rows in zip(slots, picked, strict=True)}
    numbered = [{"no": number, **group} for number, group in enumerate(groups)]
    found: list[list[Candidate]] = [[] for _ in groups]
    for row in await tx.fetch(_pick, {"groups": numbered, "down_shards": down, "slack": _SLACK}):
        found[row[0]].append(_candidate(row[1:]))
    return dict(zip(slots, found, strict=True))


def _group(entitlement: Entitlement, slots: int) -> dict[str, Any]:
    return {
        "stage": entitlement.stage,
        "providers": list(entitlement.providers),
        "workflow_ids": list(entitlement.workflow_ids),
        "blocked": list(entitlement.blocked_hashes),
        "unmet": list(entitlement.unmet_hashes),
        "oversized": [f"{workflow_id} {hash_}" for workflow_id, hash_ in entitlement.oversized],
        "chosen": entitlement.only_worker,
        "slots": slots,
    }


def _candidate(values: Sequence[Any]) -> Candidate:
    return Candidate(from_row(values), passed_over_at=values[-1])


async def note_passed_over(tx: Tx, ids: Sequence[int]) -> None:
    """Record that these dispatches are skipped in favor of loaded workflows, so that the additional wait is limited."""
    await tx.write(_note_passed_over, with_ids(ids))


@cache
def _note_passed_over(dialect: str) -> Executable:
    r = ids_table(dialect, BigInteger)
    return (
        update(d)
        .values(passed_over_at=relay_now())
        .where(d.c.id == r.c.id, d.c.passed_over_at.is_(None), d.c.status == sql_literal(DispatchStatus.QUEUED))
    )
