"""Accepting: one transaction reserves the tokens and writes the jobs and their outbox row; then come the dispatches."""

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
from comfyrelay.services.jobs.submission.reuse import Reused
from comfyrelay.services.outbox.applying import Applying
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
# From the id of a workflow to the stage that its jobs run at.
StageOf = Callable[[int], Stage]
_NOTHING: Mapping[str, Reused] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """Jobs that were written, and the outbox row that leads them to the queue."""

    jobs: Sequence[JobRecord]
    submission: PendingSubmission | None
    uses_files: bool
    # those of them that were answered with outputs of others, and are not for the queue
    ended: Sequence[JobState] = ()


class Acceptance:
    def __init__(
        self,
        recovery: OutboxRecovery,
        applying: Applying,
        delivery: OutboxDelivery,
        *,
        max_active_jobs: int,
        limit_of: Callable[[str], Awaitable[int | None]],
        stage_of: StageOf | None = None,
        on_files_used: Callable[[], None] = lambda: None,
    ) -> None:
        """`stage_of` decides at which stage jobs run, whatever was asked for; also when they are run again.
        `on_files_used` is called when jobs were written that name files. `limit_of` is a tenant's own limit of active
        jobs, if it has one."""
        self._recovery = recovery
        self._applying = applying
        self._delivery = delivery
        self._max_active_jobs = max_active_jobs
        self._limit_of = limit_of
        self._stage_of = stage_of
        self._on_files_used = on_files_used

    async def run(
        self, shard: Database, tenant_id: str, work: Callable[[Tx, int], Awaitable[tuple[T, Accepted | None]]]
    ) -> tuple[T, bool]:
        """Do `work` under the wallet's lock, with the balance, and bring what it wrote to the queue. Returns its
        answer, and whether it wrote anything."""

        async def locked(tx: Tx) -> tuple[T, Accepted | None]:
            return await work(tx, await ledger.lock_wallet(tx, tenant_id))

        answer, accepted = await shard.run(TransactionStep.SUBMIT_JOB, locked)
        if accepted is not None:
            if accepted.uses_files:
                self._on_files_used()
            if accepted.ended:
                self._applying.announce(shard.name, accepted.ended)
            await self._enqueue(shard, accepted)
        return answer, accepted is not None

    async def check_limit(
        self, tx: Tx, tenant_id: str, user_id: str, *, batch_id: str | None = None, more: int = 1
    ) -> None:
        """Counted under the wallet's lock, so that two submissions cannot both be the last one allowed."""
        own = await self._limit_of(tenant_id)
        limit = self._max_active_jobs if own is None else own
        if await jobs.count_active(tx, tenant_id, user_id, beside=batch_id) + more > limit:
            raise TooManyActiveJobs(limit=limit)

    async def write(
        self, tx: Tx, balance: int, new: Sequence[NewJobRecord], reused: Mapping[str, Reused] = _NOTHING
    ) -> Accepted:
        """The `balance` is that of the locked wallet. `reused` has, by job, what some of them are answered with: they
        cost nothing, and end at once."""
        tenant_id = new[0].tenant_id
        new = [_answered(job, reused[job.id]) if job.id in reused else job for job in new]
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
        return Accepted(
            jobs=[replace(job, **ended[job.id]._asdict()) if job.id in ended else job for job in made],
            submission=await outbox.submit(tx, waiting) if waiting else None,
            uses_files=bool(paths),
            ended=list(ended.values()),
        )

    async def _complete(self, tx: Tx, made: Sequence[JobRecord], copies: Mapping[str, Reused]) -> dict[str, JobState]:
        """As if the queue had told of it: tokens, output, video, events and webhook in this very transaction."""
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
        await self._applying.write(tx, settled)
        return {each.job.id: each.job for each in settled}

    async def ensure_dispatch(self, shard: Database, job: JobRecord) -> None:
        """For a job that was accepted before: it may still be on its way to the queue."""
        await self._recovery.ensure_dispatch(shard.name, job)

    async def _enqueue(self, shard: Database, accepted: Accepted) -> None:
        """If this fails, the jobs are accepted all the same, and the outbox recovery does it."""
        if accepted.submission is None:
            return
        ended = {each.id for each in accepted.ended}
        try:
            await self._recovery.enqueue(shard.name, [job for job in accepted.jobs if job.id not in ended])
        except Exception:
            log.warning("submit.left_to_recovery", shard=shard.name, submission=accepted.submission.id, exc_info=True)
        else:
            self._delivery.remove_submission(shard.name, accepted.submission.id)


def _answered(job: NewJobRecord, by: Reused) -> NewJobRecord:
    return replace(job, reserved_tokens=0, saved_tokens=job.reserved_tokens, reused_from=by.job_id, delay_seconds=0)
