"""Filtered and searched lists of a tenant's jobs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Function,
    Select,
    TableValuedAlias,
    Text,
    and_,
    cast,
    column,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)

from comfyrelay.domain.queue.states import JobStatus, VideoStatus
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.domain.search import parse_search
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant.jobs import JOB_COLUMNS
from comfyrelay.store.tenant.tables import ai_jobs, batches, files, videos
from comfyrelay.store.types import json_value

# Number of the newest jobs whose input values are searched.
MAX_SEARCHED = 20_000


class StatusFilter(NamedTuple):
    """A filter by status. A job that a worker has only `fetched` is stored as processing, but is still waiting."""

    status: str
    fetched: Sequence[str] = ()

    @property
    def condition(self) -> ColumnElement[bool]:
        has_status = ai_jobs.c.status == self.status
        is_fetched = (ai_jobs.c.status == JobStatus.PROCESSING) & ai_jobs.c.id.in_(self.fetched)
        if not self.fetched or self.status not in {JobStatus.QUEUED, JobStatus.PROCESSING}:
            return has_status
        return has_status | is_fetched if self.status == JobStatus.QUEUED else has_status & ~is_fetched


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
    metadata: Mapping[str, str] | None = None,
    after_id: str | None = None,
    oldest_first: bool = False,
    limit: int = 50,
    dialect: str = "postgresql",
) -> Select[Any]:
    """Select a tenant's jobs, newest or oldest first, paginated by `after_id`. `search` matches a part of a label, of
    the batch's label, of an error or of an id; in the newest jobs also a part of an input value, such as a prompt.
    `only_newest` omits retried items of batches; `only_shown` omits hidden jobs."""
    # The batch has its own index. SQLite would otherwise scan all jobs of the tenant.
    tenant = ai_jobs.c.tenant_id if batch_id is None or status is not None else ai_jobs.c.tenant_id.concat("")
    order = ai_jobs.c.id if oldest_first else ai_jobs.c.id.desc()
    query = select(*JOB_COLUMNS).where(tenant == tenant_id).order_by(order).limit(limit)
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
        video = (videos.c.id == ai_jobs.c.video_id) & (videos.c.status == VideoStatus.EXPIRED)
        output = (files.c.id == ai_jobs.c.output_file_id) & files.c.removing_at.is_(None)
        has_video, has_output = (exists(select(literal(1)).where(condition)) for condition in (video, output))
        query = query.where(ai_jobs.c.status == JobStatus.COMPLETED, has_video, ~has_output)
    if workflow_ids is not None:
        query = query.where(ai_jobs.c.workflow_id.in_(workflow_ids))
    if search:
        query = query.where(search_condition(tenant_id, search, dialect))
    for key, value in (metadata or {}).items():
        labels = _labels(dialect)
        is_equal = (labels.c.key == key) & (labels.c.value == value)
        query = query.where(exists(select(literal(1)).select_from(labels).where(is_equal)))
    if after_id is not None:
        query = query.where(ai_jobs.c.id > after_id if oldest_first else ai_jobs.c.id < after_id)
    return query


def search_condition(tenant_id: str, search: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition for a search with the syntax of `domain.search`."""
    conditions = [
        without(_text_condition(tenant_id, term.text, dialect))
        if term.is_excluded
        else _text_condition(tenant_id, term.text, dialect)
        for term in parse_search(search)
    ]
    return and_(true(), *conditions)


def without(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the negation of a condition that may be null."""
    return not_(func.coalesce(condition, false(), type_=Boolean()))


def _text_condition(tenant_id: str, text: str, dialect: str) -> ColumnElement[bool]:
    contains = contains_text(text, dialect)
    # The subquery is evaluated once, not per job.
    of_label = select(batches.c.id).where(batches.c.tenant_id == tenant_id, contains(batches.c.label))
    return or_(
        contains(ai_jobs.c.label),
        contains(ai_jobs.c.error_message),
        ai_jobs.c.batch_id.in_(of_label),
        _has_value(tenant_id, contains, dialect),
        ai_jobs.c.id.contains(text.lower(), autoescape=True),
    )


def contains_text(text: str, dialect: str) -> Callable[[ColumnElement[Any]], ColumnElement[bool]]:
    """Return a function that builds the condition for a column."""
    # SQLite's LIKE ignores case. Converting each row to lowercase would take a third longer.
    contains = ColumnElement.contains if dialect == "sqlite" else ColumnElement.icontains
    return lambda column: contains(column, text, autoescape=True)


def _has_value(
    tenant_id: str, contains: Callable[[ColumnElement[str]], ColumnElement[bool]], dialect: str
) -> ColumnElement[bool]:
    """Return the condition that an input value contains the text. Values are extracted from JSON, so only new jobs are
    searched."""
    values = input_values(dialect)
    newest = ai_jobs.alias("newest")
    oldest = select(newest.c.id).where(newest.c.tenant_id == tenant_id).order_by(newest.c.id.desc())
    is_new = ai_jobs.c.id > func.coalesce(oldest.offset(MAX_SEARCHED).limit(1).scalar_subquery(), "")
    return is_new & exists(select(literal(1)).select_from(values).where(contains(values.c.value)))


def input_values(dialect: str) -> TableValuedAlias:
    """Return the input values of a job as a table with the column `value`."""
    return _entries("values", dialect).table_valued(column("value", Text()), name="given")


def _labels(dialect: str) -> TableValuedAlias:
    """Return the labels of a job as a table."""
    return _entries("metadata", dialect).table_valued(column("key", Text()), column("value", Text())).alias()


def _entries(name: str, dialect: str) -> Function[Any]:
    """Return the entries of an object in the payload of a job."""
    if dialect == "sqlite":
        return func.json_each(ai_jobs.c.input_payload, f"$.{name}")
    return func.json_each_text(func.json_extract_path(ai_jobs.c.input_payload, name))


async def metadata_of(tx: Tx, job_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the metadata of jobs."""
    labels = (
        func.json_extract(ai_jobs.c.input_payload, "$.metadata")
        if tx.dialect == "sqlite"
        else cast(func.json_extract_path(ai_jobs.c.input_payload, "metadata"), Text)
    )
    rows = await tx.execute(select(ai_jobs.c.id, labels.label("labels")).where(ai_jobs.c.id.in_(list(job_ids))))
    return {row.id: json_value(row.labels) or {} for row in rows}


async def listed(tx: Tx, tenant_id: str, **filters: Any) -> list[JobRecord]:
    return await tx.all(JobRecord, list_query(tenant_id, **filters, dialect=tx.dialect))


async def count_listed(tx: Tx, tenant_id: str, **filters: Any) -> int:
    """Count all rows of a list."""
    query = list_query(tenant_id, **filters, dialect=tx.dialect).order_by(None).limit(None)
    # Payloads are large, so the columns are left out.
    return int(await tx.scalar(query.with_only_columns(func.count())))


class RecentOutput(NamedTuple):
    workflow_id: int
    effect_id: int | None
    output_file_id: str | None
    started_at: datetime | None
    completed_at: datetime


async def recently_completed(tx: Tx, tenant_id: str, *, among: int) -> list[RecentOutput]:
    """Return the completed ones among the newest jobs of the tenant, newest first."""
    return await tx.all(RecentOutput, recently_completed_query(tenant_id, among=among))


def recently_completed_query(tenant_id: str, *, among: int) -> Select[Any]:
    columns = (*(ai_jobs.c[name] for name in RecentOutput._fields), ai_jobs.c.id, ai_jobs.c.status)
    newest = select(*columns).where(ai_jobs.c.tenant_id == tenant_id).order_by(ai_jobs.c.id.desc()).limit(among)
    jobs = newest.subquery()
    query = select(*(jobs.c[name] for name in RecentOutput._fields)).where(jobs.c.status == JobStatus.COMPLETED)
    return query.order_by(jobs.c.id.desc())
