"""Cancel, pause, resume, prioritise and move jobs and batches."""

from collections.abc import Sequence, Set
from datetime import datetime

from comfyrelay.domain.queue import lifecycle, ordering
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.ordering import After, Before, MoveTo, NextTo
from comfyrelay.domain.queue.states import TERMINAL_JOB, DispatchStatus, JobStatus, PauseMode
from comfyrelay.domain.records.jobs import BatchRecord, JobRecord
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.queue.decisions import Decisions, Judge
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches, pauses, positions
from comfyrelay.store.central.queue.dispatches import Condition
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs
from comfyrelay.store.tenant.library import media


class JobControl:
    def __init__(
        self, databases: Databases, decisions: Decisions, recovery: OutboxRecovery, *, are_own_runs_charged: bool
    ) -> None:
        self._databases = databases
        self._are_own_runs_charged = are_own_runs_charged
        self._decisions = decisions
        self._recovery = recovery

    async def cancel(self, tenant_id: str, job_id: str, *, reason: str | None = None) -> JobRecord:
        """Cancel a job. `reason` is set if someone other than the user cancels it."""
        return await self._on_job(tenant_id, job_id, "cancel", _cancel(reason))

    async def pause(self, tenant_id: str, job_id: str, *, mode: PauseMode = PauseMode.AFTER) -> JobRecord:
        return await self._on_job(tenant_id, job_id, "pause", self._pause(mode))

    async def resume(self, tenant_id: str, job_id: str) -> JobRecord:
        return await self._on_job(tenant_id, job_id, "resume", await self._resume(tenant_id))

    async def set_priority(self, tenant_id: str, job_id: str, priority: int) -> JobRecord:
        return await self._on_job(tenant_id, job_id, "priority", _set_priority(priority))

    async def cancel_batch(self, tenant_id: str, batch_id: str) -> int:
        return await self._on_batch(tenant_id, batch_id, "cancel", _cancel())

    async def pause_batch(self, tenant_id: str, batch_id: str, *, mode: PauseMode = PauseMode.AFTER) -> int:
        """Pause the queued items. The mode `after` lets running items finish; `now` interrupts and requeues them."""
        return await self._on_batch(tenant_id, batch_id, "pause", self._pause(mode))

    async def resume_batch(self, tenant_id: str, batch_id: str) -> int:
        return await self._on_batch(tenant_id, batch_id, "resume", await self._resume(tenant_id))

    async def set_batch_priority(self, tenant_id: str, batch_id: str, priority: int) -> int:
        return await self._on_batch(tenant_id, batch_id, "priority", _set_priority(priority))

    async def cancel_jobs(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        """Cancel many jobs in one statement. Finished jobs and jobs of other tenants are skipped."""
        return await self._on_jobs(tenant_id, job_ids, "cancel", _cancel())

    async def pause_jobs(self, tenant_id: str, job_ids: Sequence[str], *, mode: PauseMode = PauseMode.AFTER) -> int:
        return await self._on_jobs(tenant_id, job_ids, "pause", self._pause(mode))

    async def resume_jobs(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        return await self._on_jobs(tenant_id, job_ids, "resume", await self._resume(tenant_id))

    async def set_priority_of_jobs(self, tenant_id: str, job_ids: Sequence[str], priority: int) -> int:
        return await self._on_jobs(tenant_id, job_ids, "priority", _set_priority(priority))

    async def move(self, tenant_id: str, job_id: str, to: MoveTo | NextTo) -> bool:
        """Move a waiting job among its tenant's jobs of the same priority, and return whether its place changed."""
        job = await self._ensure_dispatch(tenant_id, job_id)
        async with self._databases.central.read() as tx:
            dispatch = (await dispatches.by_job(tx, tenant_id, [job.id])).get(job.id)
        if dispatch is None or dispatch.status not in _WAITING:
            raise Conflict(f"Only a waiting job can be moved; this one is {job.status}.")
        return await self._move(tenant_id, {dispatch.id: dispatch.priority}, to)

    async def move_jobs(self, tenant_id: str, job_ids: Sequence[str], to: MoveTo) -> int:
        """Move the waiting jobs together, keeping their order. Returns their number, or 0 if no place changed."""
        await self._recovery.enqueue_pending(await self._databases.shard_name_of(tenant_id))
        async with self._databases.central.read() as tx:
            found = (await dispatches.by_job(tx, tenant_id, job_ids)).values()
        waiting = {dispatch.id: dispatch.priority for dispatch in found if dispatch.status in _WAITING}
        return len(waiting) if waiting and await self._move(tenant_id, waiting, to) else 0

    async def move_batch(self, tenant_id: str, batch_id: str, to: MoveTo | NextTo) -> bool:
        """Move a batch's waiting items together, keeping their order, and return whether their places changed."""
        await self._require_batch(tenant_id, batch_id)
        await self._recovery.enqueue_pending(await self._databases.shard_name_of(tenant_id))
        async with self._databases.central.read() as tx:
            waiting = await positions.waiting_of_batch(tx, tenant_id, batch_id)
        if not waiting:
            raise Conflict("No item of this batch is waiting.")
        return await self._move(tenant_id, waiting, to)

    async def _move(self, tenant_id: str, moving: dict[int, int], to: MoveTo | NextTo) -> bool:
        target = to if isinstance(to, MoveTo) else await self._resolve_target(tenant_id, to, set(moving.values()))

        async def work(tx: Tx) -> bool:
            has_moved = False
            for priority in sorted(set(moving.values())):
                places = await positions.places(tx, tenant_id, priority)
                chosen = {id_ for id_, own_priority in moving.items() if own_priority == priority}
                # Skip a target that has another priority, has started, or is moved itself.
                if not isinstance(target, MoveTo) and (
                    target.ids <= chosen or target.ids.isdisjoint(place.id for place in places)
                ):
                    continue
                if ranks := ordering.move(places, chosen, target):
                    await positions.write_ranks(tx, ranks)
                    has_moved = True
            return has_moved

        return await self._databases.central.run(TransactionStep.MOVE, work)

    async def _resolve_target(self, tenant_id: str, to: NextTo, priorities: Set[int]) -> Before | After:
        """Find the waiting dispatches of the target job or batch. At least one must have one of these priorities."""
        async with self._databases.central.read() as tx:
            job = (await dispatches.by_job(tx, tenant_id, [to.id])).get(to.id)
            found = await positions.waiting_of_batch(tx, tenant_id, to.id)
        if job is not None and job.status in _WAITING:
            found = {job.id: job.priority}
        side = "after" if to.is_after else "before"
        if not found:
            raise Conflict(f"The job or batch to move it {side} is not waiting: it is running, finished or deleted.")
        if priorities.isdisjoint(found.values()):
            raise Conflict(f"The job or batch to move it {side} has another priority. Give both the same one first.")
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
            changed = await jobs.get(tx, tenant_id, job_id) or job
        # The job was never queued if its workflow was deleted first.
        if not decided.found and changed.status in TERMINAL_JOB and not _is_done(verb, changed):
            raise Conflict(f"This job is already {changed.status}.")
        return changed

    async def _on_batch(self, tenant_id: str, batch_id: str, verb: str, judge: Judge) -> int:
        """Apply the verb to all items in one transaction with one outbox entry, and return the number of changed
        items."""
        await self._require_batch(tenant_id, batch_id)
        return await self._on_many(tenant_id, dispatches.of_batch(tenant_id, batch_id), verb, judge)

    async def _on_jobs(self, tenant_id: str, job_ids: Sequence[str], verb: str, judge: Judge) -> int:
        return await self._on_many(tenant_id, dispatches.of_unfinished_jobs(tenant_id, job_ids), verb, judge)

    async def _on_many(self, tenant_id: str, which: Condition, verb: str, judge: Judge) -> int:
        # Queue pending submissions first, so that the verb also applies to them.
        await self._recovery.enqueue_pending(await self._databases.shard_name_of(tenant_id))
        return len((await self._decisions.decide(TransactionStep.CONTROL, which, judge, by=verb)).transitions)

    def _pause(self, mode: PauseMode) -> Judge:
        def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
            allowed = lifecycle.allowed_pause(dispatch, mode, are_own_runs_charged=self._are_own_runs_charged)
            return lifecycle.pause(dispatch, mode=allowed, now=now)

        return judge

    async def _resume(self, tenant_id: str) -> Judge:
        async with self._databases.central.read() as tx:
            is_paused = tenant_id in await pauses.paused_at(tx, [tenant_id])
        return lambda dispatch, now: lifecycle.resume(dispatch, is_queue_paused=is_paused, now=now)

    async def _ensure_dispatch(self, tenant_id: str, job_id: str) -> JobRecord:
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            job = await require_job(tx, tenant_id, job_id)
        await self._recovery.ensure_dispatch(shard.name, job)
        return job

    async def _require_batch(self, tenant_id: str, batch_id: str) -> None:
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            await require_batch(tx, tenant_id, batch_id)


async def require_job(tx: Tx, tenant_id: str, job_id: str) -> JobRecord:
    job = await jobs.get(tx, tenant_id, job_id)
    if job is None:
        raise NotFound(f"There is no job {job_id!r}.")
    return job


async def require_batch(tx: Tx, tenant_id: str, batch_id: str) -> BatchRecord:
    batch = await media.batch(tx, tenant_id, id_=batch_id)
    if batch is None:
        raise NotFound(f"There is no batch {batch_id!r}.")
    return batch


_WAITING = {DispatchStatus.QUEUED, DispatchStatus.PAUSED}


def _cancel(reason: str | None = None) -> Judge:
    return lambda dispatch, now: lifecycle.cancel(dispatch, now=now, reason=reason)


def _set_priority(priority: int) -> Judge:
    return lambda dispatch, _: lifecycle.set_priority(dispatch, priority=priority)


def _is_done(verb: str, ended: Dispatch | JobRecord) -> bool:
    """Whether the verb has already been applied: canceling a canceled job is not an error."""
    return verb == "cancel" and ended.status in (DispatchStatus.CANCELED, JobStatus.CANCELED)
