"""Blocks of (worker, workflow hash) pairs."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.blocks import Block
from comfyrelay.store.central.tables.workers import workflow_blocks
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, insert_into, rows_table, with_rows
from comfyrelay.store.types import relay_now

Pair = tuple[str, str]


async def lock(tx: Tx, pairs: Iterable[Pair]) -> dict[Pair, Block]:
    result = await tx.fetch(_lock, with_rows(_pair_rows(pairs)))
    return {
        (row.worker_id, row.workflow_hash): Block(failure_count=row.failure_count, blocked_until=row.blocked_until)
        for row in result
    }


@cache
def _lock(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(workflow_blocks, "worker_id", "workflow_hash"))
    return select(workflow_blocks).join(r, _same_pair(r)).with_for_update(of=workflow_blocks)


def _same_pair(r: Any) -> Any:
    same_worker = workflow_blocks.c.worker_id == r.c.worker_id
    return same_worker & (workflow_blocks.c.workflow_hash == r.c.workflow_hash)


def _pair_rows(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    return [{"worker_id": worker, "workflow_hash": hash_} for worker, hash_ in pairs]


async def standing(tx: Tx, worker_ids: Sequence[str]) -> set[Pair]:
    """Return the pairs of these workers that are blocked now."""
    query = select(workflow_blocks.c.worker_id, workflow_blocks.c.workflow_hash).where(
        workflow_blocks.c.worker_id.in_(worker_ids), workflow_blocks.c.blocked_until > relay_now()
    )
    return {(row.worker_id, row.workflow_hash) for row in await tx.execute(query)}


async def write(tx: Tx, pair: Pair, block: Block) -> None:
    query = insert_into(tx.dialect, workflow_blocks).values(
        worker_id=pair[0],
        workflow_hash=pair[1],
        failure_count=block.failure_count,
        blocked_until=block.blocked_until,
    )
    counted = {"failure_count": query.excluded.failure_count, "blocked_until": query.excluded.blocked_until}
    await tx.execute(query.on_conflict_do_update(index_elements=["worker_id", "workflow_hash"], set_=counted))


async def clear(tx: Tx, pairs: Sequence[Pair]) -> dict[Pair, datetime | None]:
    """Delete the failures of these pairs; returns those that had any, with the end of their block."""
    result = await tx.fetch(_clear, with_rows(_pair_rows(pairs)))
    return {(row.worker_id, row.workflow_hash): row.blocked_until for row in result}


@cache
def _clear(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(workflow_blocks, "worker_id", "workflow_hash"))
    b = workflow_blocks
    found = select(r.c.worker_id).where(_same_pair(r)).exists()
    return delete(b).where(found).returning(b.c.worker_id, b.c.workflow_hash, b.c.blocked_until)


async def clear_expired(tx: Tx, worker_ids: Sequence[str]) -> list[Pair]:
    """Delete expired blocks. A block ends exactly at its end time."""
    b = workflow_blocks
    query = (
        delete(b)
        .where(b.c.worker_id.in_(worker_ids), b.c.blocked_until <= relay_now())
        .returning(b.c.worker_id, b.c.workflow_hash)
    )
    return [(row.worker_id, row.workflow_hash) for row in await tx.execute(query)]


async def of_hash(tx: Tx, workflow_hash: str) -> dict[str, datetime]:
    """Return the blocked workers of this workflow hash with the end of each block."""
    b = workflow_blocks
    query = select(b.c.worker_id, b.c.blocked_until).where(
        b.c.workflow_hash == workflow_hash, b.c.blocked_until > relay_now()
    )
    return {row.worker_id: row.blocked_until for row in await tx.execute(query)}
