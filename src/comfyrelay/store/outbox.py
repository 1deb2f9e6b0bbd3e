"""Outboxes: steps that still have to reach the other database, written in the same transaction as the change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, Select, Table, Text, bindparam, delete, func, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.operations import StuckStep
from comfyrelay.pacing import paced
from comfyrelay.store.central.tables.queue import outbox as central_outbox
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import ids_table, insert_rows, with_ids, with_rows
from comfyrelay.store.tenant.submissions import PendingSubmission
from comfyrelay.store.tenant.tables import outbox as tenant_outbox
from comfyrelay.store.types import json_value, relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxEntry:
    """Updates for one shard, in order."""

    id: int
    shard: str
    updates: Sequence[JobUpdate]


async def post(tx: Tx, updates: Mapping[str, Sequence[JobUpdate]]) -> list[OutboxEntry]:
    """Write one entry per shard with its updates."""
    if not updates:
        return []
    rows = [
        {"shard": shard, "updates": await tx.encoded_list(shard_updates)} for shard, shard_updates in updates.items()
    ]
    posted = await tx.fetch(_post, with_rows(rows))
    return [OutboxEntry(id=row.id, shard=row.shard, updates=updates[row.shard]) for row in posted]


@cache
def _post(dialect: str) -> Executable:
    query = insert_rows(dialect, central_outbox, "shard", "updates", created_at=relay_now())
    return query.returning(central_outbox.c.id, central_outbox.c.shard)


async def entries(tx: Tx, shard: str, *, limit: int) -> list[OutboxEntry]:
    return await _entries(tx, central_outbox.c.shard == shard, limit=limit)


async def entries_by_ids(tx: Tx, ids: Sequence[int]) -> list[OutboxEntry]:
    """Return the entries that still exist, in order."""
    return await _entries(tx, central_outbox.c.id.in_(ids), limit=len(ids))


async def _entries(tx: Tx, condition: ColumnElement[bool], *, limit: int) -> list[OutboxEntry]:
    box = central_outbox.c
    query = select(box.id, box.shard, box.updates).where(condition).order_by(box.id).limit(limit)
    return [
        # An action on a batch writes one entry with thousands of updates.
        OutboxEntry(
            id=row.id, shard=row.shard, updates=[JobUpdate.from_json(update) async for update in paced(row.updates)]
        )
        for row in (await tx.execute(query)).all()
    ]


async def entry_ids(tx: Tx, shard: str, *, limit: int, after_id: int = 0, older_than_seconds: float = 0) -> list[int]:
    parameters = {"shard": shard, "after_id": after_id, "age_seconds": -older_than_seconds, "limit": limit}
    return [row.id for row in await tx.fetch(_entry_ids, parameters)]


@cache
def _entry_ids(_dialect: str) -> Executable:
    query = _older(select(central_outbox.c.id), central_outbox)
    return query.where(central_outbox.c.shard == bindparam("shard", type_=Text()))


def _older(query: Select[Any], box: Table) -> Select[Any]:
    """Select old rows in order, up to a limit."""
    is_old = box.c.created_at <= relay_now(bindparam("age_seconds", type_=Float()))
    query = query.where(box.c.id > bindparam("after_id", type_=BigInteger()), is_old)
    return query.order_by(box.c.id).limit(bindparam("limit", type_=BigInteger()))


async def submissions(
    tx: Tx, *, limit: int, after_id: int = 0, older_than_seconds: float = 0
) -> list[PendingSubmission]:
    parameters = {"after_id": after_id, "age_seconds": -older_than_seconds, "limit": limit}
    rows = await tx.fetch(_submissions, parameters)
    return [PendingSubmission(id=row.id, job_ids=json_value(row.job_ids)) for row in rows]


@cache
def _submissions(_dialect: str) -> Executable:
    return _older(select(tenant_outbox.c.id, tenant_outbox.c.job_ids), tenant_outbox)


async def remove_entries(tx: Tx, ids: Iterable[int]) -> None:
    await tx.write(_remove_entries, with_ids(ids))


@cache
def _remove_entries(dialect: str) -> Executable:
    return delete(central_outbox).where(central_outbox.c.id.in_(select(ids_table(dialect).c.id)))


async def remove_submissions(tx: Tx, ids: Iterable[int]) -> None:
    await tx.write(_remove_submissions, with_ids(ids))


@cache
def _remove_submissions(dialect: str) -> Executable:
    return delete(tenant_outbox).where(tenant_outbox.c.id.in_(select(ids_table(dialect).c.id)))


async def stuck_entries(tx: Tx, *, older_than_seconds: float, limit: int) -> list[StuckStep]:
    """Return entries that a shard has not received for this long, oldest first."""
    return [
        StuckStep(
            id=row.id,
            direction="to_shard",
            shard=row.shard,
            job_ids=[JobUpdate.from_json(update).job_id for update in row.updates],
            created_at=row.created_at,
        )
        for row in await _stuck_rows(tx, central_outbox, older_than_seconds, limit)
    ]


async def stuck_submissions(tx: Tx, shard: str, *, older_than_seconds: float, limit: int) -> list[StuckStep]:
    """Return submissions of a shard that have not reached the queue for this long, oldest first."""
    return [
        StuckStep(id=row.id, direction="to_queue", shard=shard, job_ids=row.job_ids, created_at=row.created_at)
        for row in await _stuck_rows(tx, tenant_outbox, older_than_seconds, limit)
    ]


async def _stuck_rows(tx: Tx, box: Table, older_than_seconds: float, limit: int) -> Sequence[Any]:
    query = select(box).where(box.c.created_at <= relay_now(-older_than_seconds)).order_by(box.c.id).limit(limit)
    return (await tx.execute(query)).all()


async def count_stuck(tx: Tx, box: Table, *, older_than_seconds: float, shard: str | None = None) -> int:
    """Count the rows of an outbox that are older than `older_than_seconds`."""
    query = select(func.count()).select_from(box).where(box.c.created_at <= relay_now(-older_than_seconds))
    if shard is not None:
        query = query.where(box.c.shard == shard)
    return int(await tx.scalar(query) or 0)
