"""Retention: find and delete old videos, unused uploads and orphaned outputs.

A file is marked first, which prevents new use. It is deleted later, when every use that began before is visible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Double, Text, and_, delete, literal, or_, select, update
from sqlalchemy.sql import Executable

from comfyrelay.domain.ids import source_path
from comfyrelay.domain.queue.states import VideoStatus
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.row_parameters import columns_of, ids_table, insert_into, rows_table, with_ids, with_rows
from comfyrelay.store.tenant.tables import ai_jobs, files, orphaned_outputs, videos
from comfyrelay.store.types import relay_now

_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]


@dataclass(frozen=True, kw_only=True, slots=True)
class OldVideo:
    id: str
    tenant_id: str
    job_id: str | None
    original_file_id: str | None
    processed_file_id: str | None
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """A finished job whose leases may have left orphaned outputs."""

    job_id: str
    tenant_id: str


_OLD = [videos.c[name] for name in OldVideo.__dataclass_fields__]


async def old_videos(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[OldVideo]:
    """Return videos that have not changed for this long and have no unfinished job, by id."""
    query = (
        select(*_OLD)
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
    return await tx.all(OldVideo, query)


async def files_by_id(tx: Tx, file_ids: Iterable[str]) -> list[FileRecord]:
    return [FileRecord(**row._mapping) for row in await tx.fetch(_files_by_id, with_ids(file_ids))]


@cache
def _files_by_id(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    return select(*_FILE).join(r, files.c.id == r.c.id)


async def expire(tx: Tx, old: Sequence[OldVideo]) -> set[str]:
    """Expire the videos that have not changed since they were read; returns their ids."""
    rows = [{"id": each.id, "updated_at": each.updated_at} for each in old]
    return {row.id for row in await tx.fetch(_expire, with_rows(rows))}


@cache
def _expire(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(videos, "id", "updated_at"))
    values: Mapping[str, Any] = {
        "status": VideoStatus.EXPIRED,
        "processed_file_id": None,
        "processing_details": None,
        "updated_at": relay_now(),
    }
    same = and_(videos.c.id == r.c.id, videos.c.updated_at == r.c.updated_at)
    return update(videos).values(values).where(same).returning(videos.c.id)


async def mark(tx: Tx, file_ids: Iterable[str]) -> None:
    """Mark files for deletion, except those that a video still shows."""
    await tx.write(_mark, with_ids(file_ids))


@cache
def _mark(dialect: str) -> Executable:
    r = ids_table(dialect, Text)
    chosen = and_(files.c.id.in_(select(r.c.id)), files.c.removing_at.is_(None), ~_shown())
    return update(files).values(removing_at=relay_now()).where(chosen)


def _shown() -> Any:
    shows = and_(videos.c.original_file_id == files.c.id, videos.c.status != VideoStatus.EXPIRED)
    return select(literal(1)).where(shows).exists()


async def unused_uploads(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[tuple[str, bool]]:
    """Return uploads that no job has used for this long, by id, and whether a video was made from them."""
    made_of = select(literal(1)).where(videos.c.original_file_id == files.c.id).exists()
    named = select(literal(1)).where(ai_jobs.c.input_file_id == files.c.id).exists()
    query = (
        select(files.c.id, or_(made_of, named).label("is_used"))
        .where(
            files.c.used_at.is_(None),
            files.c.removing_at.is_(None),
            files.c.id > after_id,
            files.c.created_at <= relay_now(-older_than_seconds),
        )
        .order_by(files.c.id)
        .limit(limit)
    )
    return [(row.id, bool(row.is_used)) for row in await tx.execute(query)]


async def note_used(tx: Tx, file_ids: Iterable[str]) -> None:
    """Record that these files are used, and unmark them."""
    values = {"used_at": relay_now(), "removing_at": None}
    await tx.execute(update(files).where(files.c.id.in_(list(file_ids))).values(values))


async def marked(tx: Tx, *, older_than_seconds: float, after_id: str, limit: int) -> list[tuple[FileRecord, bool]]:
    """Return files that were marked this long ago, by id, and whether they are used."""
    used_since = and_(files.c.used_at.is_not(None), files.c.used_at >= files.c.removing_at)
    query = (
        select(*_FILE, or_(used_since, _shown()).label("is_used"))
        .where(
            files.c.removing_at.is_not(None),
            files.c.id > after_id,
            files.c.removing_at <= relay_now(-older_than_seconds),
        )
        .order_by(files.c.id)
        .limit(limit)
    )
    return [
        (FileRecord(**{name: row._mapping[name] for name in FileRecord.__dataclass_fields__}), bool(row.is_used))
        for row in await tx.execute(query)
    ]


async def forget_originals(tx: Tx, file_ids: Iterable[str]) -> None:
    """Remove the original files from expired videos."""
    await tx.execute(update(videos).where(videos.c.original_file_id.in_(list(file_ids))).values(original_file_id=None))


async def write_stray(tx: Tx, strays: Iterable[Stray], *, after_seconds: float) -> None:
    """Schedule the search for orphaned outputs of these jobs, for when late uploads have ended."""
    rows = ({"job_id": stray.job_id, "tenant_id": stray.tenant_id, "after_seconds": after_seconds} for stray in strays)
    await tx.write(_write_stray, with_rows(rows))


@cache
def _write_stray(dialect: str) -> Executable:
    r = rows_table(dialect, {**columns_of(orphaned_outputs, "job_id", "tenant_id"), "after_seconds": Double()})
    rows = select(r.c.job_id, r.c.tenant_id, relay_now(r.c.after_seconds)).where(literal(1) == 1)
    query = insert_into(dialect, orphaned_outputs).from_select(["job_id", "tenant_id", "due_at"], rows)
    return query.on_conflict_do_nothing()


async def due_strays(tx: Tx, *, limit: int) -> list[Stray]:
    s = orphaned_outputs
    query = select(s.c.job_id, s.c.tenant_id).where(s.c.due_at <= relay_now()).order_by(s.c.due_at).limit(limit)
    return await tx.all(Stray, query)


async def known_paths(tx: Tx, disk: str, paths: Iterable[str]) -> set[str]:
    """Return the paths that belong to a file or to its poster or preview."""
    shown = {path: source_path(path) for path in paths}
    query = select(files.c.path).where(files.c.disk == disk, files.c.path.in_(sorted(set(shown.values()))))
    known = set(await tx.scalars(query))
    return {path for path, file in shown.items() if file in known}


async def forget_strays(tx: Tx, job_ids: Iterable[str]) -> None:
    await tx.execute(delete(orphaned_outputs).where(orphaned_outputs.c.job_id.in_(list(job_ids))))
