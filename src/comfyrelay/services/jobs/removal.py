"""Remove videos and jobs with their files.

One transaction deletes the rows and records the objects to remove. Objects that cannot be removed immediately, for
example because storage is unreachable, are removed later.
"""

from asyncio import gather
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import structlog

from comfyrelay.domain.ids import derived_paths, job_folder
from comfyrelay.domain.outputs import split_copies
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.states import TERMINAL_JOB
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.domain.uploads import tenant_of_upload
from comfyrelay.errors import ComfyRelayError, Conflict, DatabaseUnavailable, NotFound
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.hooks import RemovedFiles
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import jobs, ledger, removals
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.store.tenant.removals import Removal

log = structlog.get_logger(__name__)

CHUNK_SIZE = 500
# During this time, only the process that recorded a removal removes the object.
GRACE_SECONDS = 60.0
Work = Callable[[Tx], Awaitable[list[Removal]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedJobs:
    """Number of removed jobs, their files, and the errors of jobs that were not removed."""

    count: int
    files: RemovedFiles
    refused: Mapping[str, ComfyRelayError]


IN_USE = "An unfinished job still needs this: cancel the job or wait until it is done."


class Removals:
    def __init__(self, context: ServiceContext) -> None:
        self._databases = context.databases
        self._objects = context.objects
        self._on_removing = context.hooks.on_removing
        self._on_removed = context.hooks.on_removed
        self._url_seconds = context.settings.presigned_ttl_seconds

    async def remove_video(self, tenant_id: str, video_id: str) -> None:
        """Remove a video, its original file and all outputs that jobs made from it."""

        async def work(tx: Tx) -> list[Removal]:
            await ledger.lock_wallet(tx, tenant_id)
            video = await media.video(tx, tenant_id, video_id)
            if video is None:
                raise NotFound(f"There is no video {video_id!r}.")
            named = {video.original_file_id, video.processed_file_id, *await removals.of_video(tx, tenant_id, video_id)}
            return await _remove_files(
                tx, tenant_id, [id_ for id_ in named if id_], video_id=video_id, url_seconds=self._url_seconds
            )

        await self._run(tenant_id, work)

    async def remove_upload(self, tenant_id: str, file_id: str) -> None:
        """Remove an uploaded file. Raises `Conflict` if a video or an unfinished job needs it."""

        async def work(tx: Tx) -> list[Removal]:
            await ledger.lock_wallet(tx, tenant_id)
            found = await media.files_of(tx, tenant_id, [file_id])
            if file_id not in found or tenant_of_upload(found[file_id].path) is None:
                raise NotFound("You have no such upload.")
            if await removals.used_by_videos(tx, [file_id]):
                raise Conflict("A video was made from this upload: delete the video instead.")
            return await _remove_files(tx, tenant_id, [file_id], url_seconds=self._url_seconds)

        await self._run(tenant_id, work)

    async def remove_job(self, tenant_id: str, job_id: str, *, keep_files: bool = False) -> RemovedFiles:
        """Remove an ended job with its history and outputs, but not its ledger entries.

        Returns the result for files outside object storage; `keep_files` leaves them in place.
        """
        done = await self.remove_jobs(tenant_id, [job_id], keep_files=keep_files)
        for error in done.refused.values():
            raise error
        return done.files

    async def remove_jobs(self, tenant_id: str, job_ids: Sequence[str], *, keep_files: bool = False) -> RemovedJobs:
        """Remove several jobs in one transaction, except refused jobs."""
        return await _in_halves(job_ids, lambda half: self._remove_jobs(tenant_id, half, keep_files=keep_files))

    async def remove_outputs(
        self, tenant_id: str, output_ids: Mapping[str, Collection[str]], *, keep_files: bool = False
    ) -> RemovedJobs:
        """Remove some outputs of jobs, given by job id. The first remaining output of each job becomes its cover."""
        return await _in_halves(
            list(output_ids),
            lambda half: self._remove_outputs(tenant_id, {id_: output_ids[id_] for id_ in half}, keep_files=keep_files),
        )

    async def _remove_outputs(
        self, tenant_id: str, output_ids: Mapping[str, Collection[str]], *, keep_files: bool
    ) -> RemovedJobs:
        removed: list[Attempt] = []

        async def work(tx: Tx) -> list[Removal]:
            await ledger.lock_wallet(tx, tenant_id)
            found = await gallery.of_jobs(tx, tenant_id, output_ids)
            chosen = {job_id: {id_ for id_ in of_job if id_ in output_ids[job_id]} for job_id, of_job in found.items()}
            named = [id_ for ids in chosen.values() for id_ in ids]
            numbers = {job_id: {found[job_id][id_] for id_ in ids} for job_id, ids in chosen.items()}
            kept, removed[:] = split_copies(await jobs.attempts_of(tx, list(chosen)), numbers)
            objects = await _remove_files(tx, tenant_id, named)
            await removals.remove_outputs(tx, tenant_id, named, list(chosen))
            await jobs.write_attempts(tx, kept)
            if self._on_removing is not None:
                await self._on_removing(removed, keep_files)
            return objects

        await self._run(tenant_id, work)
        files = RemovedFiles()
        if removed and self._on_removed is not None and not keep_files:
            files = await self._on_removed(removed)
        return RemovedJobs(count=len(output_ids), files=files, refused={})

    async def _remove_jobs(self, tenant_id: str, job_ids: Sequence[str], *, keep_files: bool) -> RemovedJobs:
        removable: list[str] = []
        attempts: list[Attempt] = []
        refused: dict[str, ComfyRelayError] = {}
        # Leases that ended without a result may have left objects.
        paths = await gather(*(self._list_paths(tenant_id, job_id) for job_id in job_ids))
        leftovers = dict(zip(job_ids, paths, strict=True))

        async def work(tx: Tx) -> list[Removal]:
            await ledger.lock_wallet(tx, tenant_id)
            found = {job.id: job for job in await jobs.by_ids(tx, job_ids) if job.tenant_id == tenant_id}
            errors = {job_id: _removal_error(job_id, found.get(job_id)) for job_id in job_ids}
            refused.clear()
            refused.update({job_id: error for job_id, error in errors.items() if error is not None})
            removable[:] = [job_id for job_id in job_ids if job_id not in refused]
            named = [id_ for ids in (await gallery.of_jobs(tx, tenant_id, removable)).values() for id_ in ids]
            attempts[:] = await jobs.attempts_of(tx, removable)
            left = chain.from_iterable(leftovers[job_id] for job_id in removable)
            removed = await _remove_files(tx, tenant_id, named, leftovers=left)
            payloads = await jobs.payloads(tx, removable)
            await removals.remove_jobs(tx, tenant_id, removable)
            inputs = {asset["path"] for payload in payloads.values() for asset in payload["assets"]}
            await media.release_files(tx, tenant_id, inputs)
            if self._on_removing is not None:
                await self._on_removing(attempts, keep_files)
            return removed

        await self._run(tenant_id, work)
        files = RemovedFiles()
        if removable and self._on_removed is not None and not keep_files:
            files = await self._on_removed(attempts)
        return RemovedJobs(count=len(removable), files=files, refused=refused)

    async def _list_paths(self, tenant_id: str, job_id: str) -> list[str]:
        return [stored.path async for stored in self._objects.list(job_folder(tenant_id, job_id))]

    async def run_once(self, *, grace_seconds: float = GRACE_SECONDS) -> int:
        """Remove the recorded objects and return how many there were."""
        done = 0
        for name in self._databases.shards:
            try:
                async with self._databases.shard(name).read() as tx:
                    found = await removals.pending(tx, limit=CHUNK_SIZE, older_than_seconds=grace_seconds)
                await self._remove_objects(self._databases.shard(name), found)
                done += len(found)
            except DatabaseUnavailable:
                log.info("removal.shard_down", shard=name)
        return done

    async def _run(self, tenant_id: str, work: Work) -> None:
        shard = await self._databases.shard_of(tenant_id)
        removed = await shard.run(TransactionStep.REMOVE, work)
        try:
            await self._remove_objects(shard, removed)
        except Exception:
            # The rows are deleted, and the recorded objects will be removed later, so the call succeeds.
            log.warning("removal.postponed", shard=shard.name, objects=len(removed), exc_info=True)

    async def _remove_objects(self, shard: Database, found: Sequence[Removal]) -> None:
        if found:
            await self._objects.remove_many(
                [path for removal in found for path in (removal.path, *derived_paths(removal.path))]
            )
            await shard.run(TransactionStep.REMOVE_FORGET, lambda tx: removals.finish(tx, [row.id for row in found]))


async def _in_halves(job_ids: Sequence[str], work: Callable[[Sequence[str]], Awaitable[RemovedJobs]]) -> RemovedJobs:
    """Run a removal for several jobs. If a file of at least one job is in use, bisect, so that the others are
    removed."""
    try:
        return await work(job_ids)
    except Conflict as error:
        if len(job_ids) == 1:
            return RemovedJobs(count=0, files=RemovedFiles(), refused={job_ids[0]: error})
    half = len(job_ids) // 2
    first, second = await _in_halves(job_ids[:half], work), await _in_halves(job_ids[half:], work)
    return RemovedJobs(
        count=first.count + second.count,
        files=RemovedFiles(
            removed=[*first.files.removed, *second.files.removed],
            not_deleted=[*first.files.not_deleted, *second.files.not_deleted],
        ),
        refused={**first.refused, **second.refused},
    )


def _removal_error(job_id: str, job: JobRecord | None) -> ComfyRelayError | None:
    if job is None:
        return NotFound(f"There is no job {job_id!r}.")
    if job.status not in TERMINAL_JOB:
        return Conflict(f"Only a job that has ended can be deleted; this one is {job.status}.")
    return None


async def _remove_files(
    tx: Tx,
    tenant_id: str,
    file_ids: Sequence[str],
    *,
    video_id: str | None = None,
    leftovers: Iterable[str] = (),
    url_seconds: float = 0,
) -> list[Removal]:
    """Remove files that no video needs. Uploads are removed again after `url_seconds`, because their URLs are valid
    until then."""
    found = await media.files_of(tx, tenant_id, file_ids)
    used = await removals.used_by_videos(tx, found, except_video=video_id)
    removable = [file for file in found.values() if file.id not in used]
    if await removals.has_unfinished_job(tx, tenant_id, removable, video_id=video_id):
        raise Conflict(IN_USE)
    if video_id is not None:
        await removals.remove_video(tx, tenant_id, video_id)
    kept_paths = {path for id_ in used for path in (found[id_].path, *derived_paths(found[id_].path))}
    paths = {*leftovers, *(file.path for file in removable)} - kept_paths
    again = {file.path: url_seconds for file in removable if url_seconds and tenant_of_upload(file.path) is not None}
    return await removals.remove_files(tx, tenant_id, [file.id for file in removable], paths, again=again)
