"""Estimate jobs before they are submitted: count, price, duration and missing requirements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from comfyrelay.domain.payloads import StoredFile
from comfyrelay.domain.queue.states import Provider, WorkflowKind
from comfyrelay.domain.queue.wait_reasons import DurationEstimate, forecast
from comfyrelay.services.catalogue.availability import MissingRequirements
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.jobs.submission.resolve import Resolver, Target
from comfyrelay.services.jobs.views.media import RecentOutputs
from comfyrelay.services.queue.wait_reasons import start_of_new
from comfyrelay.store.central.queue import pauses
from comfyrelay.store.central.workers import workers

# Items of a batch differ only in inputs, so checking the first items is enough.
MAX_CHECKED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateRequest:
    """A request for an estimate. `files` are files named by items that are not stored yet."""

    tenant_id: str
    user_id: str
    target: Target
    items: Sequence[ItemRequest]
    files: Mapping[str, StoredFile]
    priority: int = 0
    shows_workers: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchEstimate:
    """`workers` is the number of slots that can run the jobs. `forecast` is `None` if no durations are known, or while
    the queue is paused."""

    jobs: int
    tokens: int
    workers: int
    forecast: DurationEstimate | None
    done_at: datetime | None
    missing: MissingRequirements | None


class Estimates:
    def __init__(
        self,
        context: ServiceContext,
        resolve: Resolver,
        recent: RecentOutputs,
    ) -> None:
        self._settings = context.settings
        self._databases = context.databases
        self._stage_of = context.hooks.stage_of
        self._resolve = resolve
        self._recent = recent

    async def estimate(self, request: EstimateRequest) -> BatchEstimate:
        """Estimate the jobs. Raises `InvalidInput` for jobs that would be refused."""
        missing, tokens = await self._check(request)
        jobs = len(request.items)
        slots, expected, now = await self._forecast(request, jobs)
        return BatchEstimate(
            jobs=jobs,
            tokens=tokens,
            workers=slots,
            forecast=expected,
            done_at=None if expected is None else now + timedelta(seconds=expected.seconds),
            missing=missing,
        )

    async def _check(self, request: EstimateRequest) -> tuple[MissingRequirements | None, int]:
        """Return the missing requirements and the price of the jobs."""
        target = request.target
        if target.workflow.kind == WorkflowKind.SCRIPT:
            # The preview of a script checks the values. Checking them as for a job would copy the files.
            return None, 0
        effect = target.effect
        checked = request.items[: None if effect is not None and effect.price_formula is not None else MAX_CHECKED]
        shard = await self._databases.shard_of(request.tenant_id)
        found = await self._resolve.load_media(shard, request.tenant_id, checked, target)
        requests = [
            JobRequest(tenant_id=request.tenant_id, user_id=request.user_id, idempotency_key="estimate", item=item)
            for item in checked
        ]
        media = replace(found, files={**found.files, **request.files})
        checked_jobs = await self._resolve.build_jobs(requests, target, media, request_digest="")
        missing = await self._resolve.find_missing(checked_jobs, target, shows_names=request.shows_workers)
        # Unchecked jobs have the same price as the first job.
        prices = [job.reserved_tokens for job in checked_jobs]
        return missing, sum(prices) + (len(request.items) - len(checked)) * max(prices, default=0)

    async def _forecast(self, request: EstimateRequest, jobs: int) -> tuple[int, DurationEstimate | None, datetime]:
        workflow, effect = request.target.workflow, request.target.effect
        stage = self._settings.stage if self._stage_of is None else self._stage_of(workflow.id)
        async with self._databases.central.read() as tx:
            able = await workers.serving(
                tx,
                workflow.id,
                stage=stage,
                provider=Provider(workflow.provider),
                offline_seconds=self._settings.worker_offline_seconds,
            )
            is_paused = bool(await pauses.paused_at(tx, [request.tenant_id]))
            now = await tx.now()
        slots = sum(worker.max_concurrency for worker in able)
        pace = await self._recent.pace(
            request.tenant_id, workflow_id=workflow.id, effect_id=effect.id if effect else None
        )
        if pace is None and effect is not None and effect.last_processing_time_seconds is not None:
            last = effect.last_processing_time_seconds
            pace = DurationEstimate(last, last, last)
        if pace is None or not slots or is_paused:
            return slots, None, now
        async with self._databases.central.read() as tx:
            start = await start_of_new(
                tx,
                {worker.worker_id: worker.max_concurrency for worker in able},
                stage=stage,
                provider=workflow.provider,
                shared=await workers.workflows_of(tx, [worker.worker_id for worker in able]),
                priority=request.priority,
                own=pace.seconds,
            )
        return slots, None if start is None else forecast(jobs, pace, slots=slots, start=start), now
