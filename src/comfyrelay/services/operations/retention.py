"""Expire old videos and remove unused files, but never a file of an active job.

A file is removed in steps that survive a crash. Its row is marked, so that no new job can use it. After a grace period,
when every use of it is visible, a removal record replaces the row. Then the object is deleted, and the record with it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from comfyrelay.domain.ids import job_folder
from comfyrelay.domain.records.jobs import FileRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.catalogue.node_definitions import NodeDefinitionService
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.queue.previews import PreviewService
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.storage.objects import LocalObjects, ObjectStore
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import changes, removals, retention
from comfyrelay.store.tenant.retention import OldVideo, Stray

log = structlog.get_logger(__name__)

AT_ONCE = 500
# Concurrent listings of object storage.
LISTED_AT_ONCE = 8
# Longer than any submission takes, and than a download URL is valid.
GRACE_SECONDS = 1800.0
# A subscriber that reconnects later than this must reload.
CHANGES_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionResult:
    """Counts of one run."""

    expired: int = 0
    unused: int = 0
    removed: int = 0
    orphans: int = 0
    definitions: int = 0
    previews: int = 0


class Retention:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        removing: Removals,
        definitions: NodeDefinitionService,
        previews: PreviewService,
        *,
        delete_old: Sequence[Callable[[], Awaitable[None]]] = (),
        disk: str,
        retention_days: float | None,
        unused_upload_hours: float,
    ) -> None:
        """Without `retention_days`, videos are kept forever. `delete_old` are clean-up functions of other services."""
        self._databases = databases
        self._objects = objects
        self._removing = removing
        self._definitions = definitions
        self._previews = previews
        self._delete_old = delete_old
        self._disk = disk
        self._video_seconds = retention_days * 86400 if retention_days is not None else None
        self._unused_seconds = unused_upload_hours * 3600

    async def run_once(self, *, grace_seconds: float = GRACE_SECONDS) -> RetentionResult:
        """Clean up every shard; a shard that is down does not block the others."""
        done = RetentionResult()
        for name in self._databases.shards:
            try:
                with self._databases.watched(name):
                    done = _sum(done, await self._run(self._databases.shard(name), grace_seconds))
            except DatabaseUnavailable:
                log.info("retention.shard_down", shard=name)
        done = replace(
            done,
            definitions=await self._definitions.remove_unused(grace_seconds=grace_seconds),
            previews=await self._previews.sweep(older_than_seconds=grace_seconds),
        )
        for delete in self._delete_old:
            await delete()
        if isinstance(self._objects, LocalObjects):
            # partial uploads of killed processes
            await self._objects.sweep(older_than_seconds=max(self._unused_seconds, grace_seconds))
        if done != RetentionResult():
            log.info("retention.done", **{name: getattr(done, name) for name in RetentionResult.__dataclass_fields__})
        return done

    async def _run(self, shard: Database, grace_seconds: float) -> RetentionResult:
        expired = await self._in_pages(lambda after: self._expire(shard, after)) if self._video_seconds else 0
        unused = await self._in_pages(lambda after: self._mark_unused(shard, after))
        removed = await self._in_pages(lambda after: self._remove(shard, after, grace_seconds))
        await shard.run(
            TransactionStep.RETENTION_REMOVE, lambda tx: changes.forget(tx, older_than_seconds=CHANGES_SECONDS)
        )
        orphans = await self._remove_orphans(shard)
        return RetentionResult(expired=expired, unused=unused, removed=removed, orphans=orphans)

    async def _in_pages(self, do: Callable[[str], Awaitable[tuple[int, str | None]]]) -> int:
        """Call `do` page by page, with the last id of the page before."""
        done, after = 0, ""
        while True:
            count, last = await do(after)
            done += count
            if last is None:
                return done
            after = last

    async def _expire(self, shard: Database, after: str) -> tuple[int, str | None]:
        assert self._video_seconds is not None
        async with shard.read() as tx:
            old = await retention.old_videos(tx, older_than_seconds=self._video_seconds, after_id=after, limit=AT_ONCE)
            named = {each.id: await _files_of(tx, each) for each in old}
            free = [each for each in old if not await _is_needed(tx, each, named[each.id])]
        if free:

            async def work(tx: Tx) -> int:
                expired = await retention.expire(tx, free)
                await retention.mark(tx, {file.id for id_ in expired for file in named[id_]})
                return len(expired)

            return await shard.run(TransactionStep.RETENTION_MARK, work), old[-1].id
        return 0, old[-1].id if old else None

    async def _mark_unused(self, shard: Database, after: str) -> tuple[int, str | None]:
        async with shard.read() as tx:
            found = await retention.unused_uploads(
                tx, older_than_seconds=self._unused_seconds, after_id=after, limit=AT_ONCE
            )
        used = [id_ for id_, is_used in found if is_used]
        unused = [id_ for id_, is_used in found if not is_used]
        if found:

            async def work(tx: Tx) -> None:
                await retention.note_used(tx, used)
                await retention.mark(tx, unused)

            await shard.run(TransactionStep.RETENTION_MARK, work)
        return len(unused), found[-1][0] if found else None

    async def _remove(self, shard: Database, after: str, grace_seconds: float) -> tuple[int, str | None]:
        async with shard.read() as tx:
            found = await retention.marked(tx, older_than_seconds=grace_seconds, after_id=after, limit=AT_ONCE)
            used = [file.id for file, is_used in found if is_used]
            going = [file for file, is_used in found if not is_used]
            live = [each.id for each in going if await removals.has_live_job(tx, each.tenant_id, [each])]
        going = [each for each in going if each.id not in live]
        if found:

            async def work(tx: Tx) -> None:
                await retention.note_used(tx, [*used, *live])
                await retention.forget_originals(tx, [each.id for each in going])
                for tenant_id, theirs in _by_tenant(going).items():
                    paths = [file.path for file in theirs if file.disk == self._disk]
                    await removals.remove_files(tx, tenant_id, [file.id for file in theirs], paths)

            await shard.run(TransactionStep.RETENTION_REMOVE, work)
            while await self._removing.run_once(grace_seconds=0):
                pass
        return len(going), found[-1][0].id if found else None

    async def _remove_orphans(self, shard: Database) -> int:
        done = 0
        while True:
            async with shard.read() as tx:
                due = await retention.due_strays(tx, limit=AT_ONCE)
            if not due:
                return done
            done += await self._remove_objects_of(shard, due)
            job_ids = [each.job_id for each in due]
            await shard.run(TransactionStep.RETENTION_REMOVE, lambda tx, ids=job_ids: retention.forget_strays(tx, ids))  # type: ignore[misc]

    async def _remove_objects_of(self, shard: Database, strays: Sequence[Stray]) -> int:
        """Remove a job's objects without a row: uploads of lost leases, and late uploads."""
        turn = asyncio.Semaphore(LISTED_AT_ONCE)

        async def listed(stray: Stray) -> list[str]:
            async with turn:
                return [each.path async for each in self._objects.list(job_folder(stray.tenant_id, stray.job_id))]

        stored = [path for paths in await asyncio.gather(*map(listed, strays)) for path in paths]
        async with shard.read() as tx:
            known = await retention.known_paths(tx, self._disk, stored)
        orphans = [path for path in stored if path not in known]
        if orphans:
            await self._objects.remove_many(orphans)
        return len(orphans)


async def _files_of(tx: Tx, video: OldVideo) -> Sequence[FileRecord]:
    named = {video.original_file_id, video.processed_file_id}
    named.update(await removals.of_video(tx, video.tenant_id, video.id))
    return await retention.files_by_id(tx, [each for each in named if each is not None])


async def _is_needed(tx: Tx, video: OldVideo, named: Sequence[FileRecord]) -> bool:
    return await removals.has_live_job(tx, video.tenant_id, named, video_id=video.id)


def _by_tenant(found: Sequence[FileRecord]) -> dict[str, list[FileRecord]]:
    theirs: dict[str, list[FileRecord]] = defaultdict(list)
    for each in found:
        theirs[each.tenant_id].append(each)
    return theirs


def _sum(a: RetentionResult, b: RetentionResult) -> RetentionResult:
    return RetentionResult(
        **{name: getattr(a, name) + getattr(b, name) for name in RetentionResult.__dataclass_fields__}
    )
