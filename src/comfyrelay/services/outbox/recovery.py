"""The recovery finishes steps that a crash, a lost connection or a pool that was down left half-way.

It looks only at what is older than a moment: younger steps are still in the hands of the process that began them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from comfyrelay.domain.records.jobs import Job
from comfyrelay.domain.states import JobEventType, JobStatus
from comfyrelay.domain.updates import JobUpdate
from comfyrelay.errors import PoolUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.applying import Applying
from comfyrelay.services.steps import Step
from comfyrelay.store import outbox
from comfyrelay.store.central import catalogue, dispatches
from comfyrelay.store.central.dispatches import NewDispatch
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry
from comfyrelay.store.tenant import jobs
from comfyrelay.store.wakeup import Wakeup

log = structlog.get_logger(__name__)

AT_ONCE = 200
GRACE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    submissions: int
    entries: int
    pools_down: Sequence[str]


class OutboxRecovery:
    def __init__(self, databases: Databases, applying: Applying, wakeup: Wakeup) -> None:
        self._databases = databases
        self._applying = applying
        self._wakeup = wakeup

    async def run_once(self, *, grace_seconds: float = GRACE_SECONDS) -> Recovered:
        """Finish what is older than the grace, in every pool; a pool that is down does not hold up the others."""
        submissions = entries = 0
        down = []
        for pool in self._databases.pools:
            try:
                submissions += await self.enqueue_pending(pool, grace_seconds=grace_seconds)
                entries += await self.deliver_pending(pool, grace_seconds=grace_seconds)
            except PoolUnavailable as error:
                if error.pool == self._databases.central.name:
                    raise
                down.append(pool)
        return Recovered(submissions=submissions, entries=entries, pools_down=down)

    async def enqueue_pending(self, pool: str, *, grace_seconds: float = 0.0) -> int:
        """Make the dispatches of jobs that were submitted and never reached the queue."""
        done = 0
        while True:
            with self._databases.watched(pool):
                async with self._databases.pool(pool).read() as tx:
                    pending = await outbox.submissions(tx, limit=AT_ONCE, older_than_seconds=grace_seconds)
                    found = await jobs.by_ids(tx, [id_ for submission in pending for id_ in submission.job_ids])
            if not pending:
                return done
            await self.enqueue(pool, found)
            await self.forget(pool, [each.id for each in pending])
            done += len(pending)

    async def deliver_pending(self, pool: str, *, grace_seconds: float = 0.0) -> int:
        """Apply to the pool what it does not have yet, in the order in which it was decided."""
        done = after = 0
        while True:
            async with self._databases.central.read() as tx:
                pending = await outbox.entries(
                    tx, pool, limit=AT_ONCE, after_id=after, older_than_seconds=grace_seconds
                )
            if not pending:
                return done
            applied = await self._applying.apply(pool, pending)
            await self._applying.remove([each.id for each in applied])
            done += len(applied)
            # An entry that could not be applied waits for an earlier one; the next round finds both.
            after = pending[-1].id

    async def ensure_dispatch(self, pool: str, job: Job) -> None:
        async with self._databases.central.read() as tx:
            there = await dispatches.by_job(tx, job.tenant_id, [job.id])
        if not there:
            await self.enqueue(pool, [job])

    async def enqueue(self, pool: str, found: Sequence[Job]) -> None:
        if not found:
            return

        async def work(tx: Tx) -> tuple[int, list[Job]]:
            known = await catalogue.existing_workflows(tx, {each.workflow_id for each in found})
            new = [new_dispatch(pool, each) for each in found if each.workflow_id in known]
            made = await dispatches.enqueue(tx, new) if new else 0
            return made, [each for each in found if each.workflow_id not in known]

        made, hopeless = await self._databases.central.run(Step.SUBMIT_ENQUEUE, work)
        if made:
            await self._wakeup.notify()
        if hopeless:
            await self._applying.apply(pool, [_refusal(pool, hopeless)])

    async def forget(self, pool: str, submission_ids: Sequence[int]) -> None:
        await self._databases.pool(pool).run(
            Step.SUBMIT_FORGET, lambda tx: outbox.remove_submissions(tx, submission_ids)
        )


def _refusal(pool: str, hopeless: Sequence[Job]) -> OutboxEntry:
    """A job whose workflow is gone can never be dispatched: its pool gets what the queue would have decided."""
    return OutboxEntry(
        id=0,
        db_pool=pool,
        updates=[
            JobUpdate(
                tenant_id=each.tenant_id,
                job_id=each.id,
                version=each.dispatch_version + 1,
                event_type=JobEventType.FAILED,
                status=JobStatus.FAILED,
                at=each.created_at,
                epoch=0,
                attempts=0,
                priority=each.priority,
                error="The workflow of this job no longer exists.",
            )
            for each in hopeless
        ],
    )


def new_dispatch(pool: str, job: Job) -> NewDispatch:
    return NewDispatch(
        tenant_id=job.tenant_id,
        tenant_job_id=job.id,
        db_pool=pool,
        workflow_id=job.workflow_id,
        workflow_hash=job.workflow_hash,
        effect_id=job.effect_id,
        provider=job.provider,
        stage=job.stage,
        priority=job.priority,
        max_attempts=job.max_attempts,
        batch_id=job.batch_id,
        available_at=job.available_at,
    )
