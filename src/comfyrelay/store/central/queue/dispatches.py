"""Read, write and list dispatches. `claims.py` leases them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.lifecycle import UNLEASED, Dispatch, Transition
from comfyrelay.domain.queue.ordering import Place
from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus
from comfyrelay.domain.queue.wait_reasons import is_prefetched
from comfyrelay.domain.records.jobs import NewDispatch
from comfyrelay.store.central.tables.autoscaling import workflow_durations
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workers, workflow_blocks
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import MAX_SCANNED
from comfyrelay.store.row_parameters import as_rows, columns_of, ids_table, insert_into, rows_table, with_ids, with_rows
from comfyrelay.store.types import json_value, relay_now, sql_literal

_FIELDS = Dispatch._fields
COLUMNS = [d.c[name] for name in _FIELDS]

_LEASED = d.c.status == sql_literal(DispatchStatus.LEASED)
_WAITING = d.c.status.in_([sql_literal(DispatchStatus.QUEUED), sql_literal(DispatchStatus.PAUSED)])
_ENDED = d.c.status.in_([sql_literal(each) for each in sorted(TERMINAL_DISPATCH)])

# The columns that a transition may change. All others are set once.
_MOVED = (
    "status",
    "provider",
    "cost_micros",
    "expected_cost_micros",
    "priority",
    "attempts",
    "epoch",
    "version",
    "deferrals",
    "worker_id",
    "lease_token",
    "lease_request_id",
    "leased_at",
    "lease_expires_at",
    "is_prefetch",
    "cancel_requested_at",
    "pause_requested_at",
    "pause_mode",
    "release_requested_at",
    "available_at",
    "finished_at",
    "duration_seconds",
    "last_error",
    "ran_out_bytes",
)

_FINISH = ("status", "version", "finished_at", "duration_seconds", "last_error", "cost_micros")

_LEASE = (
    "attempts",
    "epoch",
    "version",
    "worker_id",
    "lease_token",
    "lease_request_id",
    "leased_at",
    "lease_expires_at",
    "is_prefetch",
)


_NEW = tuple(name for name in NewDispatch.__dataclass_fields__ if name != "available_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """One heartbeat of a worker for a dispatch."""

    dispatch_id: int
    lease_token: str
    worker_id: str | None = None
    progress: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BeatAnswer:
    dispatch_id: int
    lease_token: str
    worker_id: str
    epoch: int
    tenant_id: str
    tenant_job_id: str
    shard: str
    leased_at: datetime
    lease_expires_at: datetime
    cancel_requested_at: datetime | None
    pause_mode: str | None
    release_requested_at: datetime | None


_ANSWERED = [d.c[name] for name in BeatAnswer.__dataclass_fields__ if name != "dispatch_id"]


def from_row(row: Any) -> Dispatch:
    # A row begins with the columns of the dispatch in field order; other columns follow.
    return Dispatch._make(row[: len(_FIELDS)])


async def enqueue(tx: Tx, new: Sequence[NewDispatch]) -> int:
    """Insert the dispatches that do not exist yet, in this order; returns how many."""
    rows = [{**row, "n": n} for n, row in enumerate(as_rows(new, (*_NEW, "available_at")))]
    result = await tx.fetch(_enqueue, with_rows(rows))
    return len(result)


@cache
def _enqueue(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, *_NEW, "available_at") | {"n": BigInteger()})
    now = relay_now()
    values = [r.c[name] for name in _NEW]
    rows = select(
        *values,
        case((r.c.available_at > now, r.c.available_at), else_=now),
        now,
        _microseconds(dialect) + r.c.n,
    ).order_by(r.c.n)
    if dialect == "sqlite":
        # without a WHERE, SQLite parses the ON of ON CONFLICT as part of a join
        rows = rows.where(literal(1) == 1)
    names = [*_NEW, "available_at", "created_at", "rank"]
    return insert_into(dialect, d).from_select(names, rows).on_conflict_do_nothing().returning(d.c.id)


def _microseconds(dialect: str) -> ColumnElement[int]:
    """The queue clock as a rank: first in, first out."""
    if dialect == "postgresql":
        return cast(func.extract("epoch", relay_now()) * 1_000_000, BigInteger)
    seconds = cast(func.strftime("%s", relay_now()), BigInteger)
    return seconds * 1_000_000 + cast(func.substr(cast(relay_now(), Text), 21, 6), BigInteger)


async def lock(tx: Tx, which: "Condition | Collection[int]") -> tuple[dict[int, Dispatch], datetime]:
    """Lock dispatches by condition or ids, in order of id, and return them with the time."""
    if not isinstance(which, ColumnElement):
        return _with_time(await tx.fetch(_lock, with_ids(which)))
    query = select(*COLUMNS, relay_now().label("now")).where(which).order_by(d.c.id).with_for_update(of=d)
    return _with_time((await tx.execute(query)).all())


@cache
def _lock(dialect: str) -> Executable:
    r = ids_table(dialect)
    return select(*COLUMNS, relay_now().label("now")).join(r, d.c.id == r.c.id).order_by(d.c.id).with_for_update(of=d)


async def lock_reported(tx: Tx, ids: Iterable[int]) -> tuple[dict[int, Dispatch], datetime, bool]:
    """Like `lock`, and whether any of their workers has recorded failures, which is rare."""
    result = await tx.fetch(_lock_reported, with_ids(ids))
    return *_with_time(result), any(row.has_blocks for row in result)


@cache
def _lock_reported(dialect: str) -> Executable:
    r = ids_table(dialect)
    has_blocks = select(workflow_blocks.c.worker_id).where(workflow_blocks.c.worker_id == d.c.worker_id).exists()
    query = select(*COLUMNS, relay_now().label("now"), has_blocks.label("has_blocks"))
    return query.join(r, d.c.id == r.c.id).order_by(d.c.id).with_for_update(of=d)


def _with_time(rows: Sequence[Any]) -> tuple[dict[int, Dispatch], datetime]:
    # without a row, there is nothing to decide and the time is not needed
    now = rows[0].now if rows else datetime.min
    return {row[0]: from_row(row) for row in rows}, now


# A selection of dispatches. Created by the functions below, so that no SQL leaves this package.
Condition = ColumnElement[bool]


def of_job(tenant_id: str, job_id: str) -> ColumnElement[bool]:
    return and_(d.c.tenant_id == tenant_id, d.c.tenant_job_id == job_id)


def of_batch(tenant_id: str, batch_id: str) -> ColumnElement[bool]:
    return and_(d.c.tenant_id == tenant_id, d.c.batch_id == batch_id, ~_ENDED)


def among(tenant_id: str, job_ids: Iterable[str]) -> ColumnElement[bool]:
    return and_(d.c.tenant_id == tenant_id, d.c.tenant_job_id.in_(list(job_ids)), ~_ENDED)


def numbered(ids: Iterable[int]) -> ColumnElement[bool]:
    return d.c.id.in_(list(ids))


# The number of leases of the worker of a row.
LEASES = select(func.count()).where(d.c.worker_id == workers.c.worker_id, _LEASED).correlate(workers).scalar_subquery()


def leased_by(worker_id: str) -> ColumnElement[bool]:
    return and_(d.c.worker_id == worker_id, _LEASED)


async def write(tx: Tx, transitions: Iterable[Transition]) -> None:
    after = [transition.after for transition in transitions]
    if all(each.is_terminal for each in after):
        await tx.write(_write_finished, with_rows(as_rows(after, ("id", *_FINISH))))
    else:
        await tx.write(_write, with_rows(as_rows(after, ("id", *_MOVED))))


@cache
def _write_finished(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "id", *_FINISH))
    cleared = {name: null() if value is None else literal(value) for name, value in UNLEASED.items()}
    return update(d).values({**{name: r.c[name] for name in _FINISH}, **cleared}).where(d.c.id == r.c.id)


@cache
def _write(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "id", *_MOVED))
    return update(d).values({name: r.c[name] for name in _MOVED}).where(d.c.id == r.c.id)


async def write_leased(tx: Tx, leased: Iterable[Dispatch]) -> None:
    """Write the transitions of dispatches that were just leased."""
    await tx.write(_write_leased, with_rows(as_rows(leased, ("id", *_LEASE))))


@cache
def _write_leased(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "id", *_LEASE))
    # a new lease starts without progress and without having been skipped
    reset = {"progress": None, "passed_over_at": None, "status": sql_literal(DispatchStatus.LEASED)}
    return update(d).values({**{name: r.c[name] for name in _LEASE}, **reset}).where(d.c.id == r.c.id)


async def heartbeat(tx: Tx, beats: Sequence[Beat], *, ttl_seconds: float) -> list[BeatAnswer]:
    """Extend valid leases. Writes no indexed column, so that it is a HOT update."""
    rows = [
        {"id": b.dispatch_id, "lease_token": b.lease_token, "worker_id": b.worker_id, "progress": b.progress}
        for b in beats
    ]
    result = await tx.fetch(_heartbeat, {**with_rows(rows), "ttl": ttl_seconds})
    return [BeatAnswer(**row._mapping) for row in result]


@cache
def _heartbeat(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "id", "lease_token", "worker_id", "progress"))
    by_holder = or_(r.c.worker_id.is_(None), r.c.worker_id == d.c.worker_id)
    expires = relay_now(bindparam("ttl", type_=Float()))
    return (
        update(d)
        .values(lease_expires_at=expires, progress=func.coalesce(r.c.progress, d.c.progress))
        .where(d.c.id == r.c.id, d.c.lease_token == r.c.lease_token, by_holder, _LEASED)
        .returning(d.c.id.label("dispatch_id"), *_ANSWERED)
    )


@cache
def expired_query() -> Select[int]:
    """Leases past their end and grace, and canceled leases past their end. `lease_expires_at` is not indexed, so all
    leased rows are read."""
    is_over = d.c.lease_expires_at <= relay_now(bindparam("grace", type_=Float()))
    is_unwanted = and_(d.c.lease_expires_at <= relay_now(), d.c.cancel_requested_at.is_not(None))
    return select(d.c.id).where(_LEASED, or_(is_over, is_unwanted)).limit(bindparam("limit", type_=BigInteger()))


async def expired(tx: Tx, *, grace_seconds: float, limit: int) -> list[int]:
    return list((await tx.scalars(expired_query(), {"grace": -grace_seconds, "limit": limit})).all())


async def exhausted(tx: Tx, *, limit: int) -> list[int]:
    """Return waiting dispatches without attempts left."""
    query = select(d.c.id).where(_WAITING, d.c.attempts >= d.c.max_attempts)
    return list((await tx.scalars(query.limit(limit))).all())


async def recall_prefetched(tx: Tx, which: Condition) -> list[int]:
    """Request the release of prefetched dispatches that were not started."""
    query = (
        update(d)
        .values(release_requested_at=relay_now())
        .where(
            which,
            d.c.status == sql_literal(DispatchStatus.LEASED),
            d.c.is_prefetch,
            d.c.progress.is_(None),
            d.c.release_requested_at.is_(None),
        )
        .returning(d.c.id)
    )
    return list((await tx.scalars(query)).all())


async def of_lease(tx: Tx, dispatch_id: int, lease_token: str) -> Dispatch | None:
    """Return the dispatch if this is its current lease."""
    query = select(*COLUMNS).where(d.c.id == dispatch_id, d.c.lease_token == lease_token)
    row = (await tx.execute(query)).one_or_none()
    return from_row(row) if row else None


async def to_stop(tx: Tx, ids: Iterable[int]) -> list[int]:
    """Return the dispatches whose lease has ended or has a stop request."""
    query = select(d.c.id).where(
        d.c.id.in_(list(ids)),
        (d.c.status != sql_literal(DispatchStatus.LEASED))
        | d.c.cancel_requested_at.is_not(None)
        | d.c.pause_requested_at.is_not(None)
        | d.c.release_requested_at.is_not(None),
    )
    return list((await tx.scalars(query)).all())


async def by_job(tx: Tx, tenant_id: str, job_ids: Iterable[str]) -> dict[str, Dispatch]:
    return await of_jobs(tx, ((tenant_id, job_id_) for job_id_ in job_ids))


async def of_jobs(tx: Tx, jobs: Iterable[tuple[str, str]]) -> dict[str, Dispatch]:
    """Return the dispatches of (tenant, job) pairs by job."""
    rows = [{"tenant_id": tenant, "tenant_job_id": job} for tenant, job in jobs]
    result = await tx.fetch(_of_jobs, with_rows(rows))
    return {row.tenant_job_id: from_row(row) for row in result}


@cache
def _of_jobs(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "tenant_id", "tenant_job_id"))
    same = (d.c.tenant_id == r.c.tenant_id) & (d.c.tenant_job_id == r.c.tenant_job_id)
    return select(*COLUMNS).join(r, same)


async def known_jobs(tx: Tx, jobs: Iterable[tuple[str, str]]) -> set[str]:
    """Return the jobs among (tenant, job) pairs that have a dispatch."""
    rows = [{"tenant_id": tenant, "tenant_job_id": job} for tenant, job in jobs]
    return {row.tenant_job_id for row in await tx.fetch(_known_jobs, with_rows(rows))}


@cache
def _known_jobs(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "tenant_id", "tenant_job_id"))
    same = (d.c.tenant_id == r.c.tenant_id) & (d.c.tenant_job_id == r.c.tenant_job_id)
    return select(d.c.tenant_job_id).join(r, same)


async def progress_of(tx: Tx, jobs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the latest progress of running (tenant, job) pairs by job."""
    rows = [{"tenant_id": tenant, "tenant_job_id": job} for tenant, job in jobs]
    result = await tx.fetch(_progress_of, with_rows(rows))
    return {row.tenant_job_id: json_value(row.progress) for row in result}


@cache
def _progress_of(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "tenant_id", "tenant_job_id"))
    same = (d.c.tenant_id == r.c.tenant_id) & (d.c.tenant_job_id == r.c.tenant_job_id)
    return select(d.c.tenant_job_id, d.c.progress).join(r, same).where(_LEASED, d.c.progress.is_not(None))


class RunningDispatch(NamedTuple):
    """The state of a leased job."""

    progress: Mapping[str, Any] | None = None
    is_prefetch: bool = False
    cancel_requested_at: datetime | None = None

    @property
    def is_prefetched(self) -> bool:
        return is_prefetched(is_prefetch=self.is_prefetch, progress=self.progress)


NOT_RUNNING = RunningDispatch()


async def running_of(tx: Tx, tenant_id: str, jobs: Iterable[str]) -> dict[str, RunningDispatch]:
    """Return the leased jobs by job."""
    rows = [{"tenant_id": tenant_id, "tenant_job_id": job} for job in jobs]
    result = await tx.fetch(_running_of, with_rows(rows))
    return {
        row.tenant_job_id: RunningDispatch(json_value(row.progress), bool(row.is_prefetch), row.cancel_requested_at)
        for row in result
    }


@cache
def _running_of(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "tenant_id", "tenant_job_id"))
    same = (d.c.tenant_id == r.c.tenant_id) & (d.c.tenant_job_id == r.c.tenant_job_id)
    return (
        select(d.c.tenant_job_id, d.c.progress, d.c.is_prefetch, d.c.cancel_requested_at).join(r, same).where(_LEASED)
    )


async def places(tx: Tx, tenant_id: str, priority: int) -> list[Place]:
    """Lock and return a tenant's waiting dispatches of one priority, in queue order."""
    query = (
        select(d.c.id, d.c.rank, d.c.batch_id, d.c.tenant_job_id)
        .where(d.c.tenant_id == tenant_id, d.c.priority == priority, _WAITING)
        .order_by(d.c.id)
        .with_for_update()
    )
    rows = sorted((await tx.execute(query)).all(), key=lambda row: (row.rank, row.id))
    return [Place(id=r.id, rank=r.rank, group=r.batch_id or r.tenant_job_id) for r in rows]


async def waiting_of_batch(tx: Tx, tenant_id: str, batch_id: str) -> dict[int, int]:
    """Return the waiting dispatches of a batch with their priorities."""
    query = select(d.c.id, d.c.priority).where(of_batch(tenant_id, batch_id), _WAITING)
    return {row.id: row.priority for row in await tx.execute(query)}


async def has_completed(tx: Tx, tenant_id: str, batch_id: str, *, workflow_hash: str) -> bool:
    """Whether an item of the batch with this hash has completed."""
    query = select(d.c.id).where(
        d.c.tenant_id == tenant_id,
        d.c.batch_id == batch_id,
        d.c.workflow_hash == workflow_hash,
        d.c.status == sql_literal(DispatchStatus.COMPLETED),
    )
    return (await tx.execute(query.limit(1))).first() is not None


async def write_ranks(tx: Tx, ranks: Mapping[int, int]) -> None:
    rows = [{"id": id_, "rank": rank} for id_, rank in ranks.items()]
    await tx.write(_write_ranks, with_rows(rows))


@cache
def _write_ranks(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "id", "rank"))
    return update(d).values(rank=r.c.rank).where(d.c.id == r.c.id)


async def active_page(tx: Tx, *, after_id: int, limit: int) -> list[Dispatch]:
    """Return unfinished dispatches in order of id, for the reconciler."""
    active = ~_ENDED
    query = select(*COLUMNS).where(d.c.id > after_id, active).order_by(d.c.id).limit(limit)
    return [from_row(row) for row in await tx.execute(query)]


async def ahead_of(tx: Tx, dispatch: Dispatch, workflow_ids: Sequence[int]) -> int:
    """Count the queued dispatches of these workflows ahead of this one."""
    before = or_(
        d.c.priority > dispatch.priority,
        and_(d.c.priority == dispatch.priority, d.c.rank < dispatch.rank),
        and_(d.c.priority == dispatch.priority, d.c.rank == dispatch.rank, d.c.id < dispatch.id),
    )
    query = select(func.count()).where(
        d.c.status == sql_literal(DispatchStatus.QUEUED),
        d.c.stage == dispatch.stage,
        d.c.provider == dispatch.provider,
        d.c.workflow_id.in_(workflow_ids) if workflow_ids else false(),
        d.c.available_at <= relay_now(),
        before,
    )
    return int(await tx.scalar(query) or 0)


async def ahead_of_each(
    tx: Tx, ids: Collection[int], *, stage: str, provider: str, workflow_ids: Sequence[int]
) -> dict[int, int]:
    """Count the queued dispatches of these workflows ahead of each of these; 0 for those that cannot run yet."""
    place = func.row_number().over(order_by=(d.c.priority.desc(), d.c.rank, d.c.id)).label("place")
    line = (
        select(d.c.id, place)
        .where(
            d.c.status == sql_literal(DispatchStatus.QUEUED),
            d.c.stage == stage,
            d.c.provider == provider,
            d.c.workflow_id.in_(workflow_ids) if workflow_ids else false(),
            d.c.available_at <= relay_now(),
        )
        .subquery()
    )
    found = await tx.execute(select(line.c.id, line.c.place).where(line.c.id.in_(ids)))
    return {row.id: row.place - 1 for row in found}


async def mean_duration(tx: Tx, workflow_ids: Sequence[int], *, of_last: int = 50) -> float | None:
    """Return the mean duration of the newest completed dispatches of these workflows, or the learned durations if there
    are no recent ones."""
    value = await tx.scalar(mean_duration_query(workflow_ids, of_last=of_last))
    if value is None:
        learnt = workflow_durations.c
        of_all = select(func.avg(learnt.mean_seconds)).where(
            learnt.workflow_id.in_(workflow_ids), learnt.effect_id == 0
        )
        value = await tx.scalar(of_all)
    return float(value) if value is not None else None


def mean_duration_query(workflow_ids: Sequence[int], *, of_last: int) -> Select[Any]:
    """Limited, because completed dispatches have no index by workflow. For one that never ran, all would be read."""
    names = ("id", "status", "workflow_id", "duration_seconds")
    seen = select(*(d.c[name] for name in names)).order_by(d.c.id.desc()).limit(MAX_SCANNED).subquery("seen")
    newest = (
        select(seen.c.duration_seconds)
        .where(seen.c.status == sql_literal(DispatchStatus.COMPLETED), seen.c.workflow_id.in_(workflow_ids))
        .order_by(seen.c.id.desc())
        .limit(of_last)
        .subquery()
    )
    return select(func.avg(newest.c.duration_seconds))


async def now(tx: Tx) -> datetime:
    [row] = await tx.fetch(_now, {})
    found: datetime = row.now
    return found


@cache
def _now(_dialect: str) -> Executable:
    return select(relay_now().label("now"))
