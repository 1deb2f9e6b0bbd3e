"""Samples of the service, one row per minute."""

from typing import Any

from sqlalchemy import BigInteger, Float, cast, delete, func, literal, select

from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.domain.records.operations import ActivityCounts, IntervalAggregate, LoadSample, WaitingGroup
from comfyrelay.store.central.queue.dispatches import LEASED
from comfyrelay.store.central.queue.pauses import is_free
from comfyrelay.store.central.tables.operations import samples as s
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workers
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import insert_into
from comfyrelay.store.types import relay_now, sql_literal

_SUMS = ActivityCounts._fields


async def add(tx: Tx, minute: int, counted: ActivityCounts) -> None:
    """Add counts to a minute. Other processes add to the same row."""
    query = insert_into(tx.dialect, s).values(minute=minute, **counted._asdict())
    sums = {name: s.c[name] + query.excluded[name] for name in _SUMS}
    await tx.execute(query.on_conflict_do_update(index_elements=["minute"], set_=sums))


async def record_load(tx: Tx, minute: int, load: LoadSample) -> None:
    """Record the load in a minute, unless another process has already recorded it."""
    query = insert_into(tx.dialect, s).values(minute=minute, **load._asdict())
    first = {name: func.coalesce(s.c[name], query.excluded[name]) for name in LoadSample._fields}
    await tx.execute(query.on_conflict_do_update(index_elements=["minute"], set_=first))


async def has_load(tx: Tx, minute: int) -> bool:
    return await tx.exists(select(s.c.minute).where(s.c.minute == minute, s.c.waiting.is_not(None)))


async def waiting_jobs(tx: Tx) -> list[WaitingGroup]:
    """Read the queued jobs from their index, by the properties that decide which workers can run them."""
    is_waiting = (d.c.status == sql_literal(DispatchStatus.QUEUED)) & (d.c.available_at <= relay_now()) & is_free()
    columns = (d.c.stage, d.c.provider, d.c.workflow_id, d.c.workflow_hash)
    query = select(*columns, func.count(), func.min(d.c.available_at)).where(is_waiting).group_by(*columns)
    return list(map(WaitingGroup._make, await tx.execute(query)))


async def busy_slots(tx: Tx) -> int:
    is_started = ~d.c.is_prefetch | d.c.progress.is_not(None)
    return int(await tx.scalar(select(func.count()).where(LEASED, is_started)) or 0)


async def online_slots(tx: Tx, *, offline_seconds: float) -> tuple[int, int]:
    """Return the number of workers that can run jobs, and the number of their slots."""
    is_able = workers.c.is_approved & workers.c.unavailable_since.is_(None)
    is_online = is_able & (workers.c.last_seen_at >= relay_now(-offline_seconds))
    slots = func.coalesce(func.sum(workers.c.max_concurrency), 0)
    count, total = (await tx.execute(select(func.count(), slots).where(is_online))).one()
    return int(count), int(total)


async def aggregates_since(tx: Tx, minute: int, *, minutes: int) -> list[IntervalAggregate]:
    """Aggregate samples into intervals, starting at a minute, oldest first. The number of an interval is its minute
    divided by its length."""
    # Both databases use integer division.
    number = s.c.minute.op("/")(literal(minutes, BigInteger()))
    means = [
        func.avg(cast(s.c[name], Float(53))).label(name) for name in ("waiting", "oldest_wait_seconds", "busy", "slots")
    ]
    sums = [func.sum(s.c[name]).label(name) for name in _SUMS]
    query = select(number.label("number"), *means, *sums).where(s.c.minute >= minute)
    rows = await tx.execute(query.group_by(number).order_by(number))
    return [IntervalAggregate(**{**row._mapping, **_counts(row)._asdict()}) for row in rows]


async def total(tx: Tx, since_minute: int) -> ActivityCounts:
    sums = [func.coalesce(func.sum(s.c[name]), 0).label(name) for name in _SUMS]
    return _counts((await tx.execute(select(*sums).where(s.c.minute >= since_minute))).one())


def _counts(row: Any) -> ActivityCounts:
    counts = ActivityCounts(*(int(getattr(row, name)) for name in _SUMS))
    return counts._replace(waited_seconds=float(row.waited_seconds))


async def delete_old(tx: Tx, before_minute: int) -> None:
    await tx.execute(delete(s).where(s.c.minute < before_minute))
