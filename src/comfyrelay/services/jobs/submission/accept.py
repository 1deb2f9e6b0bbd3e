"""Accept jobs: one transaction reserves tokens and writes the jobs and their outbox row; dispatches follow."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import structlog

from comfyrelay import traces
from comfyrelay.domain.queue.settlement import JobState, apply_updates
from comfyrelay.domain.queue.updates import reused as reused_update
from comfyrelay.domain.records.accounts import OwnLimits
from comfyrelay.domain.records.jobs import JobRecord, NewJobRecord
from comfyrelay.domain.space import check_space
from comfyrelay.errors import PriceChanged, TooManyActiveJobs
from comfyrelay.services.accounts.ledger import reserve
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.submission.reuse import Reuse, ReusedOutputs
from comfyrelay.services.outbox import Outbox
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import jobs, ledger
from comfyrelay.store.tenant.library import media
from comfyrelay.store.tenant.submissions import PendingSubmission

log = structlog.get_logger(__name__)

T = TypeVar("T")
_NO_REUSE: Mapping[str, ReusedOutputs] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedJobs:
    """Written jobs, and the outbox row from which they are enqueued."""

    jobs: Sequence[JobRecord]
    submission: PendingSubmission | None
    uses_files: bool
    # Jobs that completed with a reused output and do not enter the queue.
    ended: Sequence[JobState] = ()


class Acceptance:
    def __init__(
        self,
        context: ServiceContext,
        outbox_services: Outbox,
        reuse: Reuse,
        *,
        limits_of: Callable[[str], Awaitable[OwnLimits]],
        on_files_used: Callable[[], None],
    ) -> None:
        """`limits_of` returns a tenant's own limits. `on_files_used` is called after jobs with files were written."""
        self._recovery = outbox_services.recovery
        self._applier = outbox_services.applier
        self._delivery = outbox_services.delivery
        self._max_active_jobs = context.settings.max_active_jobs_per_user
        self._max_workflow_bytes = context.settings.max_workflow_bytes
        self._stage_of = context.hooks.stage_of
        self._reuse = reuse
        self._limits_of = limits_of
        self._on_files_used = on_files_used

    async def run(
        self,
        shard: Database,
        tenant_id: str,
        work: Callable[[Tx, int], Awaitable[tuple[T, AcceptedJobs | None]]],
        *,
        reused: Mapping[str, ReusedOutputs] = _NO_REUSE,
    ) -> tuple[T, bool]:
        """Run `work(tx, spendable)` under the wallet lock and enqueue the jobs that it wrote.

        Returns the result of `work` and whether it wrote any jobs. If not, the copies in `reused` are removed.
        """
        is_written = False
        began_at = time.time()

        async def locked(tx: Tx) -> tuple[T, AcceptedJobs | None]:
            nonlocal is_written
            is_written = False
            answer, accepted = await work(tx, (await ledger.lock(tx, tenant_id)).spendable)
            is_written = accepted is not None
            return answer, accepted

        try:
            answer, accepted = await shard.run(TransactionStep.SUBMIT_JOB, locked)
        finally:
            if not is_written:
                await self._reuse.discard(reused)
        if accepted is not None:
            if accepted.uses_files:
                self._on_files_used()
            if accepted.ended:
                self._applier.announce(shard.name, accepted.ended)
            await self._enqueue(shard, accepted)
            if traces.is_on():
                for job in accepted.jobs:
                    traces.record("job.submit", job.id, begin=began_at, key=job.id, about={"tenant_id": tenant_id})
        return answer, accepted is not None

    async def check_limit(
        self, tx: Tx, tenant_id: str, user_id: str, *, batch_id: str | None = None, more: int = 1
    ) -> None:
        """Check the limit of active jobs under the wallet lock, so that concurrent submissions cannot exceed it
        together."""
        await self.check_active(
            tenant_id, await jobs.count_active(tx, tenant_id, user_id, except_batch=batch_id), more=more
        )

    async def check_active(self, tenant_id: str, active: int, *, more: int = 1) -> None:
        """Check the limit of active jobs for a user who has this number of them."""
        own = (await self._limits_of(tenant_id)).max_active_jobs
        limit = self._max_active_jobs if own is None else own
        if active + more > limit:
            raise TooManyActiveJobs(limit=limit)

    async def write_jobs(
        self, tx: Tx, balance: int, new: Sequence[NewJobRecord], reused: Mapping[str, ReusedOutputs] = _NO_REUSE
    ) -> AcceptedJobs:
        """Write new jobs. `balance` is the balance of the locked wallet.

        `reused` contains, by job id, the outputs of jobs that are free and complete immediately.
        """
        tenant_id = new[0].tenant_id
        new = [_to_reused(job, reused[job.id]) if job.id in reused else job for job in new]
        if self._stage_of is not None:
            new = [replace(job, stage=self._stage_of(job.workflow_id)) for job in new]
        await reserve(tx, tenant_id, balance, {job.id: job.reserved_tokens for job in new})
        if space := sum(job.space_bytes or 0 for job in new):
            check_space(await ledger.take_space(tx, tenant_id, space), max_bytes=self._max_workflow_bytes)
        waiting = [job.id for job in new if job.id not in reused]
        created, submission = await jobs.create(tx, new, submitted=waiting)
        if paths := {asset["path"] for job in new for asset in job.input_payload["assets"]}:
            await media.use_files(tx, tenant_id, paths)
        if videos := {job.video_id: job.id for job in new if job.video_id is not None}:
            await media.attach_job(tx, videos)
        ended = await self._complete(tx, [job for job in created if job.id in reused], reused) if reused else {}
        return AcceptedJobs(
            jobs=[replace(job, **ended[job.id]._asdict()) if job.id in ended else job for job in created],
            submission=submission,
            uses_files=bool(paths),
            ended=list(ended.values()),
        )

    async def _complete(
        self, tx: Tx, created: Sequence[JobRecord], copies: Mapping[str, ReusedOutputs]
    ) -> dict[str, JobState]:
        """Settle jobs in this transaction as if a worker had completed them: tokens, output, video, event and
        webhook."""
        states = await jobs.lock_states(tx, [job.id for job in created])
        updates = {
            job.id: reused_update(
                tenant_id=job.tenant_id,
                job_id=job.id,
                priority=job.priority,
                at=job.created_at,
                reused_from=copies[job.id].job_id,
                outputs=copies[job.id].outputs,
                about=copies[job.id].about,
            )
            for job in created
        }
        applied = (apply_updates(state, [updates[id_]]) for id_, state in states.items())
        settled = [change for change in applied if change is not None]
        await self._applier.write(tx, settled)
        return {change.job.id: change.job for change in settled}

    async def ensure_dispatch(self, shard: Database, job: JobRecord) -> None:
        """Enqueue a job that was accepted earlier, in case it has not reached the queue."""
        await self._recovery.ensure_dispatch(shard.name, job)

    async def _enqueue(self, shard: Database, accepted: AcceptedJobs) -> None:
        """Enqueue accepted jobs. If this fails, outbox recovery enqueues them later."""
        if accepted.submission is None:
            return
        ended = {job.id for job in accepted.ended}
        try:
            await self._recovery.enqueue(shard.name, [job for job in accepted.jobs if job.id not in ended])
        except Exception:
            log.warning(
                "submission.left_to_recovery", shard=shard.name, submission=accepted.submission.id, exc_info=True
            )
        else:
            self._delivery.remove_submission(shard.name, accepted.submission.id)


def _to_reused(job: NewJobRecord, by: ReusedOutputs) -> NewJobRecord:
    return replace(job, reserved_tokens=0, saved_tokens=job.reserved_tokens, reused_from=by.job_id, delay_seconds=0)


def check_price(new: Sequence[NewJobRecord], expected_tokens: int | None) -> None:
    """Refuse jobs if the user saw another price for all of them together."""
    required = sum(job.reserved_tokens for job in new)
    if expected_tokens is not None and required != expected_tokens:
        raise PriceChanged(expected_tokens=expected_tokens, required_tokens=required)
