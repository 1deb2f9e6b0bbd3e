"""Samples of the service, one row per minute."""

from typing import Any

from sqlalchemy import BigInteger, Float, cast, delete, func, literal, select

from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.records.operations import ActivityCounts, IntervalAggregate, LoadSample
from comfyrelay.store.central.tables.operations import samples as s
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workers
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into
from comfyrelay.store.types import relay_now, sql_literal

_SUMS = ActivityCounts._fields


async def add(tx: Tx, minute: int, counted: ActivityCounts) -> None:
    """Add counts to a minute; other processes add to the same row."""
    query = insert_into(tx.dialect, s).values(minute=minute, **counted._asdict())
    sums = {name: s.c[name] + query.excluded[name] for name in _SUMS}
    await tx.execute(query.on_conflict_do_update(index_elements=["minute"], set_=sums))


async def note(tx: Tx, minute: int, standing: LoadSample) -> None:
    """Record the state in a minute, unless another process did."""
    query = insert_into(tx.dialect, s).values(minute=minute, **standing._asdict())
    seen = {name: func.coalesce(s.c[name], query.excluded[name]) for name in LoadSample._fields}
    await tx.execute(query.on_conflict_do_update(index_elements=["minute"], set_=seen))


async def is_noted(tx: Tx, minute: int) -> bool:
    query = select(s.c.minute).where(s.c.minute == minute, s.c.waiting.is_not(None))
    return await tx.exists(query)


async def standing(tx: Tx, *, stale_seconds: float) -> LoadSample:
    """Read the current state from the indexes of queued and leased dispatches, and from workers."""
    queued = d.c.status == sql_literal(DispatchStatus.QUEUED)
    waiting = select(func.count(), func.min(d.c.available_at), relay_now()).where(
        queued, d.c.available_at <= relay_now()
    )
    queue: Any = (await tx.execute(waiting)).one()
    count, oldest, now = queue
    runs = ~d.c.is_prefetch | d.c.progress.is_not(None)
    busy = await tx.scalar(select(func.count()).where(d.c.status == sql_literal(DispatchStatus.LEASED), runs))
    online = select(func.count(), func.coalesce(func.sum(workers.c.max_concurrency), 0)).where(
        workers.c.is_approved, workers.c.last_seen_at >= relay_now(-stale_seconds)
    )
    there: Any = (await tx.execute(online)).one()
    present, slots = there
    return LoadSample(
        waiting=count,
        oldest_wait_seconds=max(0.0, (now - oldest).total_seconds()) if oldest is not None else 0.0,
        busy=int(busy or 0),
        slots=int(slots),
        workers=int(present),
    )


async def since(tx: Tx, minute: int, *, minutes: int) -> list[IntervalAggregate]:
    """Aggregate samples from a minute on into intervals, oldest first. The number of an interval is its minute divided
    by its length."""
    # integer division in both databases
    number = s.c.minute.op("/")(literal(minutes, BigInteger()))
    means = [
        func.avg(cast(s.c[name], Float(53))).label(name) for name in ("waiting", "oldest_wait_seconds", "busy", "slots")
    ]
    sums = [func.sum(s.c[name]).label(name) for name in _SUMS]
    query = select(number.label("number"), *means, *sums).where(s.c.minute >= minute)
    rows = await tx.execute(query.group_by(number).order_by(number))
    return [IntervalAggregate(**{**row._mapping, **{name: _plain(row, name) for name in _SUMS}}) for row in rows]


def _plain(row: Any, name: str) -> int | float:
    value = row._mapping[name]
    return float(value) if name == "waited_seconds" else int(value)


async def total(tx: Tx, since_minute: int) -> ActivityCounts:
    sums = [func.coalesce(func.sum(s.c[name]), 0) for name in _SUMS]
    row: Any = (await tx.execute(select(*sums).where(s.c.minute >= since_minute))).one()
    begun, waited, done, failed, tokens = row
    return ActivityCounts(int(begun), float(waited), int(done), int(failed), int(tokens))


async def forget(tx: Tx, before_minute: int) -> None:
    await tx.execute(delete(s).where(s.c.minute < before_minute))
