"""Delete jobs, videos and files of a tenant: rows at once, objects as soon as storage is reachable.

The caller holds the lock of the wallet, like a submission, so that no file of an unfinished job is deleted.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import ColumnElement, Text, cast, delete, insert, or_, select, update

from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import changes, ledger
from comfyrelay.store.tenant.tables import ai_jobs, files, job_attempts, job_events, outputs, removals, videos
from comfyrelay.store.types import relay_now

# Maximum time for drawing the poster of a claimed file.
DRAW_SECONDS = 600.0
# Paths per statement. SQLite limits the depth of an expression to 1,000.
MAX_PATHS = 200
_NONE: Mapping[str, float] = MappingProxyType({})


class Removal(NamedTuple):
    """An object that must still be deleted from storage."""

    id: int
    path: str


async def of_video(tx: Tx, tenant_id: str, video_id: str) -> list[str]:
    """Return the outputs of all jobs of a video."""
    j = ai_jobs.c
    query = select(outputs.c.id).join(ai_jobs, j.id == outputs.c.job_id)
    return await tx.scalars(query.where(j.tenant_id == tenant_id, j.video_id == video_id))


async def has_unfinished_job(
    tx: Tx, tenant_id: str, found: Sequence[FileRecord], *, video_id: str | None = None
) -> bool:
    """Return whether an unfinished job uses one of the files or the video."""
    # Payloads contain the paths of inputs. A tenant has few unfinished jobs.
    payload = cast(ai_jobs.c.input_payload, Text)
    is_unfinished = (ai_jobs.c.tenant_id == tenant_id) & ai_jobs.c.completed_at.is_(None)
    uses: list[ColumnElement[bool]] = [ai_jobs.c.input_file_id.in_([file.id for file in found])]
    if video_id is not None:
        uses.append(ai_jobs.c.video_id == video_id)
    for start in range(0, len(found), MAX_PATHS):
        chunk = found[start : start + MAX_PATHS]
        uses.append(or_(*(payload.contains(file.path, autoescape=True) for file in chunk)))
    for use in uses:
        if await tx.exists(select(ai_jobs.c.id).where(is_unfinished, use).limit(1)):
            return True
    return False


async def used_by_videos(tx: Tx, file_ids: Iterable[str], *, except_video: str | None = None) -> set[str]:
    """Return the files that a video other than `except_video` was made from."""
    query = select(videos.c.original_file_id).where(videos.c.original_file_id.in_(list(file_ids)))
    if except_video is not None:
        query = query.where(videos.c.id != except_video)
    return set(await tx.scalars(query))


async def remove_video(tx: Tx, tenant_id: str, video_id: str) -> None:
    own = (ai_jobs.c.tenant_id == tenant_id) & (ai_jobs.c.video_id == video_id)
    await tx.execute(update(ai_jobs).where(own).values(video_id=None))
    await tx.execute(delete(videos).where(videos.c.tenant_id == tenant_id, videos.c.id == video_id))


async def remove_jobs(tx: Tx, tenant_id: str, job_ids: Collection[str]) -> None:
    """Delete jobs with their history. A retry of a deleted job becomes the first of its chain. Videos lose the job."""
    if not job_ids:
        return
    await tx.execute(update(ai_jobs).where(ai_jobs.c.retry_of.in_(job_ids)).values(retry_of=None))
    is_of_job = (videos.c.tenant_id == tenant_id) & videos.c.job_id.in_(job_ids) & (videos.c.status != "expired")
    reset = {"job_id": None, "processed_file_id": None, "processing_details": None, "status": "uploaded"}
    await tx.execute(update(videos).where(is_of_job).values(**reset, updated_at=relay_now()))
    for history in (job_events, job_attempts, outputs):
        await tx.execute(delete(history).where(history.c.tenant_id == tenant_id, history.c.job_id.in_(job_ids)))
    own = (ai_jobs.c.tenant_id == tenant_id) & ai_jobs.c.id.in_(job_ids)
    removed = (await tx.execute(delete(ai_jobs).where(own).returning(ai_jobs.c.batch_id, ai_jobs.c.space_bytes))).all()
    if space := sum(row.space_bytes or 0 for row in removed):
        await ledger.take_space(tx, tenant_id, -space)
    await changes.write(tx, {tenant_id: [*job_ids, *sorted({row.batch_id for row in removed if row.batch_id})]})


async def remove_outputs(tx: Tx, tenant_id: str, output_ids: Collection[str], job_ids: Collection[str]) -> None:
    """Delete outputs of jobs that keep other outputs. The first remaining output becomes the cover of job and video."""
    own = (outputs.c.tenant_id == tenant_id) & outputs.c.id.in_(output_ids)
    await tx.execute(delete(outputs).where(own))
    first = select(outputs.c.id).order_by(outputs.c.number).limit(1)
    lost_cover = (ai_jobs.c.tenant_id == tenant_id, ai_jobs.c.id.in_(job_ids), ai_jobs.c.output_file_id.in_(output_ids))
    cover = first.where(outputs.c.job_id == ai_jobs.c.id).scalar_subquery()
    await tx.execute(update(ai_jobs).where(*lost_cover).values(output_file_id=cover))
    cover = first.where(outputs.c.job_id == videos.c.job_id).scalar_subquery()
    is_shown = (videos.c.tenant_id == tenant_id, videos.c.processed_file_id.in_(output_ids))
    await tx.execute(update(videos).where(*is_shown).values(processed_file_id=cover, updated_at=relay_now()))
    await changes.write(tx, {tenant_id: job_ids})
    await changes.write_marked(tx, tenant_id, output_ids)


async def remove_files(
    tx: Tx, tenant_id: str, file_ids: Sequence[str], paths: Iterable[str], *, again: Mapping[str, float] = _NONE
) -> list[Removal]:
    """Delete the rows of files, and record their objects for deletion.

    References to them as outputs remain; a deleted file is simply not found. A process may still write a poster next to
    a deleted file and then crash, so such a file is deleted again later, like the paths in `again` after some seconds.
    """
    without_poster = select(files.c.path).where(files.c.id.in_(file_ids), files.c.poster_due_at.is_not(None))
    later = [*again.items(), *((path, DRAW_SECONDS) for path in await tx.scalars(without_poster))]
    is_input = (ai_jobs.c.tenant_id == tenant_id) & ai_jobs.c.input_file_id.in_(file_ids)
    await tx.execute(update(ai_jobs).where(is_input).values(input_file_id=None))
    await tx.execute(delete(files).where(files.c.tenant_id == tenant_id, files.c.id.in_(file_ids)))
    rows = [{"tenant_id": tenant_id, "path": path, "created_at": relay_now()} for path in sorted(set(paths))]
    if not rows:
        return []
    if later:
        repeated = [{"tenant_id": tenant_id, "path": path, "created_at": relay_now(seconds)} for path, seconds in later]
        await tx.execute(insert(removals).values(repeated))
    return await tx.all(Removal, insert(removals).values(rows).returning(removals.c.id, removals.c.path))


async def schedule(tx: Tx, tenant_id: str, paths: Iterable[str], *, after_seconds: float) -> list[int]:
    """Schedule the deletion of objects after this time, unless the returned entries are finished before."""
    rows = [{"tenant_id": tenant_id, "path": path, "created_at": relay_now(after_seconds)} for path in paths]
    return await tx.scalars(insert(removals).values(rows).returning(removals.c.id))


async def pending(tx: Tx, *, limit: int, older_than_seconds: float) -> list[Removal]:
    query = select(removals.c.id, removals.c.path).where(removals.c.created_at <= relay_now(-older_than_seconds))
    return await tx.all(Removal, query.order_by(removals.c.id).limit(limit))


async def finish(tx: Tx, ids: Iterable[int]) -> None:
    """Delete the records of objects that were deleted from storage."""
    await tx.execute(delete(removals).where(removals.c.id.in_(list(ids))))
