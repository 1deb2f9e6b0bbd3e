"""The history of leases. It makes repeated polls, completions and failures return the first response."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import Text, insert, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.lifecycle import Dispatch, Transition
from comfyrelay.domain.records.workers import LeaseAttempt
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.queue import dispatch_leases
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, ids_table, rows_table, with_ids, with_rows
from comfyrelay.store.types import relay_now

_BEGUN = ("lease_token", "dispatch_id", "epoch", "attempt", "worker_id", "request_id", "leased_at")
_ENDED = ("lease_token", "ended_at", "outcome", "ended_by", "reason", "status_after")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastLease:
    lease_token: str
    dispatch_id: int
    epoch: int
    worker_id: str
    request_id: str | None
    ended_at: datetime | None
    ended_by: str | None
    status_after: str | None


_ATTEMPT = [dispatch_leases.c[name] for name in LeaseAttempt.__dataclass_fields__]
_PAST = [dispatch_leases.c[name] for name in PastLease.__dataclass_fields__]


async def begin(tx: Tx, leased: Iterable[Dispatch]) -> None:
    rows = [
        {
            "lease_token": each.lease_token,
            "dispatch_id": each.id,
            "epoch": each.epoch,
            "attempt": each.attempts,
            "worker_id": each.worker_id,
            "request_id": each.lease_request_id,
            "leased_at": each.leased_at,
        }
        for each in leased
    ]
    await tx.write(_begin, with_rows(rows))


@cache
def _begin(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(dispatch_leases, *_BEGUN))
    return insert(dispatch_leases).from_select(_BEGUN, select(r))


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
    r = rows_table(dialect, columns_of(dispatch_leases, *_ENDED))
    values = {dispatch_leases.c[name]: r.c[name] for name in _ENDED if name != "lease_token"}
    return update(dispatch_leases).values(values).where(dispatch_leases.c.lease_token == r.c.lease_token)


async def by_token(tx: Tx, tokens: Iterable[str]) -> dict[str, PastLease]:
    result = await tx.fetch(_by_token, with_ids(tokens))
    return {row.lease_token: PastLease(**row._mapping) for row in result}


@cache
def _by_token(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(*_PAST).join(r, dispatch_leases.c.lease_token == r.c.id)


async def by_request(tx: Tx, requests: Iterable[tuple[str, str]]) -> dict[tuple[str, str], PastLease]:
    """Return the leases of these (worker, request id) pairs."""
    rows = [{"worker_id": worker, "request_id": request} for worker, request in requests]
    result = await tx.fetch(_by_request, with_rows(rows))
    return {(row.worker_id, row.request_id): PastLease(**row._mapping) for row in result}


@cache
def _by_request(dialect: str) -> Executable:
    leases = dispatch_leases
    r = rows_table(dialect, columns_of(leases, "worker_id", "request_id"))
    same = (leases.c.worker_id == r.c.worker_id) & (leases.c.request_id == r.c.request_id)
    return select(*_PAST).join(r, same).where(leases.c.request_id.is_not(None))


async def attempts_of(tx: Tx, dispatch_id: int, *, limit: int) -> list[LeaseAttempt]:
    """Return the attempts of a dispatch with worker and outcome, newest first."""
    query = select(*_ATTEMPT).where(dispatch_leases.c.dispatch_id == dispatch_id)
    newest = query.order_by(dispatch_leases.c.epoch.desc()).limit(limit)
    return [LeaseAttempt(**row._mapping) for row in await tx.execute(newest)]


async def dangling(tx: Tx, *, limit: int) -> list[str]:
    """Return open leases that are not the current lease of their dispatch."""
    query = (
        select(dispatch_leases.c.lease_token)
        .join(d, d.c.id == dispatch_leases.c.dispatch_id)
        .where(
            dispatch_leases.c.ended_at.is_(None),
            (d.c.lease_token.is_(None)) | (d.c.lease_token != dispatch_leases.c.lease_token),
        )
        .limit(limit)
    )
    return list((await tx.scalars(query)).all())


async def close_dangling(tx: Tx, tokens: Sequence[str]) -> None:
    query = update(dispatch_leases).where(dispatch_leases.c.lease_token.in_(tokens))
    await tx.execute(query.values(ended_at=relay_now(), ended_by="reconcile"))
