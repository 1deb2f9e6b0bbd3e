"""Accepting: one transaction reserves the tokens and writes the jobs and their outbox row; then come the dispatches."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from comfyrelay.domain.records.jobs import Job, NewJob
from comfyrelay.domain.states import Stage
from comfyrelay.errors import TooManyActiveJobs
from comfyrelay.services.accounts.ledger import reserve
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.steps import Step
from comfyrelay.store import outbox
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.outbox import Submission
from comfyrelay.store.tenant import jobs, ledger, media

log = structlog.get_logger(__name__)

T = TypeVar("T")
# From the id of a workflow to the stage that its jobs run at.
StageOf = Callable[[int], Stage]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """Jobs that were written, and the outbox row that leads them to the queue."""

    jobs: Sequence[Job]
    submission: Submission


class Acceptance:
    def __init__(self, recovery: OutboxRecovery, *, max_active_jobs: int, stage_of: StageOf | None = None) -> None:
        """`stage_of` decides at which stage jobs run, whatever was asked for; also when they are run again."""
        self._recovery = recovery
        self._max_active_jobs = max_active_jobs
        self._stage_of = stage_of

    async def run(
        self, pool: Database, tenant_id: str, work: Callable[[Tx], Awaitable[tuple[T, Accepted | None]]]
    ) -> tuple[T, bool]:
        """Do `work` under the wallet's lock and bring what it wrote to the queue. Returns its answer, and whether it
        wrote anything."""

        async def locked(tx: Tx) -> tuple[T, Accepted | None]:
            await ledger.lock_wallet(tx, tenant_id)
            return await work(tx)

        answer, accepted = await pool.run(Step.SUBMIT_JOB, locked)
        if accepted is not None:
            await self._enqueue(pool, accepted)
        return answer, accepted is not None

    async def check_limit(self, tx: Tx, tenant_id: str, user_id: str, *, batch_id: str | None = None) -> None:
        """Counted under the wallet's lock, so that two submissions cannot both be the last one allowed."""
        if await jobs.count_active(tx, tenant_id, user_id, beside=batch_id) >= self._max_active_jobs:
            raise TooManyActiveJobs(limit=self._max_active_jobs)

    async def write(self, tx: Tx, new: Sequence[NewJob]) -> Accepted:
        tenant_id = new[0].tenant_id
        if self._stage_of is not None:
            new = [replace(job, stage=self._stage_of(job.workflow_id)) for job in new]
        await reserve(tx, tenant_id, {job.id: job.reserved_tokens for job in new})
        made = await jobs.create(tx, new)
        if paths := {asset["path"] for job in new for asset in job.input_payload["assets"]}:
            await media.use_files(tx, tenant_id, paths)
        if videos := {job.video_id: job.id for job in new if job.video_id is not None}:
            await media.attach_job(tx, videos)
        return Accepted(jobs=made, submission=await outbox.submit(tx, [job.id for job in new]))

    async def ensure_dispatch(self, pool: Database, job: Job) -> None:
        """For a job that was accepted before: it may still be on its way to the queue."""
        await self._recovery.ensure_dispatch(pool.name, job)

    async def _enqueue(self, pool: Database, accepted: Accepted) -> None:
        """If this fails, the jobs are accepted all the same, and the outbox recovery does it."""
        try:
            await self._recovery.enqueue(pool.name, accepted.jobs)
            await self._recovery.forget(pool.name, [accepted.submission.id])
        except Exception:
            log.warning("submit.left_to_recovery", pool=pool.name, submission=accepted.submission.id, exc_info=True)
