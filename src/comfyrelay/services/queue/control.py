"""What users and operators ask of jobs: cancel, pause, resume, priority, order. Central first, then the tenant."""

from collections.abc import Callable, Sequence
from datetime import datetime

from comfyrelay.domain import lifecycle, ordering
from comfyrelay.domain.failover import FailoverPolicy
from comfyrelay.domain.lifecycle import Dispatch, Move
from comfyrelay.domain.ordering import MoveTo
from comfyrelay.domain.records.jobs import Job
from comfyrelay.domain.states import DispatchStatus, PauseMode
from comfyrelay.errors import Conflict, NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.queue import decisions
from comfyrelay.services.queue.decisions import Decision
from comfyrelay.services.steps import Step
from comfyrelay.store.central import dispatches
from comfyrelay.store.central.dispatches import Condition
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import jobs, media
from comfyrelay.store.wakeup import Wakeup

Decide = Callable[[Dispatch, datetime], Move | None]


class Control:
    def __init__(
        self,
        databases: Databases,
        delivery: OutboxDelivery,
        recovery: OutboxRecovery,
        wakeup: Wakeup,
        *,
        policy: FailoverPolicy,
    ) -> None:
        self._databases = databases
        self._delivery = delivery
        self._recovery = recovery
        self._wakeup = wakeup
        self._policy = policy

    async def cancel(self, tenant_id: str, job_id: str) -> Job:
        return await self._on_job(
            tenant_id, job_id, "cancel", lambda dispatch, now: lifecycle.cancel(dispatch, now=now)
        )

    async def pause(self, tenant_id: str, job_id: str, *, mode: PauseMode = PauseMode.AFTER) -> Job:
        return await self._on_job(
            tenant_id, job_id, "pause", lambda dispatch, now: lifecycle.pause(dispatch, mode=mode, now=now)
        )

    async def resume(self, tenant_id: str, job_id: str) -> Job:
        return await self._on_job(
            tenant_id, job_id, "resume", lambda dispatch, now: lifecycle.resume(dispatch, now=now)
        )

    async def set_priority(self, tenant_id: str, job_id: str, priority: int) -> Job:
        return await self._on_job(
            tenant_id,
            job_id,
            "priority",
            lambda dispatch, _: lifecycle.set_priority(dispatch, priority=priority),
        )

    async def cancel_batch(self, tenant_id: str, batch_id: str) -> int:
        return await self._on_batch(
            tenant_id, batch_id, "cancel", lambda dispatch, now: lifecycle.cancel(dispatch, now=now)
        )

    async def pause_batch(self, tenant_id: str, batch_id: str, *, mode: PauseMode = PauseMode.AFTER) -> int:
        """`after` stops what is queued and lets what runs finish; `now` interrupts it and puts it back."""
        return await self._on_batch(
            tenant_id, batch_id, "pause", lambda dispatch, now: lifecycle.pause(dispatch, mode=mode, now=now)
        )

    async def resume_batch(self, tenant_id: str, batch_id: str) -> int:
        return await self._on_batch(
            tenant_id, batch_id, "resume", lambda dispatch, now: lifecycle.resume(dispatch, now=now)
        )

    async def cancel_jobs(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        """Many jobs with one statement; those that have ended, or are not the tenant's, are left out."""
        return await self._on_jobs(
            tenant_id, job_ids, "cancel", lambda dispatch, now: lifecycle.cancel(dispatch, now=now)
        )

    async def pause_jobs(self, tenant_id: str, job_ids: Sequence[str], *, mode: PauseMode = PauseMode.AFTER) -> int:
        return await self._on_jobs(
            tenant_id, job_ids, "pause", lambda dispatch, now: lifecycle.pause(dispatch, mode=mode, now=now)
        )

    async def resume_jobs(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        return await self._on_jobs(
            tenant_id, job_ids, "resume", lambda dispatch, now: lifecycle.resume(dispatch, now=now)
        )

    async def set_batch_priority(self, tenant_id: str, batch_id: str, priority: int) -> int:
        return await self._on_batch(
            tenant_id,
            batch_id,
            "priority",
            lambda dispatch, _: lifecycle.set_priority(dispatch, priority=priority),
        )

    async def move(self, tenant_id: str, job_id: str, to: MoveTo) -> bool:
        """Move a waiting job among its tenant's own jobs of the same priority; returns whether its place changed."""
        job = await self._ensure_dispatch(tenant_id, job_id)
        async with self._databases.central.read() as tx:
            dispatch = (await dispatches.by_job(tx, tenant_id, [job.id])).get(job.id)
        if dispatch is None or dispatch.status not in {DispatchStatus.QUEUED, DispatchStatus.PAUSED}:
            raise Conflict(f"Only a waiting job can be moved; this one is {job.status}.")
        return await self._move(tenant_id, {dispatch.id: dispatch.priority}, to)

    async def move_batch(self, tenant_id: str, batch_id: str, to: MoveTo) -> bool:
        """Move a batch's waiting items together, keeping their order; returns whether their places changed."""
        await self._require_batch(tenant_id, batch_id)
        await self._recovery.enqueue_pending(await self._databases.pool_name_of(tenant_id))
        async with self._databases.central.read() as tx:
            waiting = await dispatches.waiting_of_batch(tx, tenant_id, batch_id)
        if not waiting:
            raise Conflict("Nothing of this batch is waiting.")
        return await self._move(tenant_id, waiting, to)

    async def _move(self, tenant_id: str, moving: dict[int, int], to: MoveTo) -> bool:
        async def work(tx: Tx) -> bool:
            has_moved = False
            for priority in sorted(set(moving.values())):
                places = await dispatches.places(tx, tenant_id, priority)
                chosen = {id_ for id_, its in moving.items() if its == priority}
                if ranks := ordering.move(places, chosen, to):
                    await dispatches.write_ranks(tx, ranks)
                    has_moved = True
            return has_moved

        return await self._databases.central.run(Step.MOVE, work)

    async def _on_job(self, tenant_id: str, job_id: str, verb: str, decide: Decide) -> Job:
        job = await self._ensure_dispatch(tenant_id, job_id)

        async def work(tx: Tx) -> tuple[list[OutboxEntry], Dispatch | None, bool]:
            found, now = await dispatches.lock_where(tx, dispatches.of_job(tenant_id, job_id))
            entries, moves = await self._decide(tx, list(found.values()), now, verb, decide)
            return entries, next(iter(found.values()), None), bool(moves)

        entries, dispatch, moved = await self._databases.central.run(Step.CONTROL, work)
        await self._after(entries)
        if dispatch is not None and not moved and dispatch.is_terminal and not _is_done(verb, dispatch):
            raise Conflict(f"This job is already {dispatch.status}.")
        pool = await self._databases.pool_of(tenant_id)
        async with pool.read() as tx:
            return await jobs.get(tx, tenant_id, job_id) or job

    async def _on_batch(self, tenant_id: str, batch_id: str, verb: str, decide: Decide) -> int:
        """One statement moves all items, one entry tells of it; returns how many were moved."""
        await self._require_batch(tenant_id, batch_id)
        return await self._on_many(tenant_id, dispatches.of_batch(tenant_id, batch_id), verb, decide)

    async def _on_jobs(self, tenant_id: str, job_ids: Sequence[str], verb: str, decide: Decide) -> int:
        return await self._on_many(tenant_id, dispatches.among(tenant_id, job_ids), verb, decide)

    async def _on_many(self, tenant_id: str, which: Condition, verb: str, decide: Decide) -> int:
        # Jobs whose dispatches have not been made yet must not slip past the verb.
        await self._recovery.enqueue_pending(await self._databases.pool_name_of(tenant_id))

        async def work(tx: Tx) -> tuple[list[OutboxEntry], int]:
            found, now = await dispatches.lock_where(tx, which)
            entries, moves = await self._decide(tx, list(found.values()), now, verb, decide)
            return entries, len(moves)

        entries, count = await self._databases.central.run(Step.CONTROL, work)
        await self._after(entries)
        return count

    async def _decide(
        self, tx: Tx, found: Sequence[Dispatch], now: datetime, verb: str, decide: Decide
    ) -> tuple[list[OutboxEntry], list[Move]]:
        moves = [move for each in found if (move := decide(each, now)) is not None]
        decided = [Decision(move=each, by=verb) for each in moves]
        return await decisions.write(tx, decided, now=now, policy=self._policy), moves

    async def _after(self, entries: Sequence[OutboxEntry]) -> None:
        if entries:
            await self._wakeup.notify()
            await self._delivery.deliver(entries)

    async def _ensure_dispatch(self, tenant_id: str, job_id: str) -> Job:
        pool = await self._databases.pool_of(tenant_id)
        async with pool.read() as tx:
            job = await jobs.get(tx, tenant_id, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id!r}.")
        await self._recovery.ensure_dispatch(pool.name, job)
        return job

    async def _require_batch(self, tenant_id: str, batch_id: str) -> None:
        pool = await self._databases.pool_of(tenant_id)
        async with pool.read() as tx:
            if await media.batch(tx, tenant_id, id_=batch_id) is None:
                raise NotFound(f"There is no batch {batch_id!r}.")


def _is_done(verb: str, dispatch: Dispatch) -> bool:
    """Asking again for what has already happened is not an error."""
    return verb == "cancel" and dispatch.status == DispatchStatus.CANCELED
