"""Bulk actions on jobs, selected by id or by filter."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, assert_never

from comfyrelay.domain.bulk import MAX_REFUSED, BulkAction, BulkResult
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import JobStatus, PauseMode
from comfyrelay.errors import ComfyRelayError, Conflict, DatabaseUnavailable
from comfyrelay.protocol.jobs import BulkFilter
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.jobs.submission.resolve import clamp_priority
from comfyrelay.services.jobs.submission.submit import JobSubmission
from comfyrelay.services.jobs.views.jobs import find_workflow_ids
from comfyrelay.services.jobs.views.live import MAX_CHANGES, Cursor
from comfyrelay.services.jobs.views.overview import status_filter
from comfyrelay.services.paging import chunks
from comfyrelay.services.queue.control import JobControl
from comfyrelay.store.tenant import changes, job_list, jobs

PAGE_SIZE = 500
# One transaction per job would take a minute for a few thousand jobs, and one for all jobs would block other writers.
DELETE_CHUNK = 50
RETRY_CHUNK = 100
TOO_LATE = "The count is out of date. Count the jobs again (`dry_run`)."


class BulkActions:
    def __init__(
        self,
        context: ServiceContext,
        control: JobControl,
        submit: JobSubmission,
        batches: Batches,
        removals: Removals,
    ) -> None:
        self._settings = context.settings
        self._databases = context.databases
        self._control = control
        self._submit = submit
        self._batches = batches
        self._removals = removals

    async def run(
        self,
        tenant_id: str,
        action: BulkAction,
        *,
        ids: Sequence[str] | None = None,
        among: BulkFilter | None = None,
        mode: PauseMode = PauseMode.AFTER,
        priority: int = 0,
        to: MoveTo = MoveTo.TOP,
        keep_files: bool = False,
        as_of: str | None = None,
    ) -> BulkResult:
        """Apply an action to the selected jobs.

        `as_of` comes from `count`. Jobs that began to match the filter after that are left out.
        """
        result = BulkResult()
        pages = self._select(tenant_id, action, ids, among or BulkFilter(), as_of)
        if action is BulkAction.MOVE:
            # Move all jobs in one call. If moved page by page, the last page would end up on top.
            moving = [job_id async for found in pages for job_id in found]
            return BulkResult(matched=len(moving), changed=await self._control.move_jobs(tenant_id, moving, to))
        async for found in pages:
            result.matched += len(found)
            match action:
                case BulkAction.CANCEL:
                    result.changed += await self._control.cancel_jobs(tenant_id, found)
                case BulkAction.PAUSE:
                    result.changed += await self._control.pause_jobs(tenant_id, found, mode=mode)
                case BulkAction.RESUME:
                    result.changed += await self._release(tenant_id, found)
                    result.changed += await self._control.resume_jobs(tenant_id, found)
                case BulkAction.PRIORITY:
                    clamped = clamp_priority(priority, self._settings)
                    result.changed += await self._control.set_priority_of_jobs(tenant_id, found, clamped)
                case BulkAction.RETRY:
                    await self._retry(tenant_id, found, result)
                case BulkAction.DELETE:
                    await self._delete(tenant_id, found, result, keep_files=keep_files)
                case _:
                    assert_never(action)
        return result

    async def count(
        self, tenant_id: str, *, ids: Sequence[str] | None = None, among: BulkFilter | None = None
    ) -> BulkResult:
        shard = await self._databases.shard_of(tenant_id)
        if ids is not None:
            async with shard.read() as tx:
                return BulkResult(matched=sum(job.tenant_id == tenant_id for job in await jobs.by_ids(tx, ids)))
        wanted = await self._filters(tenant_id, among or BulkFilter())
        async with shard.read() as tx:
            # Read the horizon first, so that jobs that change in between are left out later.
            counted_at = Cursor.from_horizon(await changes.horizon(tx))
            found = await job_list.count_listed(tx, tenant_id, **wanted, only_newest=True)
        return BulkResult(matched=found, as_of=str(counted_at))

    async def _filters(self, tenant_id: str, among: BulkFilter) -> dict[str, Any]:
        return {
            "status_filter": None
            if among.status is None
            else await status_filter(self._databases, tenant_id, among.status),
            "batch_id": among.batch_id,
            "workflow_ids": await find_workflow_ids(self._databases, tenant_id, among.workflow),
            "search": among.q,
            "only_shown": among.in_queue,
        }

    async def _release(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        """Release held batches, which retries their failed jobs."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            paused = [job for job in await jobs.by_ids(tx, job_ids) if job.status == JobStatus.PAUSED]
        return await self._batches.release(tenant_id, sorted({job.batch_id for job in paused if job.batch_id}))

    async def _late(self, tenant_id: str, found: Sequence[str], among: BulkFilter, as_of: str) -> set[str]:
        """Find jobs that did not match at `as_of`, because their status changed later.

        Without a status filter, find jobs that are newer.
        """
        cursor = Cursor.parse(as_of)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            if cursor is None or not cursor.can_replay(await changes.horizon(tx)):
                raise Conflict(TOO_LATE)
            found_changes = await changes.since(tx, {tenant_id: cursor.txid}, limit=MAX_CHANGES + 1)
            if len(found_changes) > MAX_CHANGES:
                raise Conflict(TOO_LATE)
            changed = {id_ for change in found_changes for id_ in change.ids}.intersection(found)
            if among.status is not None:
                return changed
            return {job.id for job in await jobs.by_ids(tx, changed) if job.created_at.timestamp() >= cursor.at}

    async def _select(
        self,
        tenant_id: str,
        action: BulkAction,
        ids: Sequence[str] | None,
        among: BulkFilter,
        as_of: str | None,
    ) -> AsyncIterator[list[str]]:
        """Yield the ids of the tenant's selected jobs, page by page, newest first."""
        shard = await self._databases.shard_of(tenant_id)
        if ids is not None:
            async with shard.read() as tx:
                found = await jobs.by_ids(tx, ids)
            yield [job.id for job in found if job.tenant_id == tenant_id]
            return
        wanted, before = await self._filters(tenant_id, among), None
        # Only a delete without a status filter includes earlier attempts, which lists do not show.
        only_newest = among.status is not None or action is not BulkAction.DELETE
        while True:
            async with shard.read() as tx:
                found = await job_list.listed(
                    tx, tenant_id, **wanted, only_newest=only_newest, after_id=before, limit=PAGE_SIZE
                )
            if found:
                job_ids = [job.id for job in found]
                late = set() if as_of is None else await self._late(tenant_id, job_ids, among, as_of)
                yield [job_id for job_id in job_ids if job_id not in late]
            if len(found) < PAGE_SIZE:
                return
            before = found[-1].id

    async def _retry(self, tenant_id: str, ids: Sequence[str], result: BulkResult) -> None:
        for chunk in chunks(ids, RETRY_CHUNK):
            try:
                result.changed += await self._submit.retry_all(tenant_id, chunk)
            except DatabaseUnavailable:
                raise
            except ComfyRelayError:
                # At least one job is refused. Apply the action to the jobs one by one, so that the others are changed.
                await self._retry_one_by_one(tenant_id, chunk, result)

    async def _retry_one_by_one(self, tenant_id: str, ids: Sequence[str], result: BulkResult) -> None:
        for job_id in ids:
            try:
                result.changed += (await self._submit.retry_once(tenant_id, job_id)).is_new
            except DatabaseUnavailable:
                raise
            except ComfyRelayError as error:
                result.refuse({job_id: error})

    async def _delete(self, tenant_id: str, ids: Sequence[str], result: BulkResult, *, keep_files: bool) -> None:
        for chunk in chunks(ids, DELETE_CHUNK):
            done = await self._removals.remove_jobs(tenant_id, chunk, keep_files=keep_files)
            result.changed += done.count
            result.files += len(done.files.removed)
            result.not_deleted += done.files.not_deleted[: MAX_REFUSED - len(result.not_deleted)]
            result.refuse(done.refused)
