"""Read and write dispatches. `claims.py` leases them."""

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
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.lifecycle import UNLEASED
from comfyrelay.domain.queue.states import TERMINAL_DISPATCH, DispatchStatus
from comfyrelay.domain.queue.wait_reasons import is_prefetched
from comfyrelay.domain.records.jobs import NewDispatch
from comfyrelay.pacing import paced
from comfyrelay.store.central.queue.progress import PROGRESS_COLUMNS, last_processing_time, progress_in
from comfyrelay.store.central.tables.catalogue import workflows
from comfyrelay.store.central.tables.queue import ai_job_dispatches as d
from comfyrelay.store.central.tables.workers import workers, workflow_blocks
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import (
    as_rows,
    columns_of,
    insert_selected,
    rows_table,
    select_by_ids,
    select_by_rows,
    update_rows,
    with_ids,
    with_rows,
)
from comfyrelay.store.types import relay_now, sql_literal

# Number of items of a batch that are read to find its last failures. Some may be canceled, or have another hash.
MAX_ENDED_READ = 100
_FIELDS = Dispatch._fields
COLUMNS = [d.c[name] for name in _FIELDS]

LEASED = d.c.status == sql_literal(DispatchStatus.LEASED)
WAITING = d.c.status.in_([sql_literal(DispatchStatus.QUEUED), sql_literal(DispatchStatus.PAUSED)])
_FINISHED = d.c.status.in_([sql_literal(status) for status in sorted(TERMINAL_DISPATCH)])
# The number of a worker's leases, for queries over workers.
LEASES = select(func.count()).where(d.c.worker_id == workers.c.worker_id, LEASED).correlate(workers).scalar_subquery()

# The columns that a transition may change. All other columns are set once.
_TRANSITION_COLUMNS = (
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
    "ran_out_on",
    "resumed_at",
)

_FINISH_COLUMNS = ("status", "version", "finished_at", "duration_seconds", "last_error", "cost_micros")

_LEASE_COLUMNS = (
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
_PRICES = ("self_hosted_micros_per_second", "cloud_micros_per_second")
_JOB = ("tenant_id", "tenant_job_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchHeartbeat:
    """A heartbeat of a worker for one of its dispatches."""

    dispatch_id: int
    lease_token: str
    worker_id: str | None = None
    progress: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtendedLease:
    """A lease that a heartbeat has extended, with the requests for its worker."""

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


_EXTENDED = [d.c[name] for name in ExtendedLease.__dataclass_fields__ if name != "dispatch_id"]


def from_row(row: Any) -> Dispatch:
    # A row begins with the columns of the dispatch in field order. Other columns follow.
    return Dispatch._make(row[: len(_FIELDS)])


class Enqueued(NamedTuple):
    job_id: str
    may_burst: bool


async def enqueue(tx: Tx, new: Sequence[NewDispatch]) -> list[Enqueued]:
    """Insert the dispatches that do not exist yet and whose workflow exists, in this order. Return the inserted ones.

    The workflows are locked against deletion until the transaction ends.
    """
    rows = ({**row, "n": n} for n, row in enumerate(as_rows(new, (*_NEW, "available_at"))))
    return [Enqueued(job_id, bool(may_burst)) for job_id, may_burst in await tx.fetch(_enqueue, with_rows(rows))]


@cache
def _enqueue(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, *_NEW, "available_at") | {"n": BigInteger()})
    ids = rows_table(dialect, columns_of(d, "workflow_id"), alias="w")
    present = select(workflows.c.id, *(workflows.c[name] for name in _PRICES))
    present = present.where(workflows.c.id.in_(select(ids.c.workflow_id)), workflows.c.deleted_at.is_(None))
    present = present.order_by(workflows.c.id).with_for_update(of=workflows, read=True, key_share=True)
    known = present.cte("known")
    now = relay_now()
    available_at = case((r.c.available_at > now, r.c.available_at), else_=now)
    computed = [available_at, now, _microseconds(dialect) + r.c.n, *(known.c[name] for name in _PRICES)]
    rows = select(*(r.c[name] for name in _NEW), *computed)
    rows = rows.join(known, known.c.id == r.c.workflow_id).order_by(r.c.n)
    query = insert_selected(dialect, d, [*_NEW, "available_at", "created_at", "rank", *_PRICES], rows)
    # SQLAlchemy would select from the dispatches a second time, and SQLite does not know their name here.
    workflow_id: ColumnElement[int] = literal_column("workflow_id" if dialect == "sqlite" else f"{d.name}.workflow_id")
    may_burst = select(workflows.c.may_burst).where(workflows.c.id == workflow_id).scalar_subquery()
    return query.on_conflict_do_nothing().returning(d.c.tenant_job_id, may_burst)


def _microseconds(dialect: str) -> ColumnElement[int]:
    """Return the database time as a rank: first in, first out."""
    if dialect == "postgresql":
        return cast(func.extract("epoch", relay_now()) * 1_000_000, BigInteger)
    seconds = cast(func.strftime("%s", relay_now()), BigInteger)
    return seconds * 1_000_000 + cast(func.substr(cast(relay_now(), Text), 21, 6), BigInteger)


async def lock(tx: Tx, which: "Condition | Collection[int]") -> tuple[dict[int, Dispatch], datetime]:
    """Lock dispatches by condition or ids, in order of id, and return them with the time."""
    if not isinstance(which, ColumnElement):
        return await _with_time(await tx.fetch(_lock, with_ids(which)))
    query = select(*COLUMNS, relay_now().label("now")).where(which).order_by(d.c.id).with_for_update(of=d)
    return await _with_time([row async for row in paced(await tx.execute(query))])


@cache
def _lock(dialect: str) -> Executable:
    query = select_by_ids(dialect, d.c.id, *COLUMNS, relay_now().label("now"))
    return query.order_by(d.c.id).with_for_update(of=d)


async def lock_reported(tx: Tx, ids: Iterable[int]) -> tuple[dict[int, Dispatch], datetime, bool]:
    """Lock dispatches like `lock`. Also return whether any of their workers has recorded failures, which is rare."""
    rows = await tx.fetch(_lock_reported, with_ids(ids))
    return *await _with_time(rows), any(row.has_blocks for row in rows)


@cache
def _lock_reported(dialect: str) -> Executable:
    has_blocks = select(workflow_blocks.c.worker_id).where(workflow_blocks.c.worker_id == d.c.worker_id).exists()
    query = select_by_ids(dialect, d.c.id, *COLUMNS, relay_now().label("now"), has_blocks.label("has_blocks"))
    return query.order_by(d.c.id).with_for_update(of=d)


async def _with_time(rows: Sequence[Any]) -> tuple[dict[int, Dispatch], datetime]:
    # Without rows, there is nothing to decide, and the time is not needed.
    now = rows[0].now if rows else datetime.min
    return {row[0]: from_row(row) async for row in paced(rows)}, now


# A selection of dispatches. The functions below create it, so that no SQL leaves this package.
Condition = ColumnElement[bool]


def of_job(tenant_id: str, job_id: str) -> Condition:
    return and_(d.c.tenant_id == tenant_id, d.c.tenant_job_id == job_id)


def of_batch(tenant_id: str, batch_id: str) -> Condition:
    return and_(d.c.tenant_id == tenant_id, d.c.batch_id == batch_id, ~_FINISHED)


def of_unfinished_jobs(tenant_id: str, job_ids: Iterable[str]) -> Condition:
    return and_(d.c.tenant_id == tenant_id, d.c.tenant_job_id.in_(list(job_ids)), ~_FINISHED)


def by_ids(ids: Iterable[int]) -> Condition:
    return d.c.id.in_(list(ids))


def leased_by(worker_id: str) -> Condition:
    return and_(d.c.worker_id == worker_id, LEASED)


async def write(tx: Tx, transitions: Iterable[Transition]) -> None:
    after = [transition.after for transition in transitions]
    if all(dispatch.is_terminal for dispatch in after):
        await tx.write(_write_finished, with_rows(as_rows(after, ("id", *_FINISH_COLUMNS))))
    else:
        await tx.write(_write, with_rows(as_rows(after, ("id", *_TRANSITION_COLUMNS))))


@cache
def _write_finished(dialect: str) -> Executable:
    cleared = {name: null() if value is None else literal(value) for name, value in UNLEASED.items()}
    return update_rows(dialect, d, "id", *_FINISH_COLUMNS, **cleared)


@cache
def _write(dialect: str) -> Executable:
    return update_rows(dialect, d, "id", *_TRANSITION_COLUMNS)


async def write_leased(tx: Tx, leased: Iterable[Dispatch]) -> None:
    """Write the transitions of dispatches that were just leased."""
    await tx.write(_write_leased, with_rows(as_rows(leased, ("id", *_LEASE_COLUMNS))))


@cache
def _write_leased(dialect: str) -> Executable:
    # A new lease starts without progress and without having been skipped.
    reset = {"progress": None, "passed_over_at": None, "status": sql_literal(DispatchStatus.LEASED)}
    return update_rows(dialect, d, "id", *_LEASE_COLUMNS, expected_seconds=last_processing_time(), **reset)


async def heartbeat(tx: Tx, heartbeats: Sequence[DispatchHeartbeat], *, ttl_seconds: float) -> list[ExtendedLease]:
    """Extend valid leases. The statement writes no indexed column, so that it is a HOT update."""
    rows = [
        {
            "id": beat.dispatch_id,
            "lease_token": beat.lease_token,
            "worker_id": beat.worker_id,
            "progress": beat.progress,
        }
        for beat in heartbeats
    ]
    extended = await tx.fetch(_heartbeat, {**with_rows(rows), "ttl": ttl_seconds})
    return [ExtendedLease(**row._mapping) for row in extended]


@cache
def _heartbeat(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(d, "id", "lease_token", "worker_id", "progress"))
    by_holder = or_(r.c.worker_id.is_(None), r.c.worker_id == d.c.worker_id)
    expires = relay_now(bindparam("ttl", type_=Float()))
    return (
        update(d)
        .values(lease_expires_at=expires, progress=func.coalesce(r.c.progress, d.c.progress))
        .where(d.c.id == r.c.id, d.c.lease_token == r.c.lease_token, by_holder, LEASED)
        .returning(d.c.id.label("dispatch_id"), *_EXTENDED)
    )


async def recall_prefetched(tx: Tx, which: Condition) -> list[int]:
    """Request the release of prefetched dispatches that were not started."""
    is_unstarted = and_(LEASED, d.c.is_prefetch, d.c.progress.is_(None), d.c.release_requested_at.is_(None))
    query = update(d).values(release_requested_at=relay_now()).where(which, is_unstarted)
    return await tx.scalars(query.returning(d.c.id))


async def of_lease(tx: Tx, dispatch_id: int, lease_token: str) -> Dispatch | None:
    """Return the dispatch if this is its current lease."""
    query = select(*COLUMNS).where(d.c.id == dispatch_id, d.c.lease_token == lease_token)
    row = (await tx.execute(query)).one_or_none()
    return from_row(row) if row else None


async def to_stop(tx: Tx, ids: Iterable[int]) -> list[int]:
    """Return the dispatches whose lease has ended or has a stop request."""
    is_stopped = or_(
        d.c.status != sql_literal(DispatchStatus.LEASED),
        d.c.cancel_requested_at.is_not(None),
        d.c.pause_requested_at.is_not(None),
        d.c.release_requested_at.is_not(None),
    )
    return await tx.scalars(select(d.c.id).where(d.c.id.in_(list(ids)), is_stopped))


async def by_job(tx: Tx, tenant_id: str, job_ids: Iterable[str]) -> dict[str, Dispatch]:
    return await of_jobs(tx, ((tenant_id, job_id) for job_id in job_ids))


async def of_jobs(tx: Tx, jobs: Iterable[tuple[str, str]]) -> dict[str, Dispatch]:
    """Return the dispatches of (tenant, job) pairs by job."""
    return {row.tenant_job_id: from_row(row) for row in await tx.fetch(_of_jobs, _with_jobs(jobs))}


def _with_jobs(jobs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return with_rows(dict(zip(_JOB, job, strict=True)) for job in jobs)


@cache
def _of_jobs(dialect: str) -> Executable:
    return select_by_rows(dialect, d, _JOB, *COLUMNS)


async def known_jobs(tx: Tx, jobs: Iterable[tuple[str, str]]) -> set[str]:
    """Return the jobs among (tenant, job) pairs that have a dispatch."""
    return {row.tenant_job_id for row in await tx.fetch(_known_jobs, _with_jobs(jobs))}


@cache
def _known_jobs(dialect: str) -> Executable:
    return select_by_rows(dialect, d, _JOB, d.c.tenant_job_id)


async def progress_of(tx: Tx, jobs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the latest progress by job. The jobs are given as (tenant, job) pairs; only running jobs have progress."""
    found = {row.tenant_job_id: progress_in(row) for row in await tx.fetch(_progress_of, _with_jobs(jobs))}
    return {job_id: progress for job_id, progress in found.items() if progress is not None}


@cache
def _progress_of(dialect: str) -> Executable:
    return select_by_rows(dialect, d, _JOB, d.c.tenant_job_id, *PROGRESS_COLUMNS).where(LEASED)


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
    return {
        row.tenant_job_id: RunningDispatch(progress_in(row), bool(row.is_prefetch), row.cancel_requested_at)
        for row in await tx.fetch(_running_of, _with_jobs((tenant_id, job) for job in jobs))
    }


@cache
def _running_of(dialect: str) -> Executable:
    return select_by_rows(dialect, d, _JOB, d.c.tenant_job_id, d.c.cancel_requested_at, *PROGRESS_COLUMNS).where(LEASED)


async def has_completed(tx: Tx, tenant_id: str, batch_id: str, *, workflow_hash: str) -> bool:
    """Return whether an item of the batch with this hash has completed."""
    query = select(d.c.id).where(
        d.c.tenant_id == tenant_id,
        d.c.batch_id == batch_id,
        d.c.workflow_hash == workflow_hash,
        d.c.status == sql_literal(DispatchStatus.COMPLETED),
    )
    return await tx.exists(query.limit(1))


class EndedItem(NamedTuple):
    """An item of a batch that completed, without an error, or failed."""

    job_id: str
    error: str | None


async def last_ended(tx: Tx, failed: Dispatch, *, limit: int) -> list[EndedItem]:
    """Return the items of the batch with the same hash that ended last, newest first.

    Items that ended before this one was queued or resumed are left out: the user may have fixed their cause.
    """
    rows = await tx.execute(last_ended_query(failed, limit=limit))
    return [EndedItem(*row) for row in rows]


def last_ended_query(failed: Dispatch, *, limit: int) -> Select[Any]:
    since = failed.resumed_at or failed.created_at
    # The inner query only has conditions of the index. Ids of batches are unique across tenants.
    newest = select(d).where(d.c.batch_id == failed.batch_id, d.c.finished_at >= since)
    e = newest.order_by(d.c.finished_at.desc(), d.c.id.desc()).limit(MAX_ENDED_READ).subquery().c
    is_failed = e.status == sql_literal(DispatchStatus.FAILED)
    query = select(e.tenant_job_id, case((is_failed, e.last_error))).where(
        e.tenant_id == failed.tenant_id,
        e.workflow_hash == failed.workflow_hash,
        or_(is_failed, e.status == sql_literal(DispatchStatus.COMPLETED)),
    )
    return query.order_by(e.finished_at.desc(), e.id.desc()).limit(limit)


async def active_page(tx: Tx, *, after_id: int, limit: int) -> list[Dispatch]:
    """Return unfinished dispatches in order of id, for the reconciler."""
    query = select(*COLUMNS).where(d.c.id > after_id, ~_FINISHED).order_by(d.c.id).limit(limit)
    return [from_row(row) for row in await tx.execute(query)]
