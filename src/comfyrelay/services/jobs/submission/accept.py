"""Accept jobs: one transaction reserves tokens and writes the jobs and their outbox row. Dispatches follow."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import structlog

from comfyrelay.domain.queue.settlement import JobState, apply_updates
from comfyrelay.domain.queue.states import Stage
from comfyrelay.domain.queue.updates import reused as reused_update
from comfyrelay.domain.records.jobs import JobRecord, NewJobRecord
from comfyrelay.errors import TooManyActiveJobs
from comfyrelay.services.accounts.ledger import reserve
from comfyrelay.services.jobs.submission.reuse import ReusedOutput
from comfyrelay.services.outbox.applier import UpdateApplier
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.outbox.recovery import OutboxRecovery
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.outbox import PendingSubmission
from comfyrelay.store.tenant import jobs, ledger
from comfyrelay.store.tenant.library import media

log = structlog.get_logger(__name__)

T = TypeVar("T")
# Maps a workflow id to the stage of its jobs.
StageOf = Callable[[int], Stage]
_NO_REUSE: Mapping[str, ReusedOutput] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedJobs:
    """Written jobs and the outbox row that brings them to the queue."""

    jobs: Sequence[JobRecord]
    submission: PendingSubmission | None
    uses_files: bool
    # jobs completed with a reused output; they do not enter the queue
    ended: Sequence[JobState] = ()


class Acceptance:
    def __init__(
        self,
        recovery: OutboxRecovery,
        applier: UpdateApplier,
        delivery: OutboxDelivery,
        *,
        max_active_jobs: int,
        limit_of: Callable[[str], Awaitable[int | None]],
        stage_of: StageOf | None = None,
        on_files_used: Callable[[], None] = lambda: None,
    ) -> None:
        """`stage_of` overrides the requested stage, also for reruns. `on_files_used` is called after jobs with files
        were written. `limit_of` returns a tenant's own limit of active jobs, if any."""
        self._recovery = recovery
        self._applier = applier
        self._delivery = delivery
        self._max_active_jobs = max_active_jobs
        self._limit_of = limit_of
        self._stage_of = stage_of
        self._on_files_used = on_files_used

    async def run(
        self, shard: Database, tenant_id: str, work: Callable[[Tx, int], Awaitable[tuple[T, AcceptedJobs | None]]]
    ) -> tuple[T, bool]:
        """Run `work(tx, balance)` under the wallet lock and enqueue the jobs it wrote. Returns its result and whether
        it wrote any."""

        async def locked(tx: Tx) -> tuple[T, AcceptedJobs | None]:
            return await work(tx, await ledger.lock_wallet(tx, tenant_id))

        answer, accepted = await shard.run(TransactionStep.SUBMIT_JOB, locked)
        if accepted is not None:
            if accepted.uses_files:
                self._on_files_used()
            if accepted.ended:
                self._applier.announce(shard.name, accepted.ended)
            await self._enqueue(shard, accepted)
        return answer, accepted is not None

    async def check_limit(
        self, tx: Tx, tenant_id: str, user_id: str, *, batch_id: str | None = None, more: int = 1
    ) -> None:
        """Count under the wallet lock, so that concurrent submissions cannot exceed the limit together."""
        own = await self._limit_of(tenant_id)
        limit = self._max_active_jobs if own is None else own
        if await jobs.count_active(tx, tenant_id, user_id, except_batch=batch_id) + more > limit:
            raise TooManyActiveJobs(limit=limit)

    async def write_jobs(
        self, tx: Tx, balance: int, new: Sequence[NewJobRecord], reused: Mapping[str, ReusedOutput] = _NO_REUSE
    ) -> AcceptedJobs:
        """Write new jobs. `balance` is that of the locked wallet. Jobs in `reused`, by id, cost nothing and complete at
        once."""
        tenant_id = new[0].tenant_id
        new = [_as_reused(job, reused[job.id]) if job.id in reused else job for job in new]
        if self._stage_of is not None:
            new = [replace(job, stage=self._stage_of(job.workflow_id)) for job in new]
        await reserve(tx, tenant_id, balance, {job.id: job.reserved_tokens for job in new})
        made = await jobs.create(tx, new)
        if paths := {asset["path"] for job in new for asset in job.input_payload["assets"]}:
            await media.use_files(tx, tenant_id, paths)
        if videos := {job.video_id: job.id for job in new if job.video_id is not None}:
            await media.attach_job(tx, videos)
        ended = await self._complete(tx, [job for job in made if job.id in reused], reused) if reused else {}
        waiting = [job.id for job in new if job.id not in reused]
        return AcceptedJobs(
            jobs=[replace(job, **ended[job.id]._asdict()) if job.id in ended else job for job in made],
            submission=await outbox.submit(tx, waiting) if waiting else None,
            uses_files=bool(paths),
            ended=list(ended.values()),
        )

    async def _complete(
        self, tx: Tx, made: Sequence[JobRecord], copies: Mapping[str, ReusedOutput]
    ) -> dict[str, JobState]:
        """Settle jobs as if a worker had completed them, in this transaction: tokens, output, video, event, webhook."""
        states = await jobs.lock_states(tx, [job.id for job in made])
        updates = {
            job.id: reused_update(
                tenant_id=job.tenant_id,
                job_id=job.id,
                priority=job.priority,
                at=job.created_at,
                reused_from=copies[job.id].job_id,
                output=copies[job.id].output,
                about=copies[job.id].about,
            )
            for job in made
        }
        settled = [each for id_, state in states.items() if (each := apply_updates(state, [updates[id_]])) is not None]
        await self._applier.write(tx, settled)
        return {each.job.id: each.job for each in settled}

    async def ensure_dispatch(self, shard: Database, job: JobRecord) -> None:
        """Enqueue a job that was accepted earlier, in case it has not reached the queue."""
        await self._recovery.ensure_dispatch(shard.name, job)

    async def _enqueue(self, shard: Database, accepted: AcceptedJobs) -> None:
        """Enqueue accepted jobs. If this fails, outbox recovery enqueues them later."""
        if accepted.submission is None:
            return
        ended = {each.id for each in accepted.ended}
        try:
            await self._recovery.enqueue(shard.name, [job for job in accepted.jobs if job.id not in ended])
        except Exception:
            log.warning(
                "submission.left_to_recovery", shard=shard.name, submission=accepted.submission.id, exc_info=True
            )
        else:
            self._delivery.remove_submission(shard.name, accepted.submission.id)


def _as_reused(job: NewJobRecord, by: ReusedOutput) -> NewJobRecord:
    return replace(job, reserved_tokens=0, saved_tokens=job.reserved_tokens, reused_from=by.job_id, delay_seconds=0)
