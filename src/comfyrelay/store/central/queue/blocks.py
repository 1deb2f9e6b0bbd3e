"""Blocks: workers that get no jobs with a workflow hash for a while, because such jobs failed there."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cache

from sqlalchemy import Delete, delete, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.blocks import Block
from comfyrelay.store.central.tables.workers import workflow_blocks as b
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, insert_into, rows_table, select_by_rows, with_rows
from comfyrelay.store.types import relay_now

# A worker and a workflow hash.
Pair = tuple[str, str]
_PAIR = ("worker_id", "workflow_hash")
_FIELDS = tuple(Block.__dataclass_fields__)


async def lock(tx: Tx, pairs: Iterable[Pair]) -> dict[Pair, Block]:
    return {
        (row.worker_id, row.workflow_hash): Block(**{name: row._mapping[name] for name in _FIELDS})
        for row in await tx.fetch(_lock, with_rows(_pair_rows(pairs)))
    }


@cache
def _lock(dialect: str) -> Executable:
    return select_by_rows(dialect, b, _PAIR, b).with_for_update(of=b)


def _pair_rows(pairs: Iterable[Pair]) -> list[dict[str, str]]:
    return [dict(zip(_PAIR, pair, strict=True)) for pair in pairs]


async def blocked_pairs(tx: Tx, worker_ids: Sequence[str]) -> set[Pair]:
    """Return the pairs of these workers that are blocked now."""
    query = select(b.c.worker_id, b.c.workflow_hash)
    query = query.where(b.c.worker_id.in_(worker_ids), b.c.blocked_until > relay_now())
    return {(row.worker_id, row.workflow_hash) for row in await tx.execute(query)}


async def write(tx: Tx, pair: Pair, block: Block) -> None:
    values = asdict(block)
    query = insert_into(tx.dialect, b).values(worker_id=pair[0], workflow_hash=pair[1], **values)
    await tx.execute(query.on_conflict_do_update(index_elements=_PAIR, set_=values))


async def clear_of_workers(
    tx: Tx, worker_ids: Sequence[str], *, workflow_hash: str | None = None, only_out_of_memory: bool = False
) -> list[Pair]:
    """Delete the failures of these workers, for one workflow or all. Return the affected pairs."""
    query = delete(b).where(b.c.worker_id.in_(worker_ids))
    if workflow_hash is not None:
        query = query.where(b.c.workflow_hash == workflow_hash)
    return await _deleted(tx, query.where(b.c.is_out_of_memory) if only_out_of_memory else query)


async def _deleted(tx: Tx, query: Delete) -> list[Pair]:
    rows = await tx.execute(query.returning(b.c.worker_id, b.c.workflow_hash))
    return [(row.worker_id, row.workflow_hash) for row in rows]


async def clear(tx: Tx, pairs: Sequence[Pair]) -> dict[Pair, datetime | None]:
    """Delete the failures of these pairs. Return the pairs that had any, with the end of their block."""
    rows = await tx.fetch(_clear, with_rows(_pair_rows(pairs)))
    return {(row.worker_id, row.workflow_hash): row.blocked_until for row in rows}


@cache
def _clear(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(b, *_PAIR))
    is_given = (b.c.worker_id == r.c.worker_id) & (b.c.workflow_hash == r.c.workflow_hash)
    query = delete(b).where(select(r.c.worker_id).where(is_given).exists())
    return query.returning(b.c.worker_id, b.c.workflow_hash, b.c.blocked_until)


async def clear_expired(tx: Tx, worker_ids: Sequence[str]) -> list[Pair]:
    """Delete expired blocks. A block ends exactly at its end time."""
    return await _deleted(tx, delete(b).where(b.c.worker_id.in_(worker_ids), b.c.blocked_until <= relay_now()))


async def of_hash(tx: Tx, workflow_hash: str) -> dict[str, datetime]:
    """Return the workers that are blocked for this workflow hash, with the end of each block."""
    query = select(b.c.worker_id, b.c.blocked_until).where(
        b.c.workflow_hash == workflow_hash, b.c.blocked_until > relay_now()
    )
    return {row.worker_id: row.blocked_until for row in await tx.execute(query)}
