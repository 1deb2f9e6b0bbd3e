"""Expire old videos and remove unused files and graphs, but never a file of an active job.

A file is removed in steps that survive a crash. First, its row is marked, so that no new job can use the file. After a
grace period, when every use of the file is visible, a removal record replaces the row. Then the object and the record
are deleted.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import structlog

from comfyrelay.domain.ids import job_folder
from comfyrelay.domain.records.jobs import FileRecord, VideoRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.catalogue.assets import Assets
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.catalogue.private_graphs import PrivateGraphs
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.queue.previews import PreviewService
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import LocalObjects, ObjectStore
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import changes, removals, retention
from comfyrelay.store.tenant.retention import OrphanSearch, UnusedUpload

log = structlog.get_logger(__name__)

BATCH_SIZE = 500
MAX_CONCURRENT_LISTINGS = 8
# Longer than any submission takes, and longer than download URLs are valid.
GRACE_SECONDS = 1800.0
# Subscribers that reconnect later than this must reload.
CHANGES_SECONDS = 3600.0

File = TypeVar("File", FileRecord, UnusedUpload)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionResult:
    """The numbers of things that one run has removed."""

    expired: int = 0
    unused: int = 0
    removed: int = 0
    orphans: int = 0
    definitions: int = 0
    graphs: int = 0
    previews: int = 0
    assets: int = 0


class Retention:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        removing: Removals,
        definitions: NodeDefinitionService,
        previews: PreviewService,
        *,
        graphs: PrivateGraphs,
        assets: Assets,
        delete_old: Sequence[Callable[[], Awaitable[None]]] = (),
        disk: str,
        retention_days: float | None,
        unused_upload_hours: float,
    ) -> None:
        """Without `retention_days`, videos never expire. `delete_old` are cleanup functions of other services."""
        self._databases = databases
        self._objects = objects
        self._removing = removing
        self._definitions = definitions
        self._graphs = graphs
        self._assets = assets
        self._previews = previews
        self._delete_old = delete_old
        self._disk = disk
        self.configure(retention_days=retention_days, unused_upload_hours=unused_upload_hours)

    def configure(self, *, retention_days: float | None, unused_upload_hours: float) -> None:
        """Change the limits, starting with the next run."""
        self._video_seconds = retention_days * 86400 if retention_days is not None else None
        self._unused_seconds = unused_upload_hours * 3600

    async def run_once(self, *, grace_seconds: float = GRACE_SECONDS) -> RetentionResult:
        """Clean up every reachable shard."""
        done: Counter[str] = Counter()
        for name in self._databases.shards:
            try:
                with self._databases.watched(name):
                    done.update(await self._run(self._databases.shard(name), grace_seconds))
            except DatabaseUnavailable:
                log.info("retention.shard_down", shard=name)
        done["definitions"] = await self._definitions.remove_unused(grace_seconds=grace_seconds)
        done["graphs"] = await self._graphs.remove_unused(grace_seconds=grace_seconds)
        done["previews"] = await self._previews.sweep(older_than_seconds=grace_seconds)
        done["assets"] = await self._assets.remove_abandoned(older_than_seconds=self._unused_seconds)
        for delete in self._delete_old:
            await delete()
        if isinstance(self._objects, LocalObjects):
            # Remove partial uploads of killed processes.
            await self._objects.sweep(older_than_seconds=max(self._unused_seconds, grace_seconds))
        result = RetentionResult(**done)
        if any(done.values()):
            log.info("retention.done", **asdict(result))
        return result

    async def _run(self, shard: Database, grace_seconds: float) -> dict[str, int]:
        expired = await self._run_pages(lambda after: self._expire(shard, after)) if self._video_seconds else 0
        unused = await self._run_pages(lambda after: self._mark_unused(shard, after))
        removed = await self._run_pages(lambda after: self._remove(shard, after, grace_seconds))
        await shard.run(
            TransactionStep.RETENTION_REMOVE, lambda tx: changes.delete_old(tx, older_than_seconds=CHANGES_SECONDS)
        )
        orphans = await self._remove_orphans(shard)
        return {"expired": expired, "unused": unused, "removed": removed, "orphans": orphans}

    async def _run_pages(self, do: Callable[[str], Awaitable[tuple[int, str | None]]]) -> int:
        """Call `do` for each page, with the last id of the previous page, and return the sum of the counts."""
        total, after = 0, ""
        while True:
            count, last = await do(after)
            total += count
            if last is None:
                return total
            after = last

    async def _expire(self, shard: Database, after: str) -> tuple[int, str | None]:
        assert self._video_seconds is not None
        async with shard.read() as tx:
            old = await retention.old_videos(
                tx, older_than_seconds=self._video_seconds, after_id=after, limit=BATCH_SIZE
            )
            files = {video.id: await _read_files(tx, video) for video in old}
            unneeded = [
                video
                for video in old
                if not await removals.has_unfinished_job(tx, video.tenant_id, files[video.id], video_id=video.id)
            ]
        if unneeded:

            async def work(tx: Tx) -> int:
                expired = await retention.expire(tx, unneeded)
                await retention.mark(tx, {file.id for id_ in expired for file in files[id_]})
                return len(expired)

            return await shard.run(TransactionStep.RETENTION_MARK, work), old[-1].id
        return 0, old[-1].id if old else None

    async def _mark_unused(self, shard: Database, after: str) -> tuple[int, str | None]:
        async with shard.read() as tx:
            found = await retention.unused_uploads(
                tx, older_than_seconds=self._unused_seconds, after_id=after, limit=BATCH_SIZE
            )
        released = _group_by_tenant(upload for upload in found if upload.is_released and not upload.is_used)
        in_use: set[str] = set()
        for tenant_id, uploads in released.items():
            in_use |= await self._inputs_in_use(shard, tenant_id, {upload.path for upload in uploads})
        used = [upload.id for upload in found if upload.is_used or upload.path in in_use]
        unused = [upload.id for upload in found if not (upload.is_used or upload.path in in_use)]
        if found:

            async def work(tx: Tx) -> None:
                await retention.record_used(tx, used)
                await retention.mark_unused(tx, unused)

            await shard.run(TransactionStep.RETENTION_MARK, work)
        return len(unused), found[-1].id if found else None

    async def _inputs_in_use(self, shard: Database, tenant_id: str, paths: Set[str]) -> set[str]:
        """Return the paths that jobs of a tenant use as inputs. Only the payloads contain all of them."""
        in_use: set[str] = set()
        after = ""
        while True:
            async with shard.read() as tx:
                page = await retention.inputs_of_jobs(tx, tenant_id, after_id=after, limit=BATCH_SIZE)
            if not page:
                return in_use
            in_use.update(path for _, of_job in page for path in of_job if path in paths)
            after = page[-1][0]

    async def _remove(self, shard: Database, after: str, grace_seconds: float) -> tuple[int, str | None]:
        async with shard.read() as tx:
            found = await retention.marked(tx, older_than_seconds=grace_seconds, after_id=after, limit=BATCH_SIZE)
            used = [file.id for file, is_used in found if is_used]
            unused = [file for file, is_used in found if not is_used]
            live = [file.id for file in unused if await removals.has_unfinished_job(tx, file.tenant_id, [file])]
        removable = [file for file in unused if file.id not in live]
        if found:

            async def work(tx: Tx) -> None:
                await retention.record_used(tx, [*used, *live])
                await retention.clear_originals(tx, [file.id for file in removable])
                for tenant_id, files in _group_by_tenant(removable).items():
                    paths = [file.path for file in files if file.disk == self._disk]
                    await removals.remove_files(tx, tenant_id, [file.id for file in files], paths)

            await shard.run(TransactionStep.RETENTION_REMOVE, work)
            while await self._removing.run_once(grace_seconds=0):
                pass
        return len(removable), found[-1][0].id if found else None

    async def _remove_orphans(self, shard: Database) -> int:
        done = 0
        while True:
            async with shard.read() as tx:
                due = await retention.due_orphan_searches(tx, limit=BATCH_SIZE)
            if not due:
                return done
            done += await self._remove_objects_of(shard, due)
            job_ids = [orphan.job_id for orphan in due]
            await shard.run(
                TransactionStep.RETENTION_REMOVE, partial(retention.delete_orphan_searches, job_ids=job_ids)
            )

    async def _remove_objects_of(self, shard: Database, searches: Sequence[OrphanSearch]) -> int:
        """Remove objects of jobs that have no row: uploads of lost leases, and late uploads."""
        semaphore = asyncio.Semaphore(MAX_CONCURRENT_LISTINGS)

        async def listed(search: OrphanSearch) -> list[str]:
            async with semaphore:
                return [
                    object_.path async for object_ in self._objects.list(job_folder(search.tenant_id, search.job_id))
                ]

        stored = [path for paths in await asyncio.gather(*map(listed, searches)) for path in paths]
        async with shard.read() as tx:
            known = await retention.known_paths(tx, self._disk, stored)
        orphans = [path for path in stored if path not in known]
        if orphans:
            await self._objects.remove_many(orphans)
        return len(orphans)


async def _read_files(tx: Tx, video: VideoRecord) -> Sequence[FileRecord]:
    ids = {video.original_file_id, video.processed_file_id}
    ids.update(await removals.of_video(tx, video.tenant_id, video.id))
    return await retention.files_by_id(tx, [id_ for id_ in ids if id_ is not None])


def _group_by_tenant(found: Iterable[File]) -> dict[str, list[File]]:
    files: dict[str, list[File]] = defaultdict(list)
    for file in found:
        files[file.tenant_id].append(file)
    return files
