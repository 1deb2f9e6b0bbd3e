"""One verb for many jobs: named ones, or all that fit a filter."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from comfyrelay.domain.bulk import BulkAction
from comfyrelay.domain.states import JobStatus, PauseMode
from comfyrelay.errors import ComfyRelayError, PoolUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.jobs.batches import Batches
from comfyrelay.services.jobs.removal import Removals
from comfyrelay.services.jobs.submit import Submit
from comfyrelay.services.queue.control import Control
from comfyrelay.store.tenant import jobs

AT_ONCE = 500
# Beyond this an answer names no more of those that could not be done; it still counts them.
MOST_REFUSED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkFilter:
    status: JobStatus | None = None
    batch_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    id: str
    detail: str


@dataclass(kw_only=True, slots=True)
class BulkResult:
    """`matched` jobs were found, `changed` were changed by the verb, and `files` went with those that were removed, but
    for those that are `left`; jobs that were refused say why."""

    matched: int = 0
    changed: int = 0
    files: int = 0
    left: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


class Bulk:
    def __init__(
        self, databases: Databases, control: Control, submit: Submit, batches: Batches, removing: Removals
    ) -> None:
        self._databases = databases
        self._control = control
        self._submit = submit
        self._batches = batches
        self._removing = removing

    async def run(
        self,
        tenant_id: str,
        action: BulkAction,
        *,
        ids: Sequence[str] | None = None,
        among: BulkFilter | None = None,
        mode: PauseMode = PauseMode.AFTER,
        keep_files: bool = False,
    ) -> BulkResult:
        result = BulkResult()
        async for found in self._found(tenant_id, ids, among or BulkFilter()):
            result.matched += len(found)
            match action:
                case BulkAction.CANCEL:
                    result.changed += await self._control.cancel_jobs(tenant_id, found)
                case BulkAction.PAUSE:
                    result.changed += await self._control.pause_jobs(tenant_id, found, mode=mode)
                case BulkAction.RESUME:
                    result.changed += await self._release(tenant_id, found)
                    result.changed += await self._control.resume_jobs(tenant_id, found)
                case BulkAction.RETRY | BulkAction.DELETE:
                    await self._one_by_one(tenant_id, action, found, result, keep_files=keep_files)
                case _:
                    assert_never(action)
        return result

    async def _release(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        """What failed and held a batch runs again with what it held."""
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            paused = [each for each in await jobs.by_ids(tx, job_ids) if each.status == JobStatus.PAUSED]
        return await self._batches.release(tenant_id, sorted({each.batch_id for each in paused if each.batch_id}))

    async def _found(self, tenant_id: str, ids: Sequence[str] | None, among: BulkFilter) -> AsyncIterator[list[str]]:
        """The tenant's own jobs that are meant, so many at a time, newest first."""
        pool = await self._databases.pool_of(tenant_id)
        if ids is not None:
            async with pool.read() as tx:
                found = await jobs.by_ids(tx, ids)
            yield [each.id for each in found if each.tenant_id == tenant_id]
            return
        before = None
        while True:
            async with pool.read() as tx:
                found = await jobs.listed(
                    tx, tenant_id, status=among.status, batch_id=among.batch_id, before_id=before, limit=AT_ONCE
                )
            if found:
                yield [each.id for each in found]
            if len(found) < AT_ONCE:
                return
            before = found[-1].id

    async def _one_by_one(
        self, tenant_id: str, action: BulkAction, ids: Sequence[str], result: BulkResult, *, keep_files: bool
    ) -> None:
        for each in ids:
            try:
                if action is BulkAction.RETRY:
                    result.changed += (await self._submit.retry_once(tenant_id, each)).is_new
                else:
                    files = await self._removing.job(tenant_id, each, keep_files=keep_files)
                    result.files += len(files.removed)
                    result.left += files.left[: MOST_REFUSED - len(result.left)]
                    result.changed += 1
            except PoolUnavailable:
                raise
            except ComfyRelayError as error:
                if len(result.refused) < MOST_REFUSED:
                    result.refused.append(Refused(id=each, detail=error.detail))
