"""Finish outbox steps that a crash, a lost connection or an unreachable shard interrupted.

Only steps older than a grace period are finished here. More recent steps may be in progress in another process.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from comfyrelay.domain.queue.states import JobEventType, JobStatus
from comfyrelay.domain.queue.updates import JobUpdate
from comfyrelay.domain.records.jobs import JobRecord, NewDispatch
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.pacing import paced
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import jobs
from comfyrelay.wakeup import Wakeup

log = structlog.get_logger(__name__)

MAX_AT_ONCE = 200
GRACE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    submissions: int
    entries: int
    shards_down: Sequence[str]


class OutboxRecovery:
    def __init__(self, databases: Databases, applier: UpdateApplier, notify_channel: NotifyChannel) -> None:
        self._databases = databases
        self._applier = applier
        self._notify_channel = notify_channel
        self._reported: set[tuple[str, TransactionStep, int]] = set()
        # Notified when a job that may move to the cloud was queued.
        self.burst_wakeup = Wakeup()

    async def run_once(self, *, grace_seconds: float = GRACE_SECONDS) -> Recovered:
        """Finish steps older than the grace period in every shard. A failing shard does not block the others."""
        submissions = entries = 0
        down = []
        for shard in self._databases.shards:
            try:
                submissions += await self.enqueue_pending(shard, grace_seconds=grace_seconds)
                entries += await self.deliver_pending(shard, grace_seconds=grace_seconds)
            except DatabaseUnavailable as error:
                if error.name == self._databases.central.name:
                    raise
                down.append(shard)
            except Exception:
                log.exception("recovery.failed", shard=shard)
        return Recovered(submissions=submissions, entries=entries, shards_down=down)

    async def enqueue_pending(self, shard: str, *, grace_seconds: float = 0.0) -> int:
        """Create the dispatches of submitted jobs that never reached the queue."""
        done = after = 0
        while True:
            with self._databases.watched(shard):
                async with self._databases.shard(shard).read() as tx:
                    pending = await outbox.submissions(
                        tx, limit=MAX_AT_ONCE, after_id=after, older_than_seconds=grace_seconds
                    )
            if not pending:
                return done
            job_ids = {submission.id: submission.job_ids for submission in pending}
            done += await self._finish(
                shard, TransactionStep.SUBMIT_ENQUEUE, list(job_ids), partial(self._enqueue_submissions, shard, job_ids)
            )
            after = pending[-1].id

    async def deliver_pending(self, shard: str, *, grace_seconds: float = 0.0) -> int:
        """Apply pending updates to the shard in order."""
        done = after = 0
        while True:
            async with self._databases.central.read() as tx:
                pending = await outbox.entry_ids(
                    tx, shard, limit=MAX_AT_ONCE, after_id=after, older_than_seconds=grace_seconds
                )
            if not pending:
                return done
            done += await self._finish(
                shard, TransactionStep.DELIVER_APPLY, pending, partial(self._apply_entries, shard)
            )
            # An unapplied entry waits for an earlier entry. The next round will find both.
            after = pending[-1]

    async def _finish(
        self, shard: str, step: TransactionStep, ids: Sequence[int], work: Callable[[Sequence[int]], Awaitable[int]]
    ) -> int:
        """Finish steps together. If that fails, finish the steps one by one, so that one failure does not block the
        others.

        Failed steps are retried in the next round.
        """
        try:
            return await work(ids)
        except DatabaseUnavailable:
            raise
        except Exception:
            if len(ids) == 1:
                if (shard, step, ids[0]) not in self._reported:
                    self._reported.add((shard, step, ids[0]))
                    log.exception("recovery.step_failed", shard=shard, step=step, outbox_id=ids[0])
                return 0
        return sum([await self._finish(shard, step, [id_], work) for id_ in ids])

    async def _enqueue_submissions(
        self, shard: str, job_ids: Mapping[int, Sequence[str]], submission_ids: Sequence[int]
    ) -> int:
        with self._databases.watched(shard):
            async with self._databases.shard(shard).read() as tx:
                found = await jobs.by_ids(
                    tx, [id_ for submission_id in submission_ids for id_ in job_ids[submission_id]]
                )
        await self.enqueue(shard, found)
        await self._applier.remove_submissions(shard, submission_ids)
        return len(submission_ids)

    async def _apply_entries(self, shard: str, entry_ids: Sequence[int]) -> int:
        async with self._databases.central.read() as tx:
            entries = await outbox.entries_by_ids(tx, entry_ids)
        applied = await self._applier.apply(shard, entries)
        await self._applier.remove([entry.id for entry in applied])
        return len(applied)

    async def ensure_dispatch(self, shard: str, job: JobRecord) -> None:
        async with self._databases.central.read() as tx:
            known = await dispatches.by_job(tx, job.tenant_id, [job.id])
        if not known:
            await self.enqueue(shard, [job])

    async def enqueue(self, shard: str, found: Sequence[JobRecord]) -> int:
        """Create the missing dispatches of these jobs, and return their number."""
        if not found:
            return 0

        new = [NewDispatch.from_job(job, shard=shard) async for job in paced(found)]
        created = await self._databases.central.run(
            TransactionStep.SUBMIT_ENQUEUE, lambda tx: dispatches.enqueue(tx, new), is_single=True
        )
        if created:
            await self._notify_channel.notify()
            if any(dispatch.may_burst for dispatch in created):
                self.burst_wakeup.notify()
        if len(created) < len(found):
            # The other jobs were enqueued before, or their workflow was deleted.
            async with self._databases.central.read() as tx:
                present = await catalogue.present_workflows(tx, {job.workflow_id for job in found})
            queued = {dispatch.job_id for dispatch in created}
            if orphaned := [job for job in found if job.id not in queued and job.workflow_id not in present]:
                await self._applier.apply(shard, [_refusal(shard, orphaned)])
        return len(created)


def _refusal(shard: str, orphaned: Sequence[JobRecord]) -> OutboxEntry:
    """Fail jobs whose workflow was deleted. They can never be queued, so the shard gets the update directly."""
    return OutboxEntry(
        id=0,
        shard=shard,
        updates=[
            JobUpdate(
                tenant_id=job.tenant_id,
                job_id=job.id,
                version=job.dispatch_version + 1,
                event_type=JobEventType.FAILED,
                status=JobStatus.FAILED,
                at=job.created_at,
                epoch=0,
                attempts=0,
                priority=job.priority,
                error="The workflow of this job no longer exists.",
            )
            for job in orphaned
        ],
    )
