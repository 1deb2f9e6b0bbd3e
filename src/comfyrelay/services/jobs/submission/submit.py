"""Submit, retry and rerun single jobs."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.states import TERMINAL_JOB, JobStatus
from comfyrelay.domain.records.catalogue import WorkflowRecord
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import ComfyRelayError, Conflict, IdempotencyConflict
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.submission import rerun
from comfyrelay.services.jobs.submission.accept import Acceptance, AcceptedJobs, check_price
from comfyrelay.services.jobs.submission.requests import JobRequest, check_texts
from comfyrelay.services.jobs.submission.rerun_offers import RerunOffers
from comfyrelay.services.jobs.submission.rerun_rules import RerunRules
from comfyrelay.services.jobs.submission.resolve import Resolver
from comfyrelay.services.jobs.submission.reuse import Reuse
from comfyrelay.services.queue.control import require_job
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import jobs

# Writes additional rows for a new job, in the transaction of the job.
OnWritten = Callable[[Tx, JobRecord], Awaitable[None]]
_RETRYABLE = {JobStatus.FAILED, JobStatus.CANCELED}


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedJob:
    """A job, whether the request created it, and the seed of a new job."""

    job: JobRecord
    is_new: bool
    seed: int | None = None


class JobSubmission:
    def __init__(
        self,
        context: ServiceContext,
        resolve: Resolver,
        accept: Acceptance,
        reuse: Reuse,
        *,
        rules: RerunRules,
        offers: RerunOffers,
    ) -> None:
        self._databases = context.databases
        self._allow_private = context.settings.webhook_allow_private
        self._vary = context.hooks.vary
        self._resolve = resolve
        self._accept = accept
        self._reuse = reuse
        self._rules = rules
        self._offers = offers

    async def submit(self, request: JobRequest) -> JobRecord:
        """Accept a job, once per idempotency key. When this returns, the job will end in exactly one terminal state."""
        return (await self.submit_once(request)).job

    async def submit_once(
        self, request: JobRequest, *, also: OnWritten | None = None, workflow: WorkflowRecord | None = None
    ) -> SubmittedJob:
        """Like `submit`, and return whether the job is new. `also` is called in the transaction that writes it.
        `workflow` is the one that the request names, if the caller has just read it."""
        check_texts(
            idempotency_key=request.idempotency_key,
            allow_private=self._allow_private,
            webhook_url=request.webhook_url,
        )
        shard = await self._databases.shard_of(request.tenant_id)
        request_digest = request.digest()
        try:
            new = await self._resolve.resolve_job(shard, request, request_digest=request_digest, workflow=workflow)
            check_price([new], request.expected_tokens)
        except ComfyRelayError:
            # An accepted job is returned even if the same request would be refused now.
            if (known := await _by_key(shard, request)) is None:
                raise
            return await self._answer_repeat(shard, known, request_digest)
        # With `reuse`, check the key first: a repeated request must not copy the output of its own job. Otherwise, the
        # key is checked under the lock.
        if request.reuse and (known := await _by_key(shard, request)) is not None:
            return await self._answer_repeat(shard, known, request_digest)
        reused = await self._reuse.copy_outputs(shard, [new]) if request.reuse else {}

        async def work(tx: Tx, balance: int) -> tuple[JobRecord, AcceptedJobs | None]:
            known, active = await jobs.check_key(
                tx, request.tenant_id, request.user_id, idempotency_key=request.idempotency_key
            )
            if known is not None:
                return known, None
            # A job with a reused output is never active.
            if not reused:
                await self._accept.check_active(request.tenant_id, active)
            accepted = await self._accept.write_jobs(tx, balance, [new], reused)
            if also is not None:
                await also(tx, accepted.jobs[0])
            return accepted.jobs[0], accepted

        job, is_new = await self._accept.run(shard, request.tenant_id, work, reused=reused)
        if not is_new:
            return await self._answer_repeat(shard, job, request_digest)
        return SubmittedJob(job=job, is_new=True, seed=JobPayload.from_json(new.input_payload).seed)

    async def find_price(self, request: JobRequest) -> int:
        """Return the tokens that a job would reserve, without writing anything."""
        [price] = await self._resolve.find_prices(await self._databases.shard_of(request.tenant_id), [request])
        return price

    async def retry(self, tenant_id: str, job_id: str, *, new_seeds: bool = False) -> JobRecord:
        """Retry a failed or canceled job as a new job with a new reservation. A job is retried at most once."""
        return (await self.retry_once(tenant_id, job_id, new_seeds=new_seeds)).job

    async def retry_once(
        self, tenant_id: str, job_id: str, *, new_seeds: bool = False, expected_tokens: int | None = None
    ) -> SubmittedJob:
        """Like `retry`, and return whether the retry is new."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            retried = await require_job(tx, tenant_id, job_id)
        await self._rules.check_retry([retried])

        async def work(tx: Tx, balance: int) -> tuple[JobRecord, AcceptedJobs | None]:
            old = await require_job(tx, tenant_id, job_id)
            if (known := await jobs.retry_of(tx, job_id)) is not None:
                return known, None
            if old.status not in _RETRYABLE:
                raise Conflict(f"Only a failed or canceled job can be retried; this one is {old.status}.")
            await self._accept.check_limit(tx, tenant_id, old.user_id, batch_id=old.batch_id)
            [retry] = await rerun.retries(tx, [old], new_seeds=new_seeds, vary=self._vary)
            check_price([retry], expected_tokens)
            accepted = await self._accept.write_jobs(tx, balance, [retry])
            return accepted.jobs[0], accepted

        job, is_new = await self._accept.run(shard, tenant_id, work)
        if not is_new:
            await self._accept.ensure_dispatch(shard, job)
        return SubmittedJob(job=job, is_new=is_new)

    async def retry_all(self, tenant_id: str, job_ids: Sequence[str]) -> int:
        """Retry all jobs or none, in one transaction. Returns the number of jobs that had not been retried before."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            wanted = [job for job in await jobs.by_ids(tx, job_ids) if job.tenant_id == tenant_id]
        await self._rules.check_retry(wanted)

        async def work(tx: Tx, balance: int) -> tuple[int, AcceptedJobs | None]:
            found = {job.id: job for job in await jobs.by_ids(tx, job_ids) if job.tenant_id == tenant_id}
            known = await jobs.retries_of(tx, job_ids)
            old = [found[job_id] for job_id in job_ids if job_id in found and job_id not in known]
            if any(job.status not in _RETRYABLE for job in old):
                raise Conflict("Only failed or canceled jobs can be retried.")
            if not old:
                return 0, None
            for user_id in {job.user_id for job in old}:
                # A batch counts as one unit.
                units = {job.batch_id or job.id for job in old if job.user_id == user_id}
                await self._accept.check_limit(tx, tenant_id, user_id, more=len(units))
            retries = await rerun.retries(tx, old, new_seeds=False, vary=self._vary)
            accepted = await self._accept.write_jobs(tx, balance, retries)
            return len(accepted.jobs), accepted

        retried, _ = await self._accept.run(shard, tenant_id, work)
        return retried

    async def run_again(
        self, tenant_id: str, job_id: str, *, new_seeds: bool = False, expected_tokens: int | None = None
    ) -> JobRecord:
        """Run an ended job again, as a new job outside any batch."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            ended = await require_job(tx, tenant_id, job_id)
        await self._rules.check_again([ended])
        offer = rerun.offer_of(await self._offers.of(shard, [ended]), ended)

        async def work(tx: Tx, balance: int) -> tuple[JobRecord, AcceptedJobs | None]:
            old = await _require_ended(tx, tenant_id, job_id)
            await self._accept.check_limit(tx, tenant_id, old.user_id)
            copy = await rerun.copy_alone(tx, old, offer, new_seeds=new_seeds, vary=self._vary)
            check_price([copy], expected_tokens)
            accepted = await self._accept.write_jobs(tx, balance, [copy])
            return accepted.jobs[0], accepted

        job, _ = await self._accept.run(shard, tenant_id, work)
        return job

    async def run_free(self, tenant_id: str, job_id: str) -> JobRecord:
        """Run an ended job again for its user without a price. The user's limit of active jobs does not apply."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            ended = await require_job(tx, tenant_id, job_id)
        await self._rules.check_retry([ended])

        async def work(tx: Tx, balance: int) -> tuple[JobRecord, AcceptedJobs | None]:
            old = await _require_ended(tx, tenant_id, job_id)
            copy = await rerun.copy_alone(tx, old, None, new_seeds=False, vary=self._vary)
            # A user who later runs this job again pays the usual price.
            free = replace(copy, reserved_tokens=0, saved_tokens=old.again_tokens)
            accepted = await self._accept.write_jobs(tx, balance, [free])
            return accepted.jobs[0], accepted

        job, _ = await self._accept.run(shard, tenant_id, work)
        return job

    async def _answer_repeat(self, shard: Database, job: JobRecord, request_digest: str) -> SubmittedJob:
        if job.request_digest != request_digest:
            raise IdempotencyConflict
        if job.status in {JobStatus.QUEUED, JobStatus.PROCESSING}:
            await self._accept.ensure_dispatch(shard, job)
        return SubmittedJob(job=job, is_new=False)


async def _require_ended(tx: Tx, tenant_id: str, job_id: str) -> JobRecord:
    job = await require_job(tx, tenant_id, job_id)
    if job.status not in TERMINAL_JOB:
        raise Conflict(f"Only a job that has ended can be run again; this one is {job.status}.")
    return job


async def _by_key(shard: Database, request: JobRequest) -> JobRecord | None:
    async with shard.read() as tx:
        return await jobs.by_key(tx, request.tenant_id, request.idempotency_key)
