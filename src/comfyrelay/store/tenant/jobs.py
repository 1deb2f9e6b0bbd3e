"""Jobs of a shard: create, read, and apply updates of the queue."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Insert,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    cast,
    distinct,
    func,
    insert,
    literal,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql import Executable

from comfyrelay.domain.queue.settlement import Attempt, Event, JobState, Settled
from comfyrelay.domain.queue.states import ACTIVE_JOB, JobEventType, JobStatus, TransactionType
from comfyrelay.domain.records.jobs import FailedNode, JobRecord, NewJobRecord
from comfyrelay.errors import Conflict
from comfyrelay.pacing import paced
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest
from comfyrelay.store.row_parameters import (
    as_rows,
    columns_of,
    insert_rows,
    rows_table,
    select_by_ids,
    update_rows,
    with_ids,
    with_rows,
)
from comfyrelay.store.tenant import changes
from comfyrelay.store.tenant.submissions import PendingSubmission, submission_query, submit
from comfyrelay.store.tenant.tables import (
    ai_jobs,
    job_attempts,
    job_events,
    job_logs,
    token_transactions,
)
from comfyrelay.store.transaction import Call
from comfyrelay.store.types import json_value, relay_later, relay_now, sql_literal

# Lists do not show the values of jobs with longer payloads.
MAX_LISTED_LENGTH = 64 * 1024
_JOB = tuple(JobRecord.__dataclass_fields__)
JOB_COLUMNS = [ai_jobs.c[name] for name in _JOB]
_STATE = [ai_jobs.c[name] for name in JobState._fields]
_NEW = (
    *(name for name in NewJobRecord.__dataclass_fields__ if name != "delay_seconds"),
    "private_graph",
    "space_bytes",
)
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
    "charged_tokens",
)
_ATTEMPT = tuple(Attempt.__dataclass_fields__)
_EVENT = ("job_id", "seq", "tenant_id", "type", "data")


def _record(row: Any) -> JobRecord:
    """Return the job from a row that begins with the job's columns. Other columns follow."""
    return JobRecord(**dict(zip(_JOB, row, strict=False)))


async def create(
    tx: Tx, new: Sequence[NewJobRecord], *, submitted: Sequence[str]
) -> tuple[list[JobRecord], PendingSubmission | None]:
    """Insert the jobs in this order, each with its `queued` event, and the outbox row of the submitted ones."""
    event = {"seq": 1, "type": JobEventType.QUEUED, "data": {"status": JobStatus.QUEUED}}
    then: list[Call] = [
        (_create_events, with_rows({"job_id": job.id, "tenant_id": job.tenant_id, **event} for job in new)),
        changes.call(_by_tenant(new)),
    ]
    parameters = with_rows(as_rows(new, (*_NEW, "delay_seconds")))
    # PostgreSQL returns the id of the outbox row with the jobs. SQLite cannot, but has no round trips to save.
    is_together = bool(submitted) and tx.dialect == "postgresql"
    if is_together:
        parameters |= with_rows([{"job_ids": list(submitted)}], "submission")
    try:
        rows = await tx.fetch(_create_and_submit if is_together else _create, parameters, then=then)
    except (IntegrityError, asyncpg.ForeignKeyViolationError) as error:
        if "foreign key" not in str(error).lower():
            raise
        raise Conflict("A file or video of this request was just deleted.") from error
    created = {row.id: _record(row) async for row in paced(rows)}
    found = [created[job.id] for job in new]
    if is_together:
        return found, PendingSubmission(id=rows[0].submission_id, job_ids=submitted)
    return found, await submit(tx, submitted) if submitted else None


@cache
def _create(dialect: str) -> Insert:
    columns = columns_of(ai_jobs, *_NEW) | {"delay_seconds": Float(53)}
    r = rows_table(dialect, columns)
    rows = select(
        *(r.c[name] for name in _NEW), literal(1, Integer()), relay_later(r.c.delay_seconds, dialect), relay_now()
    )
    names = [*_NEW, "event_seq", "available_at", "created_at"]
    return insert(ai_jobs).from_select(names, rows).returning(*JOB_COLUMNS)


@cache
def _create_and_submit(dialect: str) -> Executable:
    submission = submission_query(dialect, parameter="submission").cte("submission")
    return _create(dialect).returning(select(submission.c.id).scalar_subquery().label("submission_id"))


@cache
def _create_events(dialect: str) -> Executable:
    return insert_rows(dialect, job_events, *_EVENT, created_at=relay_now())


async def get(tx: Tx, tenant_id: str, job_id: str) -> JobRecord | None:
    query = select(*JOB_COLUMNS).where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.id == job_id)
    return await tx.one_or_none(JobRecord, query)


class KeyCheck(NamedTuple):
    """The job of an idempotency key, if any, and the number of the user's active jobs."""

    known: JobRecord | None
    active: int


async def check_key(tx: Tx, tenant_id: str, user_id: str, *, idempotency_key: str) -> KeyCheck:
    """Return the data that a submission needs, in one round trip."""
    parameters = {"tenant_id": tenant_id, "user_id": user_id, "except_batch": "", "key": idempotency_key}
    [row] = await tx.fetch(_check_key, parameters)
    return KeyCheck(None if row.id is None else _record(row), int(row.active))


@cache
def _check_key(dialect: str) -> Executable:
    known = _by_key(dialect).subquery("known")
    active = _count_active(dialect).scalar_subquery().label("active")
    one = select(literal(1).label("one")).subquery("one")
    return select(*known.c, active).select_from(one.outerjoin(known, true()))


async def by_key(tx: Tx, tenant_id: str, idempotency_key: str) -> JobRecord | None:
    rows = await tx.fetch(_by_key, {"tenant_id": tenant_id, "key": idempotency_key})
    return JobRecord(**rows[0]._mapping) if rows else None


@cache
def _by_key(_dialect: str) -> Select[*tuple[Any, ...]]:
    return select(*JOB_COLUMNS).where(
        ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
        ai_jobs.c.idempotency_key == bindparam("key", type_=Text()),
    )


async def retry_of(tx: Tx, job_id: str) -> JobRecord | None:
    return await tx.one_or_none(JobRecord, select(*JOB_COLUMNS).where(ai_jobs.c.retry_of == job_id))


async def retries_of(tx: Tx, job_ids: Collection[str]) -> dict[str, str]:
    """Return the retry of each retried job: job id → id of the retry."""
    j = ai_jobs.c
    rows = await tx.execute(select(j.retry_of, j.id).where(j.retry_of.is_not(None), j.retry_of.in_(job_ids)))
    return {row.retry_of: row.id for row in rows}


async def ended_after(tx: Tx, tenant_id: str, moment: datetime) -> list[str]:
    """Return the jobs of a tenant that ended after `moment`. This reads all jobs of the tenant."""
    query = select(ai_jobs.c.id).where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.completed_at > moment)
    return await tx.scalars(query.order_by(ai_jobs.c.completed_at))


async def by_ids(tx: Tx, job_ids: Iterable[str]) -> list[JobRecord]:
    """Return the jobs in order of creation."""
    return [JobRecord(**row._mapping) async for row in paced(await tx.fetch(_by_ids, with_ids(job_ids)))]


@cache
def _by_ids(dialect: str) -> Executable:
    query = select_by_ids(dialect, ai_jobs.c.id, *JOB_COLUMNS)
    return query.order_by(ai_jobs.c.created_at, ai_jobs.c.item_no, ai_jobs.c.id)


async def payloads(tx: Tx, job_ids: Iterable[str]) -> dict[str, Any]:
    """Return the payloads of jobs, which were fixed at submission."""
    rows = await tx.fetch(_payloads, with_ids(job_ids))
    return {row.id: json_value(row.input_payload) async for row in paced(rows)}


def listed_payload(max_length: int = MAX_LISTED_LENGTH) -> ColumnElement[Any]:
    """Return the payload of a job, or null if it is too long for a list: a page of payloads may have gigabytes."""
    length = func.length(cast(ai_jobs.c.input_payload, Text))
    return case((length <= literal_column(str(max_length)), ai_jobs.c.input_payload))


async def listed_payloads(tx: Tx, job_ids: Iterable[str]) -> dict[str, Any]:
    """Return the payloads of jobs, except long ones."""
    rows = await tx.fetch(_listed_payloads, with_ids(job_ids))
    return {row.id: json_value(row.payload) for row in rows if row.payload is not None}


@cache
def _listed_payloads(dialect: str) -> Executable:
    return select_by_ids(dialect, ai_jobs.c.id, ai_jobs.c.id, listed_payload().label("payload"))


@cache
def _payloads(dialect: str) -> Executable:
    return select_by_ids(dialect, ai_jobs.c.id, ai_jobs.c.id, ai_jobs.c.input_payload)


async def count_active(tx: Tx, tenant_id: str, user_id: str, *, except_batch: str | None = None) -> int:
    """Count a user's active jobs, except the jobs of one batch. A batch counts as one."""
    # No batch has an empty id.
    parameters = {"tenant_id": tenant_id, "user_id": user_id, "except_batch": except_batch or ""}
    (row,) = await tx.fetch(_count_active, parameters)
    return int(row.active)


@cache
def _count_active(_dialect: str) -> Select[int]:
    counted = func.coalesce(ai_jobs.c.batch_id, ai_jobs.c.id)
    return select(func.count(distinct(counted)).label("active")).where(
        ai_jobs.c.tenant_id == bindparam("tenant_id", type_=Text()),
        ai_jobs.c.user_id == bindparam("user_id", type_=Text()),
        ai_jobs.c.completed_at.is_(None),
        ai_jobs.c.status.in_([sql_literal(status) for status in sorted(ACTIVE_JOB)]),
        counted != bindparam("except_batch", type_=Text()),
    )


async def lock_states(tx: Tx, job_ids: Iterable[str]) -> dict[str, JobState]:
    """Lock the jobs in order of id, and return the states that updates apply to."""
    return {row.id: JobState._make(row) async for row in paced(await tx.fetch(_lock_states, with_ids(job_ids)))}


@cache
def _lock_states(dialect: str) -> Executable:
    return select_by_ids(dialect, ai_jobs.c.id, *_STATE).order_by(ai_jobs.c.id).with_for_update(of=ai_jobs)


async def write_settled(tx: Tx, settled: Sequence[Settled]) -> None:
    settled_jobs = [settlement.job for settlement in settled]
    await tx.write(_write_settled, with_rows(as_rows(settled_jobs, ("id", *_SETTLED))))
    await changes.write(tx, _by_tenant(settled_jobs))


def _by_tenant(changed: Sequence[NewJobRecord | JobState]) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for job in changed:
        ids.setdefault(job.tenant_id, []).append(job.id)
    return ids


@cache
def _write_settled(dialect: str) -> Executable:
    return update_rows(dialect, ai_jobs, "id", *_SETTLED)


async def write_attempts(tx: Tx, attempts: Sequence[Attempt]) -> None:
    if attempts:
        rows = as_rows(attempts, _ATTEMPT)
        texts = ({**row, "seed": None if row["seed"] is None else str(row["seed"])} for row in rows)
        await tx.write(_write_attempts, with_rows(texts))


@cache
def _write_attempts(dialect: str) -> Executable:
    query = insert_rows(dialect, job_attempts, *_ATTEMPT)
    changed = ("started_at", "ended_at", "outcome", "fault", "error", "seed", "about", "provider_job_id")
    values = {name: query.excluded[name] for name in changed}
    return query.on_conflict_do_update(index_elements=["job_id", "epoch"], set_=values)


async def write_events(tx: Tx, events: Sequence[Event]) -> None:
    if events:
        await tx.write(_write_events, with_rows(events))


@cache
def _write_events(dialect: str) -> Executable:
    return insert_rows(dialect, job_events, *_EVENT, "created_at")


async def attempts_of(tx: Tx, job_ids: Collection[str]) -> list[Attempt]:
    query = select(*(job_attempts.c[name] for name in _ATTEMPT)).where(job_attempts.c.job_id.in_(job_ids))
    return await tx.all(_attempt, query.order_by(job_attempts.c.job_id, job_attempts.c.epoch))


async def failed_nodes(tx: Tx, job_ids: Collection[str]) -> dict[str, FailedNode]:
    """Return the node at which the last attempt of each job failed, if it is known."""
    found: dict[str, FailedNode | None] = {}
    for attempt in await attempts_of(tx, job_ids):
        found[attempt.job_id] = FailedNode.from_about(attempt.about)
    return {job_id: node for job_id, node in found.items() if node is not None}


def _attempt(*, seed: str | None, **fields: Any) -> Attempt:
    return Attempt(seed=None if seed is None else int(seed), **fields)


async def add_logs(tx: Tx, lines: Sequence[Mapping[str, Any]]) -> None:
    rows = [{**line, "n": n} for n, line in enumerate(lines)]
    await tx.write(_add_logs, with_rows(rows))


@cache
def _add_logs(dialect: str) -> Executable:
    names = ("job_id", "epoch", "tenant_id", "line")
    r = rows_table(dialect, columns_of(job_logs, *names) | {"n": BigInteger()})
    # The join drops lines of deleted jobs.
    rows = select(*(r.c[name] for name in names), relay_now()).join(ai_jobs, ai_jobs.c.id == r.c.job_id).order_by(r.c.n)
    return insert(job_logs).from_select([*names, "created_at"], rows)


async def page_after(tx: Tx, *, after_id: str, limit: int) -> list[JobRecord]:
    """Return all jobs of the shard in order of id, for the reconciler."""
    query = select(*JOB_COLUMNS).where(ai_jobs.c.id > after_id).order_by(ai_jobs.c.id).limit(limit)
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
    """Return the finished jobs without a settlement on a page of `limit` jobs, newest first, and the id of the next
    page if there may be more."""
    query = select(ai_jobs.c.id, ai_jobs.c.tenant_id, ai_jobs.c.completed_at)
    page = newest(query, ai_jobs.c.id, before=before_id, limit=limit).subquery()
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
    read = await tx.execute(select(func.min(page.c.id).label("last"), func.count().label("jobs")).select_from(page))
    row = read.one()
    return await tx.scalars(found), row.last if row.jobs == limit else None


async def newest_in_batch(tx: Tx, tenant_id: str, batch_id: str) -> list[JobRecord]:
    """Return the newest job of each retry chain in a batch, in batch order."""
    retry = ai_jobs.alias("retry")
    query = (
        select(*JOB_COLUMNS)
        .outerjoin(retry, retry.c.retry_of == ai_jobs.c.id)
        .where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.batch_id == batch_id, retry.c.id.is_(None))
        .order_by(ai_jobs.c.item_no)
    )
    return await tx.all(JobRecord, query)


async def count_in_batches(tx: Tx, tenant_id: str, batch_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the items of batches by status, with the newest job of each retry chain."""
    rows = await tx.execute(batch_counts_query(tenant_id, batch_ids))
    return {id_: {name: jobs for name, jobs in zip(JobStatus, counts, strict=True) if jobs} for id_, *counts in rows}


def batch_counts_query(tenant_id: str, batch_ids: Sequence[str]) -> Select[Any]:
    retry = ai_jobs.alias("retry")
    # One column per status, because groups by status would have to be sorted.
    counts = (func.count().filter(ai_jobs.c.status == sql_literal(status)) for status in JobStatus)
    return (
        select(ai_jobs.c.batch_id, *counts)
        .outerjoin(retry, retry.c.retry_of == ai_jobs.c.id)
        .where(ai_jobs.c.tenant_id.concat("") == tenant_id, ai_jobs.c.batch_id.in_(batch_ids), retry.c.id.is_(None))
        .group_by(ai_jobs.c.batch_id)
    )


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


async def set_version(tx: Tx, job_id: str, version: int) -> None:
    """Set the version up to which updates count as applied, for the reconciler."""
    await tx.execute(update(ai_jobs).where(ai_jobs.c.id == job_id).values(dispatch_version=version))


async def waive_tokens(tx: Tx, job_id: str) -> None:
    """Set the reserved tokens of a job to zero, so that none are consumed or refunded, for the reconciler."""
    ended = case((ai_jobs.c.charged_tokens.is_not(None), 0))
    await tx.execute(update(ai_jobs).where(ai_jobs.c.id == job_id).values(reserved_tokens=0, charged_tokens=ended))
