"""Claim queued dispatches for a group of workers.

For any number of workers, this takes two statements: one picks and locks, one grants the leases.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, cast, column, func, select, text, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.routing import Candidate, Entitlement
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.queue import memory, missing_requirements
from comfyrelay.store.central.queue.dispatches import COLUMNS, LEASES, from_row
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import worker_missing_requirements as missing
from comfyrelay.store.central.tables.workers import worker_workflows, workers, workflow_blocks, workflow_memory
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, with_ids
from comfyrelay.store.types import relay_now, sql_literal

# Rows locked by other claims are skipped. This many more rows are read, so that a claim still finds enough.
_SLACK = 16


class WorkerFacts(NamedTuple):
    """Facts that decide what a worker may lease."""

    worker_id: str
    stage: str
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    token_hash: str | None
    leases: int
    workflow_ids: tuple[int, ...]
    # the ones whose models stay loaded
    pinned_ids: tuple[int, ...]
    blocks: Mapping[str, datetime | None]
    # hashes of jobs whose requirements it does not meet
    lacks: tuple[str, ...]
    # workflows that need more memory than it has, and that another worker can run
    oversized: tuple[memory.OversizedWorkflow, ...]
    # whether any workflow has run out of memory on any GPU
    is_any_oversized: bool
    # whether a queued dispatch is pinned to it
    is_chosen: bool
    now: datetime


async def worker_facts(tx: Tx, worker_ids: Sequence[str], *, stale_seconds: float) -> dict[str, WorkerFacts]:
    """Return facts about the workers, whose rows are locked so that two servers cannot fill the same slot.

    A worker that another server has locked is skipped; it is served there or at the next tick. A worker that was not
    seen for `stale_seconds` does not count as an alternative for others.
    """
    locked_ids = [row.worker_id for row in await tx.fetch(_lock_workers, with_ids(worker_ids))]
    if not locked_ids:
        return {}
    # A separate statement, because only one that begins after the lock sees the newest leases of other servers.
    named = with_ids(locked_ids)
    locked = await tx.fetch(_facts, named)
    blocks: dict[str, dict[str, datetime | None]] = {}
    if any(row.blocks for row in locked):
        for row in await tx.fetch(_blocks, named):
            blocks.setdefault(row.worker_id, {})[row.workflow_hash] = row.blocked_until
    facts = {}
    lacks: dict[str, list[str]] = {}
    oversized: dict[str, frozenset[memory.OversizedWorkflow]] = {}
    if any(row.has_missing for row in locked):
        for worker_id, workflow_hash in sorted(await missing_requirements.pairs_of(tx, locked_ids)):
            lacks.setdefault(worker_id, []).append(workflow_hash)
    if any(row.oversized for row in locked):
        oversized = await memory.oversized(tx, locked_ids, stale_seconds=stale_seconds)
    for worker_id, *plain, assigned, pinned, _blocks_there, _has_missing, is_any_oversized, is_chosen, now in locked:
        its_lacks, its_blocks = tuple(lacks.get(worker_id, ())), blocks.get(worker_id, {})
        its_ids, too_large = (_ids(assigned), _ids(pinned)), tuple(sorted(oversized.get(worker_id, ())))
        flags = (bool(is_any_oversized), bool(is_chosen))
        facts[worker_id] = WorkerFacts._make(
            (worker_id, *plain, *its_ids, its_blocks, its_lacks, too_large, *flags, now)
        )
    return facts


@lru_cache(maxsize=256)
def _ids(listed: str | None) -> tuple[int, ...]:
    return tuple(sorted(map(int, listed.split(",")))) if listed else ()


async def known_workers(tx: Tx, worker_ids: Iterable[str]) -> set[str]:
    query = select(workers.c.worker_id).where(workers.c.worker_id.in_(list(worker_ids)))
    return set((await tx.scalars(query)).all())


@cache
def _lock_workers(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    query = select(workers.c.worker_id).join(r, workers.c.worker_id == r.c.id)
    return query.with_for_update(of=workers, key_share=True, skip_locked=True)


@cache
def _facts(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    together = func.string_agg if dialect == "postgresql" else func.group_concat
    ids = (
        select(together(cast(worker_workflows.c.workflow_id, Text), ","))
        .join(workflows, workflows.c.id == worker_workflows.c.workflow_id)
        .where(worker_workflows.c.worker_id == workers.c.worker_id, workflows.c.is_active)
    )
    assigned, pinned = ids.scalar_subquery(), ids.where(workflows.c.keep_loaded).scalar_subquery()
    blocks = select(func.count()).where(workflow_blocks.c.worker_id == workers.c.worker_id).scalar_subquery()
    has_missing = select(missing.c.worker_id).where(missing.c.worker_id == workers.c.worker_id).exists()
    for_it_alone = d.c.only_worker.is_not(None) & (d.c.only_worker == workers.c.worker_id)
    is_chosen = select(d.c.id).where(d.c.status == sql_literal(DispatchStatus.QUEUED), for_it_alone).exists()
    return select(
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
        is_chosen.label("is_chosen"),
        relay_now().label("now"),
    ).join(r, workers.c.worker_id == r.c.id)


@cache
def _blocks(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(workflow_blocks).join(r, workflow_blocks.c.worker_id == r.c.id)


_PICKED = ", ".join(f"q.{each.name}" for each in [*COLUMNS, d.c.passed_over_at])

# Reads the queue index once per workflow, merges the results, and locks rows in queue order. LIMIT stops the locking,
# so only claimed rows are locked. Rows that others have locked are skipped.
# The rows are locked in a separate LATERAL. With a join, the planner would scan the whole table, because it does not
# know how few rows there are.
PICK_POSTGRES = text(
    f"""
    SELECT g.no, p.*
      FROM jsonb_to_recordset(CAST(:groups AS jsonb))
           AS g(no int, stage text, providers jsonb, workflow_ids jsonb, blocked jsonb, lacking jsonb, oversized jsonb,
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
                   AND NOT (q.provider = 'self_hosted' AND g.lacking ? q.workflow_hash)
                   AND NOT (q.provider = 'self_hosted' AND q.only_worker IS NULL
                            AND g.oversized ? (q.workflow_id || ' ' || q.workflow_hash))
                   AND NOT CAST(:down_shards AS jsonb) ? q.shard
                   AND (q.only_worker IS NULL OR q.only_worker = g.chosen)
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

# SQLite has one writer, so there is nothing to lock or skip.
PICK_SQLITE = text(
    f"""
    SELECT {_PICKED}
      FROM ai_job_dispatches AS q
     WHERE q.status = 'queued'
       AND q.stage = :stage
       AND q.provider IN (SELECT value FROM json_each(:providers))
       AND q.workflow_id IN (SELECT value FROM json_each(:workflow_ids))
       AND q.attempts < q.max_attempts
       AND q.available_at <= relay_now(0)
       AND q.workflow_hash NOT IN (SELECT value FROM json_each(:blocked))
       AND NOT (q.provider = 'self_hosted' AND q.workflow_hash IN (SELECT value FROM json_each(:lacking)))
       AND NOT (q.provider = 'self_hosted' AND q.only_worker IS NULL
                AND q.workflow_id || ' ' || q.workflow_hash IN (SELECT value FROM json_each(:oversized)))
       AND q.shard NOT IN (SELECT value FROM json_each(:down_shards))
       AND (q.only_worker IS NULL OR q.only_worker = :chosen)
     ORDER BY q.priority DESC, q.rank, q.id
     LIMIT :slots
    """
).columns(*COLUMNS, d.c.passed_over_at)


def _pick_any(dialect: str) -> Executable:
    return PICK_SQLITE if dialect == "sqlite" else PICK_POSTGRES


async def pick(
    tx: Tx, slots: Mapping[Entitlement, int], *, down_shards: Sequence[str]
) -> dict[Entitlement, list[Candidate]]:
    """Lock and return the next dispatches of each entitlement in queue order, at most `slots`."""
    down = list(down_shards)
    if tx.dialect == "sqlite":
        return {each: await _pick_sqlite(tx, each, wanted, down) for each, wanted in slots.items()}
    order = list(slots)
    groups = [{"no": no, **_group(each), "slots": slots[each]} for no, each in enumerate(order)]
    parameters = {"groups": groups, "down_shards": down, "slack": _SLACK}
    found: dict[Entitlement, list[Candidate]] = {each: [] for each in order}
    for row in await tx.fetch(_pick_any, parameters):
        found[order[row[0]]].append(_candidate(row[1:]))
    return found


async def _pick_sqlite(tx: Tx, entitlement: Entitlement, slots: int, down: list[str]) -> list[Candidate]:
    group = _group(entitlement)
    lists = {name: list(group[name]) for name in ("providers", "workflow_ids", "blocked", "lacking", "oversized")}
    chosen = entitlement.only_worker
    parameters = {**lists, "stage": entitlement.stage, "slots": slots, "down_shards": down, "chosen": chosen}
    return [_candidate(row) for row in await tx.fetch(_pick_any, parameters)]


def _group(entitlement: Entitlement) -> dict[str, Any]:
    return {
        "stage": entitlement.stage,
        "providers": entitlement.providers,
        "workflow_ids": entitlement.workflow_ids,
        "blocked": entitlement.blocked_hashes,
        "lacking": entitlement.unmet_hashes,
        "oversized": [f"{workflow_id} {hash_}" for workflow_id, hash_ in entitlement.oversized],
        "chosen": entitlement.only_worker,
    }


def _candidate(values: Sequence[Any]) -> Candidate:
    return Candidate(from_row(values), passed_over_at=values[-1])


async def note_passed_over(tx: Tx, ids: Sequence[int]) -> None:
    """Record since when these were skipped in favour of warm workflows, so that this can be limited."""
    await tx.write(_note_passed_over, with_ids(ids))


@cache
def _note_passed_over(dialect: str) -> Executable:
    r = ids_table(dialect, BigInteger)
    return (
        update(d)
        .values(passed_over_at=relay_now())
        .where(d.c.id == r.c.id, d.c.passed_over_at.is_(None), d.c.status == sql_literal(DispatchStatus.QUEUED))
    )
