"""Outboxes: steps that must still cross from one database to the other, written together with their change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Float, Select, Table, Text, bindparam, delete, func, insert, select
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.operations import StuckStep
from comfyrelay.store.central import tables as central
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, ids_table, rows_table, with_ids, with_rows
from comfyrelay.store.tenant import tables as tenant
from comfyrelay.store.types import json_value, relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxEntry:
    """Updates for one shard, in order."""

    id: int
    shard: str
    updates: Sequence[JobUpdate]


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingSubmission:
    """Jobs of one shard that are not in the queue yet."""

    id: int
    job_ids: Sequence[str]


async def post(tx: Tx, updates: Mapping[str, Sequence[JobUpdate]]) -> list[OutboxEntry]:
    """Write one entry per shard with its updates."""
    if not updates:
        return []
    rows = [{"shard": shard, "updates": list(shard_updates)} for shard, shard_updates in updates.items()]
    posted = await tx.fetch(_post, with_rows(rows))
    return [OutboxEntry(id=row.id, shard=row.shard, updates=updates[row.shard]) for row in posted]


@cache
def _post(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(central.queue.outbox, "shard", "updates"))
    rows = select(r.c.shard, r.c.updates, relay_now())
    query = insert(central.queue.outbox).from_select(["shard", "updates", "created_at"], rows)
    return query.returning(central.queue.outbox.c.id, central.queue.outbox.c.shard)


async def entries(tx: Tx, shard: str, *, limit: int) -> list[OutboxEntry]:
    box = central.queue.outbox
    query = select(box.c.id, box.c.shard, box.c.updates).where(box.c.shard == shard).order_by(box.c.id).limit(limit)
    return [_entry(row) for row in await tx.execute(query)]


def _entry(row: Any) -> OutboxEntry:
    return OutboxEntry(id=row.id, shard=row.shard, updates=[JobUpdate.from_json(update) for update in row.updates])


async def entry_ids(tx: Tx, shard: str, *, limit: int, after_id: int = 0, older_than_seconds: float = 0) -> list[int]:
    after = {"after_id": after_id, "since": -older_than_seconds, "most": limit}
    return [row.id for row in await tx.fetch(_entry_ids, {"shard": shard, **after})]


@cache
def _entry_ids(_dialect: str) -> Executable:
    box = central.queue.outbox
    return _older(select(box.c.id), box).where(box.c.shard == bindparam("shard", type_=Text()))


def _older(query: Select[Any], box: Table) -> Select[Any]:
    """Select old rows in order, up to a limit."""
    is_due = box.c.created_at <= relay_now(bindparam("since", type_=Float()))
    query = query.where(box.c.id > bindparam("after_id", type_=BigInteger()), is_due)
    return query.order_by(box.c.id).limit(bindparam("most", type_=BigInteger()))


async def entries_by_ids(tx: Tx, ids: Sequence[int]) -> list[OutboxEntry]:
    """Return the entries that still exist, in order."""
    box = central.queue.outbox
    query = select(box.c.id, box.c.shard, box.c.updates).where(box.c.id.in_(ids)).order_by(box.c.id)
    return [_entry(row) for row in await tx.execute(query)]


async def submit(tx: Tx, job_ids: Sequence[str]) -> PendingSubmission:
    (row,) = await tx.fetch(_submit, with_rows([{"job_ids": list(job_ids)}]))
    return PendingSubmission(id=row.id, job_ids=job_ids)


@cache
def _submit(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(tenant.outbox, "job_ids"))
    query = insert(tenant.outbox).from_select(["job_ids", "created_at"], select(r.c.job_ids, relay_now()))
    return query.returning(tenant.outbox.c.id)


async def submissions(
    tx: Tx, *, limit: int, after_id: int = 0, older_than_seconds: float = 0
) -> list[PendingSubmission]:
    found = await tx.fetch(_submissions, {"after_id": after_id, "since": -older_than_seconds, "most": limit})
    return [PendingSubmission(id=row.id, job_ids=json_value(row.job_ids)) for row in found]


@cache
def _submissions(_dialect: str) -> Executable:
    return _older(select(tenant.outbox.c.id, tenant.outbox.c.job_ids), tenant.outbox)


async def remove_entries(tx: Tx, ids: Iterable[int]) -> None:
    await tx.write(_remove_entries, with_ids(ids))


@cache
def _remove_entries(dialect: str) -> Executable:
    r = ids_table(dialect)
    return delete(central.queue.outbox).where(central.queue.outbox.c.id.in_(select(r.c.id)))


async def remove_submissions(tx: Tx, ids: Iterable[int]) -> None:
    await tx.write(_remove_submissions, with_ids(ids))


@cache
def _remove_submissions(dialect: str) -> Executable:
    r = ids_table(dialect)
    return delete(tenant.outbox).where(tenant.outbox.c.id.in_(select(r.c.id)))


async def stuck_entries(tx: Tx, *, older_than_seconds: float, limit: int) -> list[StuckStep]:
    """Return entries that a shard has not received for this long, oldest first."""
    box = central.queue.outbox
    query = select(box.c.id, box.c.shard, box.c.updates, box.c.created_at)
    query = query.where(box.c.created_at <= relay_now(-older_than_seconds)).order_by(box.c.id).limit(limit)
    return [
        StuckStep(
            id=row.id,
            direction="to_shard",
            shard=row.shard,
            job_ids=[JobUpdate.from_json(update).job_id for update in row.updates],
            created_at=row.created_at,
        )
        for row in await tx.execute(query)
    ]


async def stuck_submissions(tx: Tx, shard: str, *, older_than_seconds: float, limit: int) -> list[StuckStep]:
    """Return submissions of a shard that have not reached the queue for this long, oldest first."""
    box = tenant.outbox
    query = select(box.c.id, box.c.job_ids, box.c.created_at)
    query = query.where(box.c.created_at <= relay_now(-older_than_seconds)).order_by(box.c.id).limit(limit)
    return [
        StuckStep(id=row.id, direction="to_queue", shard=shard, job_ids=row.job_ids, created_at=row.created_at)
        for row in await tx.execute(query)
    ]


async def stuck(tx: Tx, box: Table, *, older_than_seconds: float, shard: str | None = None) -> int:
    """Count the rows that have waited in an outbox for longer than this."""
    query = select(func.count()).select_from(box).where(box.c.created_at <= relay_now(-older_than_seconds))
    if shard is not None:
        query = query.where(box.c.shard == shard)
    return int(await tx.scalar(query) or 0)
