"""Steps that must still cross from one database to the other. Rows are written with the change they tell of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Table, delete, func, insert, select

from comfyrelay.domain.messages import Message
from comfyrelay.store import central, tenant
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """Messages to one tenant pool, in the order in which they were said."""

    id: int
    db_pool: str
    messages: Sequence[Message]


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Jobs of one tenant pool that the queue has yet to hear of."""

    id: int
    job_ids: Sequence[str]


async def post(tx: Tx, db_pool: str, messages: Sequence[Message]) -> Letter:
    query = insert(central.outbox).values(
        db_pool=db_pool, messages=[each.to_json() for each in messages], created_at=relay_now()
    )
    id_ = (await tx.execute(query.returning(central.outbox.c.id))).scalar_one()
    return Letter(id=id_, db_pool=db_pool, messages=messages)


async def letters(
    tx: Tx, db_pool: str, *, limit: int, after_id: int = 0, older_than_seconds: float = 0
) -> list[Letter]:
    box = central.outbox
    query = (
        select(box.c.id, box.c.db_pool, box.c.messages)
        .where(box.c.db_pool == db_pool, box.c.id > after_id, box.c.created_at <= relay_now(-older_than_seconds))
        .order_by(box.c.id)
        .limit(limit)
    )
    return [
        Letter(id=row.id, db_pool=row.db_pool, messages=[Message.from_json(each) for each in row.messages])
        for row in await tx.execute(query)
    ]


async def submit(tx: Tx, job_ids: Sequence[str]) -> Submission:
    query = insert(tenant.outbox).values(job_ids=list(job_ids), created_at=relay_now())
    id_ = (await tx.execute(query.returning(tenant.outbox.c.id))).scalar_one()
    return Submission(id=id_, job_ids=job_ids)


async def submissions(tx: Tx, *, limit: int, older_than_seconds: float = 0) -> list[Submission]:
    box = tenant.outbox
    query = (
        select(box.c.id, box.c.job_ids)
        .where(box.c.created_at <= relay_now(-older_than_seconds))
        .order_by(box.c.id)
        .limit(limit)
    )
    return [Submission(id=row.id, job_ids=row.job_ids) for row in await tx.execute(query)]


async def remove_letters(tx: Tx, ids: Iterable[int]) -> None:
    await tx.execute(delete(central.outbox).where(central.outbox.c.id.in_(list(ids))))


async def remove_submissions(tx: Tx, ids: Iterable[int]) -> None:
    await tx.execute(delete(tenant.outbox).where(tenant.outbox.c.id.in_(list(ids))))


async def stuck(tx: Tx, box: Table, *, older_than_seconds: float, db_pool: str | None = None) -> int:
    """How many rows have waited in an outbox for longer than that."""
    query = select(func.count()).select_from(box).where(box.c.created_at <= relay_now(-older_than_seconds))
    if db_pool is not None:
        query = query.where(box.c.db_pool == db_pool)
    return int(await tx.scalar(query) or 0)
