"""The history of leases, so that repeated polls, completions and failures get the first response."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.records.workers import LeaseAttempt
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases as leases
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import (
    insert_rows,
    select_by_ids,
    select_by_rows,
    update_rows,
    with_ids,
    with_rows,
)
from comfyrelay.store.types import relay_now

_BEGIN_COLUMNS = ("lease_token", "dispatch_id", "epoch", "attempt", "worker_id", "request_id", "leased_at")
_END_COLUMNS = ("ended_at", "outcome", "ended_by", "reason", "status_after")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastLease:
    lease_token: str
    dispatch_id: int
    epoch: int
    worker_id: str
    request_id: str | None
    leased_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    status_after: str | None


_ATTEMPT = [leases.c[name] for name in LeaseAttempt.__dataclass_fields__]
_PAST = [leases.c[name] for name in PastLease.__dataclass_fields__]


async def begin(tx: Tx, leased: Iterable[Dispatch]) -> None:
    rows = [
        {
            "lease_token": dispatch.lease_token,
            "dispatch_id": dispatch.id,
            "epoch": dispatch.epoch,
            "attempt": dispatch.attempts,
            "worker_id": dispatch.worker_id,
            "request_id": dispatch.lease_request_id,
            "leased_at": dispatch.leased_at,
        }
        for dispatch in leased
    ]
    await tx.write(_begin, with_rows(rows))


@cache
def _begin(dialect: str) -> Executable:
    return insert_rows(dialect, leases, *_BEGIN_COLUMNS)


async def end(tx: Tx, transitions: Sequence[tuple[Transition, str]], *, at: datetime) -> None:
    """Record how leases ended."""
    rows = [
        {
            "lease_token": transition.before.lease_token,
            "ended_at": at,
            "outcome": transition.lease_outcome,
            "ended_by": by,
            "reason": transition.reason,
            "status_after": transition.after.status,
        }
        for transition, by in transitions
        if transition.lease_outcome is not None and transition.before.lease_token is not None
    ]
    if rows:
        await tx.write(_end, with_rows(rows))


@cache
def _end(dialect: str) -> Executable:
    return update_rows(dialect, leases, "lease_token", *_END_COLUMNS)


async def reopen(tx: Tx, token: str) -> None:
    """Remove the end of a lease that its worker got back."""
    await tx.execute(update(leases).where(leases.c.lease_token == token).values(dict.fromkeys(_END_COLUMNS)))


async def by_token(tx: Tx, tokens: Iterable[str]) -> dict[str, PastLease]:
    return {row.lease_token: PastLease(**row._mapping) for row in await tx.fetch(_by_token, with_ids(tokens))}


@cache
def _by_token(dialect: str) -> Executable:
    return select_by_ids(dialect, leases.c.lease_token, *_PAST)


async def by_request(tx: Tx, requests: Iterable[tuple[str, str]]) -> dict[tuple[str, str], PastLease]:
    """Return the leases of these (worker, request id) pairs."""
    rows = with_rows({"worker_id": worker, "request_id": request} for worker, request in requests)
    return {(row.worker_id, row.request_id): PastLease(**row._mapping) for row in await tx.fetch(_by_request, rows)}


@cache
def _by_request(dialect: str) -> Executable:
    query = select_by_rows(dialect, leases, ("worker_id", "request_id"), *_PAST)
    return query.where(leases.c.request_id.is_not(None))


async def attempts_of(tx: Tx, dispatch_id: int, *, limit: int) -> list[LeaseAttempt]:
    """Return the attempts of a dispatch with worker and outcome, newest first."""
    query = select(*_ATTEMPT).where(leases.c.dispatch_id == dispatch_id).order_by(leases.c.epoch.desc()).limit(limit)
    return await tx.all(LeaseAttempt, query)


async def dangling(tx: Tx, *, limit: int) -> list[str]:
    """Return open leases that are not the current lease of their dispatch."""
    is_current = d.c.lease_token.is_not(None) & (d.c.lease_token == leases.c.lease_token)
    query = select(leases.c.lease_token).join(d, d.c.id == leases.c.dispatch_id)
    return await tx.scalars(query.where(leases.c.ended_at.is_(None), ~is_current).limit(limit))


async def close_dangling(tx: Tx, tokens: Sequence[str]) -> None:
    query = update(leases).where(leases.c.lease_token.in_(tokens))
    await tx.execute(query.values(ended_at=relay_now(), ended_by="reconcile"))
