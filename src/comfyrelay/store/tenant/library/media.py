"""Files, videos and batches of a tenant."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Text,
    bindparam,
    case,
    func,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql import Executable

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.queue.settlement import BatchHold
from comfyrelay.domain.records.jobs import BatchRecord, FileRecord, VideoRecord
from comfyrelay.domain.uploads import UploadUsage
from comfyrelay.store.database import Tx
from comfyrelay.store.paging import newest
from comfyrelay.store.row_parameters import (
    columns_of,
    insert_rows,
    insert_selected,
    rows_table,
    select_by_ids,
    with_ids,
    with_rows,
)
from comfyrelay.store.tenant.tables import ai_jobs, batches, files, outputs, videos
from comfyrelay.store.types import json_value, relay_now


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoChange:
    """A change of a video by its job. The change applies only while the job is the newest of its retry chain."""

    id: str
    job_id: str
    status: str
    processed_file_id: str | None = None
    processing_details: Mapping[str, Any] | None = None


_FILE = [files.c[name] for name in FileRecord.__dataclass_fields__]
_VIDEO = [videos.c[name] for name in VideoRecord.__dataclass_fields__]
_BATCH = [batches.c[name] for name in BatchRecord.__dataclass_fields__]
_NEW_FILE = (
    *("id", "tenant_id", "user_id", "disk", "path", "mime_type", "size", "content_hash", "blake3"),
    "original_filename",
)
_OUTPUT = (
    *("id", "tenant_id", "user_id", "disk", "path", "mime_type", "size", "content_hash", "metadata"),
    *("width", "height", "seconds", "poster", "preview"),
)


async def upload_usage(tx: Tx, tenant_id: str, *, folder: str = "") -> UploadUsage:
    """Return the number and size of a tenant's uploads, optionally only below a storage path. Uploads that are being
    removed count, too."""
    total = func.coalesce(func.sum(files.c.size), 0).cast(BigInteger)
    query = select(func.count().label("files"), total.label("bytes")).where(*_is_upload(tenant_id))
    if folder:
        query = query.where(files.c.path.startswith(folder, autoescape=True))
    return await tx.one(UploadUsage, query)


async def upload_page(
    tx: Tx, tenant_id: str, *, before_id: str | None = None, limit: int = 50
) -> list[tuple[FileRecord, bool]]:
    """Return a page of a tenant's uploads, newest first, each with whether a job has used it."""
    query = select(*_FILE, files.c.used_at.is_not(None).label("is_used"))
    query = query.where(*_is_upload(tenant_id), files.c.removing_at.is_(None))
    return await tx.all(
        lambda *, is_used, **fields: (FileRecord(**fields), bool(is_used)),
        newest(query, files.c.id, before=before_id, limit=limit),
    )


def _is_upload(tenant_id: str) -> tuple[ColumnElement[bool], ...]:
    return files.c.tenant_id == tenant_id, files.c.original_filename.is_not(None)


async def create_files(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    await tx.write(_create_files, with_rows(rows))


@cache
def _create_files(dialect: str) -> Executable:
    return insert_rows(dialect, files, *_NEW_FILE, created_at=relay_now())


async def files_of(tx: Tx, tenant_id: str, file_ids: Iterable[str]) -> dict[str, FileRecord]:
    """Return the tenant's files with all fields."""
    rows = await tx.fetch(_files_of, {**with_ids(file_ids), "tenant_id": tenant_id})
    return {row.id: FileRecord(**row._mapping) for row in rows}


@cache
def _files_of(dialect: str) -> Executable:
    own = files.c.tenant_id == bindparam("tenant_id", type_=Text())
    return select_by_ids(dialect, files.c.id, *_FILE).where(own, files.c.removing_at.is_(None))


async def ids_at(tx: Tx, tenant_id: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the ids of the tenant's files by path."""
    if not paths:
        return {}
    query = select(files.c.path, files.c.id).where(files.c.tenant_id == tenant_id, files.c.path.in_(paths))
    return {row.path: row.id for row in await tx.execute(query.where(files.c.removing_at.is_(None)))}


async def by_blake3(tx: Tx, tenant_id: str, blake3: str) -> FileRecord | None:
    """Return the tenant's newest upload with this content."""
    is_same = (files.c.tenant_id == tenant_id) & (files.c.blake3 == blake3) & files.c.blake3.is_not(None)
    query = select(*_FILE).where(is_same, files.c.removing_at.is_(None))
    return await tx.one_or_none(FileRecord, query.order_by(files.c.id.desc()).limit(1))


async def by_names(tx: Tx, tenant_id: str, names: Collection[str]) -> dict[str, FileRecord]:
    """Return the tenant's newest upload with each of these names."""
    if not names:
        return {}
    query = select(*_FILE).where(*_is_upload(tenant_id), files.c.original_filename.in_(names))
    found = await tx.all(FileRecord, query.where(files.c.removing_at.is_(None)).order_by(files.c.id))
    return {file.original_filename or "": file for file in found}


async def upload_names(tx: Tx, tenant_id: str, *, limit: int) -> dict[str, str]:
    """Return the names of the tenant's newest uploads, with the media type of each."""
    query = select(files.c.original_filename, files.c.mime_type).where(*_is_upload(tenant_id))
    rows = await tx.execute(query.where(files.c.removing_at.is_(None)).order_by(files.c.id.desc()).limit(limit))
    return {row.original_filename: row.mime_type for row in rows}


async def job_of_output(tx: Tx, tenant_id: str, file_id: str) -> str | None:
    """Return the job that made a file."""
    query = select(outputs.c.job_id).where(outputs.c.id == file_id, outputs.c.tenant_id == tenant_id)
    found: str | None = await tx.scalar(query)
    return found


async def metadata_of(tx: Tx, tenant_id: str, file_ids: Iterable[str]) -> dict[str, Mapping[str, Any] | None]:
    query = select(files.c.id, files.c.metadata).where(files.c.id.in_(list(file_ids)), files.c.tenant_id == tenant_id)
    return {row.id: row.metadata for row in await tx.execute(query)}


async def stored_files(tx: Tx, tenant_id: str, file_ids: Iterable[str]) -> dict[str, StoredFile]:
    """Return the tenant's files with the fields that payloads need."""
    rows = await tx.fetch(_stored_files, {**with_ids(file_ids), "tenant_id": tenant_id})
    return {row.id: StoredFile(**{**row._mapping, "is_used": bool(row.is_used)}) for row in rows}


@cache
def _stored_files(dialect: str) -> Executable:
    own = files.c.tenant_id == bindparam("tenant_id", type_=Text())
    names = ("id", "disk", "path", "mime_type", "content_hash", "size")
    is_used = files.c.used_at.is_not(None).label("is_used")
    columns = [*(files.c[name] for name in names), files.c.original_filename.label("name"), is_used]
    return select_by_ids(dialect, files.c.id, *columns).where(own, files.c.removing_at.is_(None))


async def write_outputs(tx: Tx, outputs: Sequence[Mapping[str, Any]]) -> None:
    await tx.write(_write_outputs, with_rows(outputs))


@cache
def _write_outputs(dialect: str) -> Executable:
    r = rows_table(dialect, {**columns_of(files, *_OUTPUT), "undrawn": Boolean()})
    due = case((r.c.undrawn, relay_now()))
    rows = select(*(r.c[name] for name in _OUTPUT), relay_now(), relay_now(), due)
    query = insert_selected(dialect, files, [*_OUTPUT, "created_at", "used_at", "poster_due_at"], rows)
    return query.on_conflict_do_nothing()


async def use_files(tx: Tx, tenant_id: str, paths: Iterable[str]) -> None:
    """Record that jobs use the files at these paths, so that uploads are kept and get a poster."""
    await tx.write(_use_files, {**with_rows({"path": path} for path in paths), "owner": tenant_id})


@cache
def _use_files(dialect: str) -> Executable:
    r = rows_table(dialect, {"path": Text()})
    own = files.c.tenant_id == bindparam("owner", type_=Text())
    # With a join, SQLite would scan all rows for each file, which takes half a minute for 5,000.
    is_given = files.c.disk.is_not(None) & files.c.path.in_(select(r.c.path))
    has_poster = or_(files.c.mime_type.startswith("image/"), files.c.mime_type.startswith("video/"))
    values = {"used_at": relay_now(), "unused_at": null(), "poster_due_at": case((has_poster, relay_now()))}
    return update(files).values(values).where(own, is_given, files.c.used_at.is_(None))


async def release_files(tx: Tx, tenant_id: str, paths: Collection[str]) -> None:
    """Record that jobs that used the uploads at these paths were deleted. Other jobs may still use the uploads."""
    is_output = select(outputs.c.id).where(outputs.c.id == files.c.id).exists()
    query = update(files).where(files.c.tenant_id == tenant_id, files.c.path.in_(paths), ~is_output)
    await tx.execute(query.values(used_at=None, unused_at=relay_now()))


async def create_video(tx: Tx, **values: Any) -> None:
    await tx.execute(insert(videos).values(**values, created_at=relay_now(), updated_at=relay_now()))


async def video(tx: Tx, tenant_id: str, video_id: str) -> VideoRecord | None:
    return (await videos_of(tx, tenant_id, [video_id])).get(video_id)


async def videos_of(tx: Tx, tenant_id: str, video_ids: Iterable[str]) -> dict[str, VideoRecord]:
    """Return the tenant's videos."""
    rows = await tx.fetch(_videos_of, {**with_ids(video_ids), "tenant_id": tenant_id})
    return {
        row.id: VideoRecord(**{**row._mapping, "processing_details": json_value(row.processing_details)})
        for row in rows
    }


@cache
def _videos_of(dialect: str) -> Executable:
    own = videos.c.tenant_id == bindparam("tenant_id", type_=Text())
    return select_by_ids(dialect, videos.c.id, *_VIDEO).where(own)


async def video_page(tx: Tx, tenant_id: str, *, before_id: str | None = None, limit: int = 50) -> list[VideoRecord]:
    """Return a page of a tenant's videos, newest first."""
    query = select(*_VIDEO).where(videos.c.tenant_id == tenant_id)
    return await tx.all(VideoRecord, newest(query, videos.c.id, before=before_id, limit=limit))


async def attach_job(tx: Tx, video_ids: Mapping[str, str]) -> None:
    """Set the jobs of videos: video id → job id."""
    rows = [{"id": video_id, "job_id": job_id} for video_id, job_id in video_ids.items()]
    await tx.write(_attach_job, with_rows(rows))


@cache
def _attach_job(dialect: str) -> Executable:
    r = rows_table(dialect, {"id": Text(), "job_id": Text()})
    values = {"job_id": r.c.job_id, "status": "queued", "processing_details": None, "updated_at": relay_now()}
    return update(videos).values(values).where(videos.c.id == r.c.id)


async def change_videos(tx: Tx, changes: Sequence[VideoChange]) -> None:
    await tx.write(_change_videos, with_rows(changes))


@cache
def _change_videos(dialect: str) -> Executable:
    r = rows_table(dialect, columns_of(videos, *VideoChange.__dataclass_fields__))
    return (
        update(videos)
        .values(
            status=r.c.status,
            processed_file_id=r.c.processed_file_id,
            processing_details=r.c.processing_details,
            updated_at=relay_now(),
        )
        # An expired video remains expired, even if a late job completes.
        .where(videos.c.id == r.c.id, videos.c.job_id == r.c.job_id, videos.c.status != "expired")
    )


async def videos_of_jobs(tx: Tx, job_ids: Iterable[str]) -> dict[str, VideoRecord]:
    """Return the videos of these jobs: job id → video."""
    query = select(*_VIDEO).where(videos.c.job_id.in_(list(job_ids)))
    return {row.job_id: VideoRecord(**row._mapping) for row in await tx.execute(query)}


async def create_batch(tx: Tx, **values: Any) -> BatchRecord:
    query = insert(batches).values(**values, created_at=relay_now()).returning(*_BATCH)
    return await tx.one(BatchRecord, query)


async def hold_batches(tx: Tx, holds: Sequence[BatchHold]) -> None:
    """Record why batches are held, with the failed jobs."""
    ids = {hold.batch_id for hold in holds}
    query = select(batches.c.id, batches.c.held).where(batches.c.id.in_(ids)).order_by(batches.c.id).with_for_update()
    for row in (await tx.execute(query)).all():
        held = row.held
        for hold in sorted(holds, key=attrgetter("at")):
            if hold.batch_id == row.id:
                held = hold.merge_into(held)
        await tx.execute(update(batches).where(batches.c.id == row.id).values(held=held))


async def release_batch(tx: Tx, tenant_id: str, batch_id: str) -> list[str]:
    """Release a batch. Return the failed jobs that held it."""
    own = (batches.c.tenant_id == tenant_id) & (batches.c.id == batch_id)
    held = await tx.scalar(select(batches.c.held).where(own).with_for_update())
    if held is None:
        return []
    await tx.execute(update(batches).where(own).values(held=None))
    return list(held["jobs"])


async def batch_page(tx: Tx, tenant_id: str, *, before_id: str | None = None, limit: int = 50) -> list[BatchRecord]:
    """Return a page of a tenant's batches, newest first."""
    query = select(*_BATCH).where(batches.c.tenant_id == tenant_id)
    return await tx.all(BatchRecord, newest(query, batches.c.id, before=before_id, limit=limit))


async def batch_axes(tx: Tx, tenant_id: str, batch_id: str) -> list[Mapping[str, Any]]:
    """Return the lists that the items of a batch combine. They may be long, so `BatchRecord` does not contain them."""
    query = select(batches.c.axes).where(batches.c.tenant_id == tenant_id, batches.c.id == batch_id)
    return list(await tx.scalar(query) or ())


async def batch_cells(tx: Tx, tenant_id: str, batch_id: str) -> dict[int, str]:
    """Return the first output of the newest job of each item."""
    # Jobs have an index by batch; outputs have one by job.
    query = (
        select(outputs.c.item_no, outputs.c.id)
        .join(ai_jobs, ai_jobs.c.id == outputs.c.job_id)
        .join(files, files.c.id == outputs.c.id)
        .where(ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.batch_id == batch_id, files.c.removing_at.is_(None))
        # Ids grow with time. The last row of an item wins.
        .order_by(outputs.c.job_id, outputs.c.number.desc())
    )
    return {row.item_no: row.id for row in (await tx.execute(query)).all()}


async def batches_of(tx: Tx, tenant_id: str, batch_ids: Iterable[str]) -> list[BatchRecord]:
    query = select(*_BATCH).where(batches.c.tenant_id == tenant_id, batches.c.id.in_(list(batch_ids)))
    return await tx.all(BatchRecord, query)


async def batch(tx: Tx, tenant_id: str, *, id_: str | None = None, key: str | None = None) -> BatchRecord | None:
    condition = batches.c.id == id_ if id_ is not None else batches.c.idempotency_key == key
    return await tx.one_or_none(BatchRecord, select(*_BATCH).where(batches.c.tenant_id == tenant_id, condition))
