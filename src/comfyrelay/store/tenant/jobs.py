"""Jobs of a shard: create, read, and apply updates of the queue."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    Text,
    bindparam,
    column,
    distinct,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.settlement import Attempt, Event, JobState, Settled
from comfyrelay.domain.queue.states import ACTIVE_JOB, JobStatus, TransactionType, VideoStatus
from comfyrelay.domain.queue.wait_reasons import CompletedItem
from comfyrelay.domain.records.jobs import JobRecord, NewJobRecord
from comfyrelay.errors import Conflict
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import as_rows, columns_of, ids_table, insert_into, rows_table, with_ids, with_rows
from comfyrelay.store.tenant import changes
from comfyrelay.store.tenant.tables import (
    ai_jobs,
    batches,
    files,
    job_attempts,
    job_events,
    job_logs,
    token_transactions,
    videos,
)
from comfyrelay.store.types import json_value, relay_now, sql_literal

# The newest jobs whose input values are searched.
MAX_SEARCHED = 20_000

_JOB = [ai_jobs.c[name] for name in JobRecord.__dataclass_fields__]
_STATE = [ai_jobs.c[name] for name in JobState._fields]
_NEW = tuple(name for name in NewJobRecord.__dataclass_fields__ if name != "delay_seconds")
_SETTLED = (
    "status",
    "priority",
    "attempts",
    "dispatch_version",
    "event_seq",
    "started_at",
    "completed_at",
    "output_file_id",
    "provider_job_id",
    "error_message",
    "error_detail",
    "cost_micros",
    "expected_cost_micros",
)
_ATTEMPT = tuple(Attempt.__dataclass_fields__)
_EVENT = ("job_id", "seq", "tenant_id", "type", "data")


async def create(tx: Tx, new: Sequence[NewJobRecord]) -> list[JobRecord]:
    """Insert the jobs in this order, each with its `queued` event."""
    rows = [{name: getattr(job, name) for name in (*_NEW, "delay_seconds")} for job in new]
    try:
        result = await tx.fetch(_create, with_rows(rows))
    except (IntegrityError, asyncpg.ForeignKeyViolationError) as error:
        if "foreign key" not in str(error).lower():
            raise
        raise Conflict("A file or video of this request was just deleted.") from error
    made = {row.id: JobRecord(**row._mapping) for row in result}
    first = [{"job_id": each.id, "seq": 1, "tenant_id": each.tenant_id, "type": "job:queued"} for each in new]
    for row in first:
        row["data"] = {"status": JobStatus.QUEUED}
    await tx.write(_create_events, with_rows(first))
    await changes.write(tx, _by_tenant(new))
    return [made[each.id] for each in new]


@cache
def _create(dialect: str) -> Executable:
    columns = columns_of(ai_jobs, *_NEW) | {"delay_seconds": Float(53)}
    r = rows_table(dialect, columns)
    rows = select(*(r.c[name] for name in _NEW), literal(1, Integer()), relay_now(r.c.delay_seconds), relay_now())
    names = [*_NEW, "event_seq", "available_at", "created_at"]
    return insert(ai_jobs).from_select(names, rows).returning(*_JOB)


@cache
def _create_events(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(job_events, *_EVENT))
    rows = select(*(r.c[name] for name in _EVENT), relay_now())
    return insert(job_events).from_select([*_EVENT, "created_at"], rows)


async def get(tx: Tx, tenant_id: str, job_id: str) -> JobRecord | None:
    query = select(*_JOB).where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.id == job_id)
    return await tx.one_or_none(JobRecord, query)


async def by_key(tx: Tx, tenant_id: str, idempotency_key: str) -> JobRecord | None:
    rows = await tx.fetch(_by_key, {"tenant_id": tenant_id, "key": idempotency_key})
    return JobRecord(**rows[0]._mapping) if rows else None


@cache
def _by_key(_dialect: str) -> Executable:
    return select(*_JOB).where(
        ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
        ai_jobs.c.idempotency_key == bindparam("key", type_=Text()),
    )


async def retry_of(tx: Tx, job_id: str) -> JobRecord | None:
    return await tx.one_or_none(JobRecord, select(*_JOB).where(ai_jobs.c.retry_of == job_id))


async def retries_of(tx: Tx, job_ids: Collection[str]) -> dict[str, str]:
    """Return by job its retry."""
    j = ai_jobs.c
    found = await tx.execute(select(j.retry_of, j.id).where(j.retry_of.is_not(None), j.retry_of.in_(job_ids)))
    return {row.retry_of: row.id for row in found}


async def by_ids(tx: Tx, job_ids: Iterable[str]) -> list[JobRecord]:
    """Return the jobs in order of creation."""
    result = await tx.fetch(_by_ids, with_ids(job_ids))
    return [JobRecord(**row._mapping) for row in result]


@cache
def _by_ids(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(*_JOB).join(r, ai_jobs.c.id == r.c.id).order_by(ai_jobs.c.created_at, ai_jobs.c.item_no, ai_jobs.c.id)


async def payloads(tx: Tx, job_ids: Iterable[str]) -> dict[str, Any]:
    """Return the payloads of jobs, which were fixed at submission."""
    result = await tx.fetch(_payloads, with_ids(job_ids))
    return {row.id: json_value(row.input_payload) for row in result}


@cache
def _payloads(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(ai_jobs.c.id, ai_jobs.c.input_payload).join(r, ai_jobs.c.id == r.c.id)


class StatusFilter(NamedTuple):
    """Jobs by state. A job that a worker has only `fetched` has the status processing, but still waits."""

    status: str
    fetched: Sequence[str] = ()

    @property
    def condition(self) -> ColumnElement[bool]:
        is_so = ai_jobs.c.status == self.status
        is_fetched = (ai_jobs.c.status == JobStatus.PROCESSING) & ai_jobs.c.id.in_(self.fetched)
        if not self.fetched or self.status not in {JobStatus.QUEUED, JobStatus.PROCESSING}:
            return is_so
        return is_so | is_fetched if self.status == JobStatus.QUEUED else is_so & ~is_fetched


def list_query(
    tenant_id: str,
    *,
    status: str | None = None,
    status_filter: StatusFilter | None = None,
    only_newest: bool = False,
    only_shown: bool = False,
    batch_id: str | None = None,
    no_batch: bool = False,
    expired: bool = False,
    workflow_ids: Collection[int] | None = None,
    search: str | None = None,
    after_id: str | None = None,
    oldest_first: bool = False,
    limit: int = 50,
    dialect: str = "postgresql",
) -> Select[Any]:
    """A tenant's jobs, newest or oldest first, paginated by `after_id`. `search` matches a part of a label, of the
    batch's label, of an error or of an id; in the newest jobs also a part of an input value, such as a prompt.
    `only_newest` omits retried items of batches; `only_shown` omits hidden jobs."""
    # the batch has its own index; SQLite would otherwise scan all jobs of the tenant
    tenant = ai_jobs.c.tenant_id if batch_id is None or status is not None else ai_jobs.c.tenant_id.concat("")
    order = ai_jobs.c.id if oldest_first else ai_jobs.c.id.desc()
    query = select(*_JOB).where(tenant == tenant_id).order_by(order).limit(limit)
    if status is not None:
        query = query.where(ai_jobs.c.status == status)
    if status_filter is not None:
        query = query.where(status_filter.condition)
    if only_newest:
        retry = ai_jobs.alias("retry")
        is_retried = exists(select(literal(1)).where(retry.c.retry_of == ai_jobs.c.id))
        query = query.where(or_(ai_jobs.c.batch_id.is_(None), ~is_retried))
    if only_shown:
        query = query.where(ai_jobs.c.cleared_at.is_(None))
    if batch_id is not None:
        query = query.where(ai_jobs.c.batch_id == batch_id)
    if no_batch:
        query = query.where(ai_jobs.c.batch_id.is_(None))
    if expired:
        is_over = (videos.c.id == ai_jobs.c.video_id) & (videos.c.status == VideoStatus.EXPIRED)
        query = query.where(
            ai_jobs.c.status == JobStatus.COMPLETED, exists(select(literal(1)).where(is_over)), ~_has_output()
        )
    if workflow_ids is not None:
        query = query.where(ai_jobs.c.workflow_id.in_(workflow_ids))
    if search:
        query = query.where(found_by(tenant_id, search, dialect))
    if after_id is not None:
        query = query.where(ai_jobs.c.id > after_id if oldest_first else ai_jobs.c.id < after_id)
    return query


def _has_output() -> ColumnElement[bool]:
    is_there = (files.c.id == ai_jobs.c.output_file_id) & files.c.removing_at.is_(None)
    return exists(select(literal(1)).where(is_there))


def found_by(tenant_id: str, search: str, dialect: str) -> ColumnElement[bool]:
    texts = (ai_jobs.c.label, ai_jobs.c.error_message)
    # SQLite's LIKE ignores case; lowering each row takes a third longer
    holds = ColumnElement.contains if dialect == "sqlite" else ColumnElement.icontains
    found = [holds(each, search, autoescape=True) for each in texts]
    # evaluated once, not per job
    named = select(batches.c.id).where(batches.c.tenant_id == tenant_id)
    found.append(ai_jobs.c.batch_id.in_(named.where(holds(batches.c.label, search, autoescape=True))))
    found.append(_has_value(tenant_id, lambda text: holds(text, search, autoescape=True), dialect))
    return or_(*found, ai_jobs.c.id.contains(search.lower(), autoescape=True))


def _has_value(
    tenant_id: str, holds: Callable[[ColumnElement[str]], ColumnElement[bool]], dialect: str
) -> ColumnElement[bool]:
    """Whether an input value contains the text. Values are extracted from JSON, so only new jobs are searched."""
    values = (
        func.json_each(ai_jobs.c.input_payload, "$.values")
        if dialect == "sqlite"
        else func.json_each_text(func.json_extract_path(ai_jobs.c.input_payload, "values"))
    )
    each = values.table_valued(column("value", Text()), name="given")
    newest = ai_jobs.alias("newest")
    oldest = select(newest.c.id).where(newest.c.tenant_id == tenant_id).order_by(newest.c.id.desc())
    is_new = ai_jobs.c.id > func.coalesce(oldest.offset(MAX_SEARCHED).limit(1).scalar_subquery(), "")
    return is_new & exists(select(literal(1)).select_from(each).where(holds(each.c.value)))


async def listed(tx: Tx, tenant_id: str, **filters: Any) -> list[JobRecord]:
    return await tx.all(JobRecord, list_query(tenant_id, **filters, dialect=tx.dialect))


async def count_listed(tx: Tx, tenant_id: str, **filters: Any) -> int:
    """Count all rows of a list."""
    found = list_query(tenant_id, **filters, dialect=tx.dialect).order_by(None).limit(None)
    # without its columns, because payloads are large
    counted = found.with_only_columns(func.count())
    return int((await tx.execute(counted)).scalar_one())


async def count_active(tx: Tx, tenant_id: str, user_id: str, *, except_batch: str | None = None) -> int:
    """Count a user's active jobs without those of the batch `except_batch`. A batch counts as one."""
    # no batch has an empty id
    (row,) = await tx.fetch(
        _count_active, {"tenant_id": tenant_id, "user_id": user_id, "except_batch": except_batch or ""}
    )
    return int(row.active)


@cache
def _count_active(_dialect: str) -> Executable:
    counted = func.coalesce(ai_jobs.c.batch_id, ai_jobs.c.id)
    return select(func.count(distinct(counted)).label("active")).where(
        ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
        ai_jobs.c.user_id == bindparam("user_id", type_=Text()),
        ai_jobs.c.completed_at.is_(None),
        ai_jobs.c.status.in_([sql_literal(each) for each in sorted(ACTIVE_JOB)]),
        counted != bindparam("except_batch", type_=Text()),
    )


async def lock_states(tx: Tx, job_ids: Iterable[str]) -> dict[str, JobState]:
    """Lock the jobs in order of id and return the state that updates apply to."""
    result = await tx.fetch(_lock_states, with_ids(job_ids))
    return {row.id: JobState._make(row) for row in result}


@cache
def _lock_states(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(*_STATE).join(r, ai_jobs.c.id == r.c.id).order_by(ai_jobs.c.id).with_for_update(of=ai_jobs)


async def write_settled(tx: Tx, settled: Sequence[Settled]) -> None:
    rows = as_rows([each.job for each in settled], ("id", *_SETTLED))
    await tx.write(_write_settled, with_rows(rows))
    await changes.write(tx, _by_tenant([each.job for each in settled]))


def _by_tenant(changed: Sequence[NewJobRecord | JobState]) -> dict[str, list[str]]:
    theirs: dict[str, list[str]] = {}
    for each in changed:
        theirs.setdefault(each.tenant_id, []).append(each.id)
    return theirs


@cache
def _write_settled(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(ai_jobs, "id", *_SETTLED))
    values = {ai_jobs.c[name]: r.c[name] for name in _SETTLED}
    return update(ai_jobs).values(values).where(ai_jobs.c.id == r.c.id)


async def write_attempts(tx: Tx, attempts: Sequence[Attempt]) -> None:
    rows = as_rows(attempts, _ATTEMPT)
    for row in rows:
        if row["seed"] is not None:
            row["seed"] = str(row["seed"])
    if rows:
        await tx.write(_write_attempts, with_rows(rows))


@cache
def _write_attempts(dialect: str) -> Executable:
    names = _ATTEMPT
    r = rows_table(dialect, columns_of(job_attempts, *names))
    rows = select(*(r.c[name] for name in names)).where(literal(1) == 1)
    query = insert_into(dialect, job_attempts).from_select(names, rows)
    ended = ("started_at", "ended_at", "outcome", "fault", "error", "seed", "about", "provider_job_id")
    return query.on_conflict_do_update(
        index_elements=["job_id", "epoch"], set_={name: query.excluded[name] for name in ended}
    )


async def write_events(tx: Tx, events: Sequence[Event]) -> None:
    if events:
        await tx.write(_write_events, with_rows(events))


@cache
def _write_events(dialect: str) -> Executable:
    names = (*_EVENT, "created_at")
    r = rows_table(dialect, columns_of(job_events, *names))
    return insert(job_events).from_select(names, select(*(r.c[name] for name in names)))


async def attempts_of(tx: Tx, job_ids: Collection[str]) -> list[Attempt]:
    columns = [job_attempts.c[name] for name in Attempt.__dataclass_fields__]
    query = select(*columns).where(job_attempts.c.job_id.in_(job_ids))
    in_order = query.order_by(job_attempts.c.job_id, job_attempts.c.epoch)
    return [_attempt(row._mapping) for row in await tx.execute(in_order)]


def _attempt(row: Mapping[Any, Any]) -> Attempt:
    return Attempt(**{**row, "seed": None if row["seed"] is None else int(row["seed"])})


async def add_logs(tx: Tx, lines: Sequence[Mapping[str, Any]]) -> None:
    rows = [{**line, "n": n} for n, line in enumerate(lines)]
    await tx.write(_add_logs, with_rows(rows))


@cache
def _add_logs(dialect: str) -> Executable:
    names = ("job_id", "epoch", "tenant_id", "line")
    r = rows_table(dialect, columns_of(job_logs, *names) | {"n": BigInteger()})
    # the join drops lines of deleted jobs
    rows = select(*(r.c[name] for name in names), relay_now()).join(ai_jobs, ai_jobs.c.id == r.c.job_id).order_by(r.c.n)
    return insert(job_logs).from_select([*names, "created_at"], rows)


async def page_after(tx: Tx, *, after_id: str, limit: int) -> list[JobRecord]:
    """Return all jobs of the shard in order of id, for the reconciler."""
    query = select(*_JOB).where(ai_jobs.c.id > after_id).order_by(ai_jobs.c.id).limit(limit)
    return await tx.all(JobRecord, query)


async def active(tx: Tx, *, older_than_seconds: float, offset: int, limit: int) -> list[tuple[str, str]]:
    """Return tenants and ids of unfinished jobs in index order."""
    query = (
        select(ai_jobs.c.tenant_id, ai_jobs.c.id)
        .where(ai_jobs.c.completed_at.is_(None), ai_jobs.c.created_at <= relay_now(-older_than_seconds))
        .order_by(ai_jobs.c.tenant_id, ai_jobs.c.user_id)
        .offset(offset)
        .limit(limit)
    )
    return [(row.tenant_id, row.id) for row in await tx.execute(query)]


async def unsettled(
    tx: Tx, *, before_id: str | None, older_than_seconds: float, limit: int
) -> tuple[list[str], str | None]:
    """Return finished jobs without a settlement among this many jobs, from the newest or before an id, and the id of
    the next page if there may be more."""
    seen = select(ai_jobs.c.id, ai_jobs.c.tenant_id, ai_jobs.c.completed_at).order_by(ai_jobs.c.id.desc()).limit(limit)
    if before_id is not None:
        seen = seen.where(ai_jobs.c.id < before_id)
    page = seen.subquery()
    t = token_transactions
    is_settled = (
        select(t.c.id)
        .where(
            t.c.tenant_id == page.c.tenant_id,
            t.c.job_id == page.c.id,
            t.c.type.in_([sql_literal(TransactionType.JOB_CONSUME), sql_literal(TransactionType.JOB_REFUND)]),
        )
        .exists()
    )
    found = select(page.c.id).where(page.c.completed_at <= relay_now(-older_than_seconds), ~is_settled)
    seen_of = select(func.min(page.c.id).label("last"), func.count().label("jobs")).select_from(page)
    row = (await tx.execute(seen_of)).one()
    return await tx.scalars(found), row.last if row.jobs == limit else None


async def newest_in_batch(tx: Tx, tenant_id: str, batch_id: str) -> list[JobRecord]:
    """Return the newest job of each retry chain in a batch, in batch order."""
    retry = ai_jobs.alias("retry")
    query = (
        select(*_JOB)
        .outerjoin(retry, retry.c.retry_of == ai_jobs.c.id)
        .where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.batch_id == batch_id, retry.c.id.is_(None))
        .order_by(ai_jobs.c.item_no)
    )
    return await tx.all(JobRecord, query)


async def count_in_batches(tx: Tx, tenant_id: str, batch_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the items of batches by status, with the newest job of each retry chain."""
    retry = ai_jobs.alias("retry")
    query = (
        select(ai_jobs.c.batch_id, ai_jobs.c.status, func.count().label("jobs"))
        .outerjoin(retry, retry.c.retry_of == ai_jobs.c.id)
        .where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.batch_id.in_(batch_ids), retry.c.id.is_(None))
        .group_by(ai_jobs.c.batch_id, ai_jobs.c.status)
    )
    counts: dict[str, dict[str, int]] = {}
    for row in await tx.execute(query):
        counts.setdefault(row.batch_id, {})[row.status] = row.jobs
    return counts


async def batch_sizes(tx: Tx, batch_ids: Iterable[str]) -> dict[str, int]:
    """Return the number of items of each batch, without retries."""
    wanted = list(batch_ids)
    if not wanted:
        return {}
    query = (
        select(ai_jobs.c.batch_id, func.count(ai_jobs.c.item_no.distinct()).label("items"))
        .where(ai_jobs.c.batch_id.in_(wanted))
        .group_by(ai_jobs.c.batch_id)
    )
    return {row.batch_id: row.items for row in await tx.execute(query)}


async def newest_done(
    tx: Tx, tenant_id: str, batch_ids: Sequence[str], *, limit: int
) -> tuple[dict[str, list[CompletedItem]], datetime]:
    """Return the last completed items of each batch, and the time."""
    ordered = func.row_number().over(partition_by=ai_jobs.c.batch_id, order_by=ai_jobs.c.completed_at.desc())
    numbered = (
        select(ai_jobs.c.batch_id, ai_jobs.c.started_at, ai_jobs.c.completed_at, ordered.label("place"))
        .where(
            ai_jobs.c.tenant_id == tenant_id,
            ai_jobs.c.batch_id.in_(batch_ids),
            ai_jobs.c.status == JobStatus.COMPLETED,
            # reused outputs have no run time
            ai_jobs.c.reused_from.is_(None),
        )
        .subquery()
    )
    found: dict[str, list[CompletedItem]] = {}
    for row in await tx.execute(select(numbered).where(numbered.c.place <= limit)):
        found.setdefault(row.batch_id, []).append(CompletedItem(row.started_at, row.completed_at))
    return found, (await tx.execute(select(relay_now()))).scalar_one()


async def set_version(tx: Tx, job_id: str, version: int) -> None:
    """Set the version up to which updates count as applied, for the reconciler."""
    await tx.execute(update(ai_jobs).where(ai_jobs.c.id == job_id).values(dispatch_version=version))


async def waive_tokens(tx: Tx, job_id: str) -> None:
    """Set the reserved tokens of a job to zero, so that none are consumed or refunded, for the reconciler."""
    await tx.execute(update(ai_jobs).where(ai_jobs.c.id == job_id).values(reserved_tokens=0))
