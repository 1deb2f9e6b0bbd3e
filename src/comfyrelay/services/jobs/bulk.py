"""One verb for many jobs: named ones, or all that fit a filter."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from comfyrelay.domain.bulk import BulkAction
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import JobStatus, PauseMode, UnitStatus
from comfyrelay.errors import ComfyRelayError, Conflict, DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.jobs.submission.resolve import JobDefaults
from comfyrelay.services.jobs.submission.submit import Submit
from comfyrelay.services.jobs.views.jobs import find_workflow_ids
from comfyrelay.services.jobs.views.live import MOST_CHANGES, Cursor
from comfyrelay.services.jobs.views.overview import status_filter
from comfyrelay.services.queue.control import JobControl
from comfyrelay.store.tenant import changes, jobs

AT_ONCE = 500
# A transaction for each job would take a minute for a few thousand; one for all would keep everybody else waiting.
DELETED_AT_ONCE = 50
RETRIED_AT_ONCE = 100
# Beyond this an answer names no more of those that could not be done; it still counts them.
MOST_REFUSED = 100
TOO_LATE = "Too much has happened since these jobs were counted: count them again (`dry_run`), then do it."


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkFilter:
    """`running` and `waiting` are as the queue shows it: what a worker has only fetched waits."""

    status: JobStatus | UnitStatus | None = None
    batch_id: str | None = None
    workflow: str | None = None
    q: str | None = None
    # not what was put out of sight there
    in_queue: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedJob:
    id: str
    detail: str


@dataclass(kw_only=True, slots=True)
class BulkResult:
    """`matched` jobs were found, `changed` were changed by the verb, and `files` went with those that were removed, but
    for those that are `left`; jobs that were refused say why. `as_of` is when they were counted, as `run` takes it."""

    matched: int = 0
    changed: int = 0
    files: int = 0
    left: list[str] = field(default_factory=list)
    refused: list[RefusedJob] = field(default_factory=list)
    as_of: str | None = None

    def refuse(self, errors: Mapping[str, ComfyRelayError]) -> None:
        more = [RefusedJob(id=each, detail=error.detail) for each, error in errors.items()]
        self.refused += more[: MOST_REFUSED - len(self.refused)]


class Bulk:
    def __init__(
        self,
        databases: Databases,
        control: JobControl,
        submit: Submit,
        batches: Batches,
        removals: Removals,
        *,
        defaults: JobDefaults,
    ) -> None:
        self._defaults = defaults
        self._databases = databases
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
        """`as_of` is when somebody was told how many they are: what came to fit the filter since then is left out."""
        result = BulkResult()
        if action is BulkAction.MOVE:
            # together, or the last part would stand before the first
            parts = self._meant(tenant_id, action, ids, among or BulkFilter(), as_of)
            moving = [job_id async for found in parts for job_id in found]
            return BulkResult(matched=len(moving), changed=await self._control.move_jobs(tenant_id, moving, to))
        async for found in self._meant(tenant_id, action, ids, among or BulkFilter(), as_of):
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
                    chosen = self._defaults.clamp_priority(priority)
                    result.changed += await self._control.set_priority_of_jobs(tenant_id, found, chosen)
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
        """How many are meant."""
        shard = await self._databases.shard_of(tenant_id)
        if ids is not None:
            async with shard.read() as tx:
                return BulkResult(matched=sum(each.tenant_id == tenant_id for each in await jobs.by_ids(tx, ids)))
        wanted = await self._filters(tenant_id, among or BulkFilter())
        async with shard.read() as tx:
            # first, so that what comes in between is rather left out than taken along
            counted_at = Cursor.of(await changes.horizon(tx))
            found = await jobs.count_listed(tx, tenant_id, **wanted, only_newest=True)
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
        """What failed and held a batch runs again with what it held."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            paused = [each for each in await jobs.by_ids(tx, job_ids) if each.status == JobStatus.PAUSED]
        return await self._batches.release(tenant_id, sorted({each.batch_id for each in paused if each.batch_id}))

    async def _meant(
        self,
        tenant_id: str,
        action: BulkAction,
        ids: Sequence[str] | None,
        among: BulkFilter,
        as_of: str | None,
    ) -> AsyncIterator[list[str]]:
        async for found in self._found(tenant_id, action, ids, among):
            late = set() if as_of is None or ids is not None else await self._late(tenant_id, found, among, as_of)
            yield [job_id for job_id in found if job_id not in late]

    async def _late(self, tenant_id: str, found: Sequence[str], among: BulkFilter, as_of: str) -> set[str]:
        """Those that did not fit yet: with a status that changed since, or made since where any status fits."""
        cursor = Cursor.read(as_of)
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            if cursor is None or not cursor.is_replayed(await changes.horizon(tx)):
                raise Conflict(TOO_LATE)
            news = await changes.since(tx, {tenant_id: cursor.txid}, limit=MOST_CHANGES + 1)
            if len(news) > MOST_CHANGES:
                raise Conflict(TOO_LATE)
            changed = {id_ for change in news for id_ in change.ids}.intersection(found)
            if among.status is not None:
                return changed
            return {each.id for each in await jobs.by_ids(tx, changed) if each.created_at.timestamp() >= cursor.at}

    async def _found(
        self, tenant_id: str, action: BulkAction, ids: Sequence[str] | None, among: BulkFilter
    ) -> AsyncIterator[list[str]]:
        """The tenant's own jobs that are meant, so many at a time, newest first."""
        shard = await self._databases.shard_of(tenant_id)
        if ids is not None:
            async with shard.read() as tx:
                found = await jobs.by_ids(tx, ids)
            yield [each.id for each in found if each.tenant_id == tenant_id]
            return
        wanted, before = await self._filters(tenant_id, among), None
        # what goes, goes with the tries before it; else who counts the jobs that are shown would be told another number
        only_newest = among.status is not None or action is not BulkAction.DELETE
        while True:
            async with shard.read() as tx:
                found = await jobs.listed(
                    tx, tenant_id, **wanted, only_newest=only_newest, after_id=before, limit=AT_ONCE
                )
            if found:
                yield [each.id for each in found]
            if len(found) < AT_ONCE:
                return
            before = found[-1].id

    async def _retry(self, tenant_id: str, ids: Sequence[str], result: BulkResult) -> None:
        for start in range(0, len(ids), RETRIED_AT_ONCE):
            some = ids[start : start + RETRIED_AT_ONCE]
            try:
                result.changed += await self._submit.retry_all(tenant_id, some)
            except DatabaseUnavailable:
                raise
            except ComfyRelayError:
                await self._retry_each(tenant_id, some, result)

    async def _retry_each(self, tenant_id: str, ids: Sequence[str], result: BulkResult) -> None:
        for each in ids:
            try:
                result.changed += (await self._submit.retry_once(tenant_id, each)).is_new
            except DatabaseUnavailable:
                raise
            except ComfyRelayError as error:
                result.refuse({each: error})

    async def _delete(self, tenant_id: str, ids: Sequence[str], result: BulkResult, *, keep_files: bool) -> None:
        for start in range(0, len(ids), DELETED_AT_ONCE):
            going = ids[start : start + DELETED_AT_ONCE]
            done = await self._removals.remove_jobs(tenant_id, going, keep_files=keep_files)
            result.changed += done.count
            result.files += len(done.files.removed)
            result.left += done.files.left[: MOST_REFUSED - len(result.left)]
            result.refuse(done.refused)
