"""Find dispatches that the reaper has to end or requeue."""

from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Float, Select, and_, bindparam, or_, select

from comfyrelay.domain.queue.dispatch import Dispatch
from comfyrelay.domain.queue.states import DispatchStatus
from comfyrelay.store.central.queue.dispatches import COLUMNS, LEASED, WAITING, from_row
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workers
from comfyrelay.store.database import Tx
from comfyrelay.store.types import relay_now, sql_literal

# Workers of the first protocol may run a job without a heartbeat.
MIN_HEARTBEAT_PROTOCOL = 2


class Work(NamedTuple):
    """The kinds of work for one pass of the reaper, and the time of the database."""

    now: datetime
    has_expired: bool
    has_silent: bool
    has_exhausted: bool
    has_out_of_memory: bool


async def work(tx: Tx, *, silence_seconds: float, out_of_memory_seconds: float) -> Work:
    """Check for all kinds of work in one statement, because usually there is none."""
    found = {"silence": -silence_seconds, "waited": -out_of_memory_seconds}
    [row] = await tx.fetch(work_query, found)
    return Work(*row)


@cache
def work_query(_dialect: str) -> Select[*tuple[Any, ...]]:
    kinds = {
        "has_expired": select(d.c.id).where(LEASED, d.c.lease_expires_at <= relay_now()),
        "has_silent": _silent(),
        "has_exhausted": _exhausted(),
        "has_out_of_memory": _out_of_memory(d.c.id),
    }
    return select(relay_now().label("now"), *(query.exists().label(name) for name, query in kinds.items()))


@cache
def expired_query() -> Select[int]:
    """Select leases that expired longer ago than the grace period, and expired leases with a cancel request.
    `lease_expires_at` is not indexed, so the query reads all leased rows."""
    is_over = d.c.lease_expires_at <= relay_now(bindparam("grace", type_=Float()))
    is_canceled = and_(d.c.lease_expires_at <= relay_now(), d.c.cancel_requested_at.is_not(None))
    return select(d.c.id).where(LEASED, or_(is_over, is_canceled)).limit(bindparam("limit", type_=BigInteger()))


async def expired(tx: Tx, *, grace_seconds: float, limit: int) -> list[int]:
    return await tx.scalars(expired_query(), {"grace": -grace_seconds, "limit": limit})


async def silent(tx: Tx, *, seconds: float, limit: int) -> list[int]:
    """Return the leases of workers that normally send heartbeats but have not been seen for a while."""
    return await tx.scalars(_silent().limit(limit), {"silence": -seconds})


async def exhausted(tx: Tx, *, limit: int) -> list[int]:
    """Return waiting dispatches without attempts left."""
    return await tx.scalars(_exhausted().limit(limit))


async def out_of_memory(tx: Tx, *, for_seconds: float, limit: int) -> list[Dispatch]:
    """Return dispatches that ran out of memory on a worker and have been ready to run on another one for this long."""
    query = _out_of_memory(*COLUMNS).order_by(d.c.id).limit(limit)
    return [from_row(row) for row in await tx.execute(query, {"waited": -for_seconds})]


def _silent() -> Select[int]:
    is_silent = workers.c.last_seen_at <= relay_now(bindparam("silence", type_=Float()))
    query = select(d.c.id).join(workers, workers.c.worker_id == d.c.worker_id)
    return query.where(LEASED, workers.c.protocol >= MIN_HEARTBEAT_PROTOCOL, is_silent)


def _exhausted() -> Select[int]:
    return select(d.c.id).where(WAITING, d.c.attempts >= d.c.max_attempts)


def _out_of_memory(*columns: Any) -> Select[Any]:
    return select(*columns).where(
        d.c.status == sql_literal(DispatchStatus.QUEUED),
        d.c.ran_out_on.is_not(None),
        d.c.available_at <= relay_now(bindparam("waited", type_=Float())),
    )
