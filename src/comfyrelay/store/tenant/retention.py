"""Retention: find and delete old videos, old jobs, unused uploads and orphaned outputs.

A file is marked first, which prevents new use. It is deleted later, when every use that began before is visible.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import Double, Text, and_, cast, delete, func, literal, or_, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.gallery import Mark
from comfyrelay.domain.ids import source_path
from comfyrelay.domain.queue.states import VideoStatus
from comfyrelay.domain.records.jobs import FileRecord, VideoRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import (
    as_rows,
    columns_of,
    ids_table,
    insert_selected,
    rows_table,
    select_by_ids,
    with_ids,
    with_rows,
)
from comfyrelay.store.tenant.tables import ai_jobs, collection_items, files, orphaned_outputs, outputs, videos
from comfyrelay.store.types import json_value, relay_later, relay_now

_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]
_VIDEO = [videos.c[name] for name in VideoRecord.__dataclass_fields__]
# Whether a file is the original of a video that has not expired.
_IS_SHOWN = (
    select(literal(1)).where(videos.c.original_file_id == files.c.id, videos.c.status != VideoStatus.EXPIRED).exists()
)
# Outputs with a file, and the condition for those that nobody starred or collected.
_WITH_FILE = (
    select(outputs.c.job_id, outputs.c.id).join(files, files.c.id == outputs.c.id).where(files.c.removing_at.is_(None))
)
_OF_JOB = _WITH_FILE.where(outputs.c.job_id == ai_jobs.c.id).correlate(ai_jobs)
_IS_COLLECTED = select(literal(1)).where(collection_items.c.output_id == outputs.c.id).exists()
_MAY_EXPIRE = and_(outputs.c.mark.is_distinct_from(Mark.STARRED), ~_IS_COLLECTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class OldJob:
    """An ended job, and its outputs that may be deleted."""

    id: str
    tenant_id: str
    output_ids: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanSearch:
    """A finished job whose leases may have left orphaned outputs."""

    job_id: str
    tenant_id: str


async def old_videos(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[VideoRecord]:
    """Return videos that have not changed for this long and have no unfinished job, by id."""
    query = (
        select(*_VIDEO)
        .outerjoin(ai_jobs, ai_jobs.c.id == videos.c.job_id)
        .where(
            videos.c.id > after_id,
            videos.c.status != VideoStatus.EXPIRED,
            videos.c.updated_at <= relay_now(-older_than_seconds),
            or_(ai_jobs.c.id.is_(None), ai_jobs.c.completed_at.is_not(None)),
        )
        .order_by(videos.c.id)
        .limit(limit)
    )
    return await tx.all(VideoRecord, query)


async def old_jobs(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[OldJob]:
    """Return jobs that ended this long ago and have no output, or one that may be deleted, by id.

    Jobs of batches with unfinished jobs are left out.
    """
    j, other = ai_jobs.c, ai_jobs.alias()
    unfinished = select(other.c.batch_id).where(other.c.completed_at.is_(None), other.c.batch_id.is_not(None))
    query = (
        select(j.id, j.tenant_id)
        .where(
            j.id > after_id,
            j.completed_at <= relay_now(-older_than_seconds),
            or_(j.batch_id.is_(None), j.batch_id.not_in(unfinished)),
            or_(~_OF_JOB.exists(), _OF_JOB.where(_MAY_EXPIRE).exists()),
        )
        .order_by(j.id)
        .limit(limit)
    )
    found = [OldJob(id=row.id, tenant_id=row.tenant_id, output_ids=[]) for row in await tx.execute(query)]
    by_id = {job.id: job for job in found}
    of_jobs = _WITH_FILE.where(outputs.c.job_id.in_(list(by_id)), _MAY_EXPIRE)
    for row in await tx.execute(of_jobs.order_by(outputs.c.job_id, outputs.c.number)):
        by_id[row.job_id].output_ids.append(row.id)
    return found


async def files_by_id(tx: Tx, file_ids: Iterable[str]) -> list[FileRecord]:
    return [FileRecord(**row._mapping) for row in await tx.fetch(_files_by_id, with_ids(file_ids))]


@cache
def _files_by_id(dialect: str) -> Executable:
    return select_by_ids(dialect, files.c.id, *_FILE)


async def expire(tx: Tx, old: Sequence[VideoRecord]) -> set[str]:
    """Expire the videos that have not changed since they were read. Return their ids."""
    return {row.id for row in await tx.fetch(_expire, with_rows(as_rows(old, ("id", "updated_at"))))}


@cache
def _expire(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(videos, "id", "updated_at"))
    query = update(videos).values(
        status=VideoStatus.EXPIRED, processed_file_id=None, processing_details=None, updated_at=relay_now()
    )
    is_unchanged = and_(videos.c.id == r.c.id, videos.c.updated_at == r.c.updated_at)
    return query.where(is_unchanged).returning(videos.c.id)


async def mark(tx: Tx, file_ids: Iterable[str]) -> None:
    """Mark files for deletion, except the originals of videos that have not expired."""
    await tx.write(_mark, with_ids(file_ids))


@cache
def _mark(dialect: str) -> Executable:
    is_given = files.c.id.in_(select(ids_table(dialect, Text).c.id))
    return update(files).values(removing_at=relay_now()).where(is_given, files.c.removing_at.is_(None), ~_IS_SHOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnusedUpload:
    """An upload that seems unused. `is_released`: a job that used the upload was deleted; others may still use it."""

    id: str
    tenant_id: str
    path: str
    is_released: bool
    # Whether a video or a column of a job refers to the upload.
    is_used: bool


async def unused_uploads(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[UnusedUpload]:
    """Return uploads that no job has used for this long, by id."""
    is_original = select(literal(1)).where(videos.c.original_file_id == files.c.id).exists()
    is_input = select(literal(1)).where(ai_jobs.c.input_file_id == files.c.id).exists()
    query = (
        select(
            *(files.c[name] for name in ("id", "tenant_id", "path")),
            files.c.unused_at.is_not(None).label("is_released"),
            or_(is_original, is_input).label("is_used"),
        )
        .where(
            files.c.used_at.is_(None),
            files.c.removing_at.is_(None),
            files.c.id > after_id,
            func.coalesce(files.c.unused_at, files.c.created_at) <= relay_now(-older_than_seconds),
        )
        .order_by(files.c.id)
        .limit(limit)
    )
    return await tx.all(UnusedUpload, query)


async def inputs_of_jobs(tx: Tx, tenant_id: str, *, after_id: str, limit: int) -> list[tuple[str, list[str]]]:
    """Return a page of a tenant's jobs with the paths of their inputs, by id."""
    # Whole payloads may be large.
    payload = ai_jobs.c.input_payload
    assets = (
        func.json_extract(payload, "$.assets")
        if tx.dialect == "sqlite"
        else cast(func.json_extract_path(payload, "assets"), Text)
    )
    query = select(ai_jobs.c.id, assets.label("assets"))
    query = query.where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.id > after_id).order_by(ai_jobs.c.id).limit(limit)
    return [(row.id, [asset["path"] for asset in json_value(row.assets)]) for row in await tx.execute(query)]


async def mark_unused(tx: Tx, file_ids: Iterable[str]) -> None:
    """Mark uploads for deletion, except those that a job has used since they were read."""
    query = update(files).where(files.c.id.in_(list(file_ids)), files.c.used_at.is_(None))
    await tx.execute(query.values(removing_at=relay_now()))


async def record_used(tx: Tx, file_ids: Iterable[str]) -> None:
    """Record that these files are used, and unmark them."""
    query = update(files).where(files.c.id.in_(list(file_ids)))
    await tx.execute(query.values(used_at=relay_now(), unused_at=None, removing_at=None))


async def marked(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[tuple[FileRecord, bool]]:
    """Return files that were marked this long ago, by id, and whether they are used."""
    is_used_since = and_(files.c.used_at.is_not(None), files.c.used_at >= files.c.removing_at)
    query = select(*_FILE, or_(is_used_since, _IS_SHOWN).label("is_used")).where(
        files.c.removing_at.is_not(None),
        files.c.id > after_id,
        files.c.removing_at <= relay_now(-older_than_seconds),
    )
    return await tx.all(
        lambda *, is_used, **fields: (FileRecord(**fields), bool(is_used)), query.order_by(files.c.id).limit(limit)
    )


async def clear_originals(tx: Tx, file_ids: Iterable[str]) -> None:
    """Remove the original files from expired videos."""
    await tx.execute(update(videos).where(videos.c.original_file_id.in_(list(file_ids))).values(original_file_id=None))


async def schedule_orphan_searches(tx: Tx, searches: Iterable[OrphanSearch], *, after_seconds: float) -> None:
    """Schedule the search for orphaned outputs of these jobs for the time when late uploads have ended."""
    rows = [{"job_id": job.job_id, "tenant_id": job.tenant_id, "after_seconds": after_seconds} for job in searches]
    await tx.write(_schedule_orphan_searches, with_rows(rows))


@cache
def _schedule_orphan_searches(dialect: str) -> Executable:
    r = rows_table(dialect, {**columns_of(orphaned_outputs, "job_id", "tenant_id"), "after_seconds": Double()})
    rows = select(r.c.job_id, r.c.tenant_id, relay_later(r.c.after_seconds, dialect))
    query = insert_selected(dialect, orphaned_outputs, ["job_id", "tenant_id", "due_at"], rows)
    return query.on_conflict_do_nothing()


async def due_orphan_searches(tx: Tx, *, limit: int) -> list[OrphanSearch]:
    s = orphaned_outputs.c
    query = select(s.job_id, s.tenant_id).where(s.due_at <= relay_now()).order_by(s.due_at).limit(limit)
    return await tx.all(OrphanSearch, query)


async def known_paths(tx: Tx, disk: str, paths: Iterable[str]) -> set[str]:
    """Return the paths that belong to a file or to its poster or preview."""
    sources = {path: source_path(path) for path in paths}
    query = select(files.c.path).where(files.c.disk == disk, files.c.path.in_(sorted(set(sources.values()))))
    known = set(await tx.scalars(query))
    return {path for path, source in sources.items() if source in known}


async def delete_orphan_searches(tx: Tx, job_ids: Iterable[str]) -> None:
    await tx.execute(delete(orphaned_outputs).where(orphaned_outputs.c.job_id.in_(list(job_ids))))
