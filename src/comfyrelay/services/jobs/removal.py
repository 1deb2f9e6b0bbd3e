"""Removing videos and jobs with their files. The rows go first, with a note of the objects; the objects follow.

Storage may be out of reach for a while: what is noted is removed later, and nothing is forgotten.
"""

from asyncio import gather
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from comfyrelay.domain.ids import beside, job_folder
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.states import TERMINAL_JOB
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import ComfyRelayError, Conflict, DatabaseUnavailable, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import jobs, ledger, removals
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.store.tenant.removals import Removal

log = structlog.get_logger(__name__)

AT_ONCE = 500
# Younger ones are still in the hands of the process that made them.
GRACE_SECONDS = 60.0
Work = Callable[[Tx], Awaitable[list[Removal]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedFiles:
    """Which files went with a job, and which could not be removed, each with why."""

    removed: Sequence[str] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedJobs:
    """How many are gone, what became of their files, and why others are not."""

    count: int
    files: RemovedFiles
    refused: Mapping[str, ComfyRelayError]


# Removes what only whoever runs the engine knows of the attempts of a job that was removed.
OnRemoved = Callable[[Sequence[Attempt]], Awaitable[RemovedFiles]]
IN_USE = "An unfinished job still needs this: cancel it, or wait until it is done."


class Removals:
    def __init__(self, databases: Databases, objects: ObjectStore, *, on_removed: OnRemoved | None = None) -> None:
        self._databases = databases
        self._objects = objects
        self._on_removed = on_removed

    async def remove_video(self, tenant_id: str, video_id: str) -> None:
        """Remove a video, the file it was made of and everything that jobs made of it."""

        async def work(tx: Tx) -> list[Removal]:
            await ledger.lock_wallet(tx, tenant_id)
            video = await media.video(tx, tenant_id, video_id)
            if video is None:
                raise NotFound(f"There is no video {video_id!r}.")
            named = {video.original_file_id, video.processed_file_id, *await removals.of_video(tx, tenant_id, video_id)}
            return await _remove_files(tx, tenant_id, [each for each in named if each], video_id=video_id)

        await self._run(tenant_id, work)

    async def remove_job(self, tenant_id: str, job_id: str, *, keep_files: bool = False) -> RemovedFiles:
        """Remove a job that has ended, with its history and its outputs. What it cost stays in the ledger.

        Returns what became of its other files; `keep_files` leaves those where they are.
        """
        done = await self.remove_jobs(tenant_id, [job_id], keep_files=keep_files)
        for error in done.refused.values():
            raise error
        return done.files

    async def remove_jobs(self, tenant_id: str, job_ids: Sequence[str], *, keep_files: bool = False) -> RemovedJobs:
        """The same for several, together, but for those that are refused."""
        try:
            return await self._remove_jobs(tenant_id, job_ids, keep_files=keep_files)
        except Conflict as error:
            if len(job_ids) == 1:
                return RemovedJobs(count=0, files=RemovedFiles(), refused={job_ids[0]: error})
        # something that one of them made is in use, and the others go
        half = len(job_ids) // 2
        first = await self.remove_jobs(tenant_id, job_ids[:half], keep_files=keep_files)
        second = await self.remove_jobs(tenant_id, job_ids[half:], keep_files=keep_files)
        return RemovedJobs(
            count=first.count + second.count,
            files=RemovedFiles(
                removed=[*first.files.removed, *second.files.removed], left=[*first.files.left, *second.files.left]
            ),
            refused={**first.refused, **second.refused},
        )

    async def _remove_jobs(self, tenant_id: str, job_ids: Sequence[str], *, keep_files: bool) -> RemovedJobs:
        going: list[str] = []
        attempts: list[Attempt] = []
        refused: dict[str, ComfyRelayError] = {}
        # leases that ended without a result may have left something, too
        leftovers = dict(
            zip(job_ids, await gather(*(self._paths_of(tenant_id, each) for each in job_ids)), strict=True)
        )

        async def work(tx: Tx) -> list[Removal]:
            await ledger.lock_wallet(tx, tenant_id)
            found = {each.id: each for each in await jobs.by_ids(tx, job_ids) if each.tenant_id == tenant_id}
            refused.clear()
            refused.update({each: why for each in job_ids if (why := _why_not(each, found.get(each))) is not None})
            going[:] = [each for each in job_ids if each not in refused]
            named = await gallery.of_jobs(tx, tenant_id, going)
            attempts[:] = await jobs.attempts_of(tx, going)
            paths = [path for job_id in going for path in leftovers[job_id]]
            removed = await _remove_files(tx, tenant_id, named, leftovers=paths)
            await removals.remove_jobs(tx, tenant_id, going)
            return removed

        await self._run(tenant_id, work)
        files = RemovedFiles()
        if going and self._on_removed is not None and not keep_files:
            files = await self._on_removed(attempts)
        return RemovedJobs(count=len(going), files=files, refused=refused)

    async def _paths_of(self, tenant_id: str, job_id: str) -> list[str]:
        return [each.path async for each in self._objects.list(job_folder(tenant_id, job_id))]

    async def run_once(self, *, grace_seconds: float = GRACE_SECONDS) -> int:
        """Remove the objects that are still noted; returns how many there were."""
        done = 0
        for name in self._databases.shards:
            try:
                async with self._databases.shard(name).read() as tx:
                    found = await removals.pending(tx, limit=AT_ONCE, older_than_seconds=grace_seconds)
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
            # the rows are gone, which is what the caller was promised; the objects are noted
            log.warning("removal.postponed", shard=shard.name, objects=len(removed), exc_info=True)

    async def _remove_objects(self, shard: Database, found: Sequence[Removal]) -> None:
        if found:
            await self._objects.remove_many(
                [path for removal in found for path in (removal.path, *beside(removal.path))]
            )
            await shard.run(TransactionStep.REMOVE_FORGET, lambda tx: removals.finish(tx, [each.id for each in found]))


def _why_not(job_id: str, job: JobRecord | None) -> ComfyRelayError | None:
    if job is None:
        return NotFound(f"There is no job {job_id!r}.")
    if job.status not in TERMINAL_JOB:
        return Conflict(f"Only a job that has ended can be deleted; this one is {job.status}.")
    return None


async def _remove_files(
    tx: Tx, tenant_id: str, file_ids: Sequence[str], *, video_id: str | None = None, leftovers: Iterable[str] = ()
) -> list[Removal]:
    found = await media.files_of(tx, tenant_id, file_ids)
    kept = await removals.keep(tx, found, beside=video_id)
    going = [each for each in found.values() if each.id not in kept]
    if await removals.has_live_job(tx, tenant_id, going, video_id=video_id):
        raise Conflict(IN_USE)
    if video_id is not None:
        await removals.remove_video(tx, tenant_id, video_id)
    staying = {path for id_ in kept for path in (found[id_].path, *beside(found[id_].path))}
    paths = {*leftovers, *(each.path for each in going)} - staying
    return await removals.remove_files(tx, tenant_id, [each.id for each in going], paths)
