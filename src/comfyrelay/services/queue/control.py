"""What users and operators ask of jobs: cancel, pause, resume, priority, order. Central first, then the tenant."""

from collections.abc import Sequence, Set
from datetime import datetime

from comfyrelay.domain.queue import lifecycle, ordering
from comfyrelay.domain.queue.lifecycle import Dispatch, Transition
from comfyrelay.domain.queue.ordering import After, Before, MoveTo, NextTo
from comfyrelay.domain.queue.states import TERMINAL_JOB, DispatchStatus, JobStatus, PauseMode
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.queue.decisions import Decisions, Judge
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.central.queue.dispatches import Condition
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import media


class JobControl:
    def __init__(self, databases: Databases, decisions: Decisions, recovery: OutboxRecovery) -> None:
        self._databases = databases
        self._decisions = decisions
        self._recovery = recovery

    async def cancel(self, tenant_id: str, job_id: str, *, reason: str | None = None) -> JobRecord:
        """With a `reason` where it is not its user who wants it."""
        return await self._on_job(tenant_id, job_id, "cancel", _cancel_for(reason))

    async def pause(self, tenant_id: str, job_id: str, *, mode: PauseMode = PauseMode.AFTER) -> JobRecord:
        return await self._on_job(tenant_id, job_id, "pause", _pause(mode))

    async def resume(self, tenant_id: str, job_id: str) -> JobRecord:
        return await self._on_job(tenant_id, job_id, "resume", _resume)

    async def set_priority(self, tenant_id: str, job_id: str, priority: int) -> JobRecord:
        return await self._on_job(tenant_id, job_id, "priority", _set_priority(priority))

    async def cancel_batch(self, tenant_id: str, batch_id: str) -> int:
        return await self._on_batch(tenant_id, batch_id, "cancel", _cancel)

    async def pause_batch(self, tenant_id: str, batch_id: str, *, mode: PauseMode = PauseMode.AFTER) -> int:
        """`after` stops what is queued and lets what runs finish; `now` interrupts it and puts it back."""
        return await self._on_batch(tenant_id, batch_id, "pause", _pause(mode))

    async def resume_batch(self, tenant_id: str, batch_id: str) -> int:
        return await self._on_batch(tenant_id, batch_id, "resume", _resume)

    async def set_batch_priority(self, tenant_id: str, batch_id: str, priority: int) -> int:
        return await self._on_batch(tenant_id, batch_id, "priority", _set_priority(priority))

    async def cancel_jobs(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        """Many jobs with one statement; those that have ended, or are not the tenant's, are left out."""
        return await self._on_jobs(tenant_id, job_ids, "cancel", _cancel)

    async def pause_jobs(self, tenant_id: str, job_ids: Sequence[str], *, mode: PauseMode = PauseMode.AFTER) -> int:
        return await self._on_jobs(tenant_id, job_ids, "pause", _pause(mode))

    async def resume_jobs(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        return await self._on_jobs(tenant_id, job_ids, "resume", _resume)

    async def set_priority_of_jobs(self, tenant_id: str, job_ids: Sequence[str], priority: int) -> int:
        return await self._on_jobs(tenant_id, job_ids, "priority", _set_priority(priority))

    async def move(self, tenant_id: str, job_id: str, to: MoveTo | NextTo) -> bool:
        """Move a waiting job among its tenant's own jobs of the same priority, also beside one of them, or a batch, by
        its id; returns whether its place changed."""
        job = await self._ensure_dispatch(tenant_id, job_id)
        async with self._databases.central.read() as tx:
            dispatch = (await dispatches.by_job(tx, tenant_id, [job.id])).get(job.id)
        if dispatch is None or dispatch.status not in _WAITING:
            raise Conflict(f"Only a waiting job can be moved; this one is {job.status}.")
        return await self._move(tenant_id, {dispatch.id: dispatch.priority}, to)

    async def move_jobs(self, tenant_id: str, job_ids: Sequence[str], to: MoveTo) -> int:
        """Move those that wait together, keeping their order; returns how many they are, or 0 where all stay."""
        await self._recovery.enqueue_pending(await self._databases.shard_name_of(tenant_id))
        async with self._databases.central.read() as tx:
            found = (await dispatches.by_job(tx, tenant_id, job_ids)).values()
        waiting = {each.id: each.priority for each in found if each.status in _WAITING}
        return len(waiting) if waiting and await self._move(tenant_id, waiting, to) else 0

    async def move_batch(self, tenant_id: str, batch_id: str, to: MoveTo | NextTo) -> bool:
        """Move a batch's waiting items together, keeping their order; returns whether their places changed."""
        await self._require_batch(tenant_id, batch_id)
        await self._recovery.enqueue_pending(await self._databases.shard_name_of(tenant_id))
        async with self._databases.central.read() as tx:
            waiting = await dispatches.waiting_of_batch(tx, tenant_id, batch_id)
        if not waiting:
            raise Conflict("Nothing of this batch is waiting.")
        return await self._move(tenant_id, waiting, to)

    async def _move(self, tenant_id: str, moving: dict[int, int], to: MoveTo | NextTo) -> bool:
        target = to if isinstance(to, MoveTo) else await self._beside(tenant_id, to, set(moving.values()))

        async def work(tx: Tx) -> bool:
            has_moved = False
            for priority in sorted(set(moving.values())):
                places = await dispatches.places(tx, tenant_id, priority)
                chosen = {id_ for id_, its in moving.items() if its == priority}
                if not isinstance(target, MoveTo) and target.ids.isdisjoint(place.id for place in places):
                    # those of another priority; or it has begun to run
                    continue
                if not isinstance(target, MoveTo) and target.ids <= chosen:
                    continue
                if ranks := ordering.move(places, chosen, target):
                    await dispatches.write_ranks(tx, ranks)
                    has_moved = True
            return has_moved

        return await self._databases.central.run(TransactionStep.MOVE, work)

    async def _beside(self, tenant_id: str, to: NextTo, priorities: Set[int]) -> Before | After:
        """What waits of a job or a batch of the tenant's, of one of these priorities."""
        async with self._databases.central.read() as tx:
            job = (await dispatches.by_job(tx, tenant_id, [to.id])).get(to.id)
            found = await dispatches.waiting_of_batch(tx, tenant_id, to.id)
        if job is not None and job.status in _WAITING:
            found = {job.id: job.priority}
        where = "after" if to.is_after else "before"
        if not found:
            raise Conflict(f"What it should be moved {where} does not wait: it runs, has ended, or is not there.")
        if priorities.isdisjoint(found.values()):
            raise Conflict(f"What it should be moved {where} has another priority: give both the same one first.")
        return After(set(found)) if to.is_after else Before(set(found))

    async def _on_job(self, tenant_id: str, job_id: str, verb: str, judge: Judge) -> JobRecord:
        job = await self._ensure_dispatch(tenant_id, job_id)
        which = dispatches.of_job(tenant_id, job_id)
        decided = await self._decisions.decide(TransactionStep.CONTROL, which, judge, by=verb)
        if not decided.transitions:
            for dispatch in decided.found.values():
                if dispatch.is_terminal and not _is_done(verb, dispatch):
                    raise Conflict(f"This job is already {dispatch.status}.")
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            now = await jobs.get(tx, tenant_id, job_id) or job
        # one that the queue never had, because its workflow was deleted first
        if not decided.found and now.status in TERMINAL_JOB and not _is_done(verb, now):
            raise Conflict(f"This job is already {now.status}.")
        return now

    async def _on_batch(self, tenant_id: str, batch_id: str, verb: str, judge: Judge) -> int:
        """One statement moves all items, one entry holds their updates; returns how many were moved."""
        await self._require_batch(tenant_id, batch_id)
        return await self._on_many(tenant_id, dispatches.of_batch(tenant_id, batch_id), verb, judge)

    async def _on_jobs(self, tenant_id: str, job_ids: Sequence[str], verb: str, judge: Judge) -> int:
        return await self._on_many(tenant_id, dispatches.among(tenant_id, job_ids), verb, judge)

    async def _on_many(self, tenant_id: str, which: Condition, verb: str, judge: Judge) -> int:
        # Jobs whose dispatches have not been made yet must not slip past the verb.
        await self._recovery.enqueue_pending(await self._databases.shard_name_of(tenant_id))
        return len((await self._decisions.decide(TransactionStep.CONTROL, which, judge, by=verb)).transitions)

    async def _ensure_dispatch(self, tenant_id: str, job_id: str) -> JobRecord:
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            job = await jobs.get(tx, tenant_id, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id!r}.")
        await self._recovery.ensure_dispatch(shard.name, job)
        return job

    async def _require_batch(self, tenant_id: str, batch_id: str) -> None:
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            if await media.batch(tx, tenant_id, id_=batch_id) is None:
                raise NotFound(f"There is no batch {batch_id!r}.")


_WAITING = {DispatchStatus.QUEUED, DispatchStatus.PAUSED}


def _cancel(dispatch: Dispatch, now: datetime) -> Transition | None:
    return lifecycle.cancel(dispatch, now=now)


def _cancel_for(reason: str | None) -> Judge:
    return lambda dispatch, now: lifecycle.cancel(dispatch, now=now, reason=reason)


def _resume(dispatch: Dispatch, now: datetime) -> Transition | None:
    return lifecycle.resume(dispatch, now=now)


def _pause(mode: PauseMode) -> Judge:
    return lambda dispatch, now: lifecycle.pause(dispatch, mode=mode, now=now)


def _set_priority(priority: int) -> Judge:
    return lambda dispatch, _: lifecycle.set_priority(dispatch, priority=priority)


def _is_done(verb: str, ended: Dispatch | JobRecord) -> bool:
    """Asking for what has already happened is not an error."""
    return verb == "cancel" and ended.status in (DispatchStatus.CANCELED, JobStatus.CANCELED)
