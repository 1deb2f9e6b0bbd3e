"""Batches: jobs that are submitted, paused, canceled and retried together."""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from comfyrelay.domain.bulk import MAX_ITEMS, BatchAxis
from comfyrelay.domain.ids import digest, new_id
from comfyrelay.domain.queue.states import ACTIVE_JOB, TERMINAL_JOB, JobStatus
from comfyrelay.domain.records.jobs import BatchRecord, JobRecord, NewJobRecord
from comfyrelay.errors import Conflict, IdempotencyConflict, InvalidInput
from comfyrelay.pacing import paced
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.jobs.submission import rerun
from comfyrelay.services.jobs.submission.accept import Acceptance, AcceptedJobs, check_price
from comfyrelay.services.jobs.submission.requests import (
    ItemRequest,
    JobRequest,
    SubmissionRequest,
    check_texts,
    wait_limit,
)
from comfyrelay.services.jobs.submission.rerun_offers import RerunOffers
from comfyrelay.services.jobs.submission.rerun_rules import RerunRules
from comfyrelay.services.jobs.submission.resolve import Resolver
from comfyrelay.services.jobs.submission.reuse import Reuse
from comfyrelay.services.paging import ResultPage, make_page
from comfyrelay.services.queue import Queue
from comfyrelay.services.queue.control import require_batch
from comfyrelay.store.database import Database, Tx
from comfyrelay.store.tenant import jobs, overview
from comfyrelay.store.tenant.library import media


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRequest(SubmissionRequest):
    items: Sequence[ItemRequest]
    label: str | None = None
    # The lists of values that the items combine, for the grid of outputs.
    axes: Sequence[BatchAxis] = ()
    notify_urls: Sequence[str] = field(default=(), repr=False)
    # Identifies equal requests with the same key. By default, it is computed from the other fields.
    request_digest: str | None = None
    # The price of all items that the user has seen. It is not part of the digest.
    expected_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchState:
    """A batch and its progress. A retried item counts as its newest attempt."""

    id: str
    label: str | None
    created_at: datetime
    # By status. Prefetched jobs count as queued.
    counts: Mapping[str, int] = field(default_factory=dict)
    fetched: int = 0
    expected_seconds: float | None = None
    # The reason why the rest of the batch is held, if it is.
    held: str | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        return sum(self.counts.get(status, 0) for status in TERMINAL_JOB)

    @property
    def progress(self) -> float:
        return self.done / self.total if self.total else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchGrid:
    """The outputs of a batch by the lists of values that its items combine. `cells` contains an output for each item,
    in item order: the first output of its newest job. The last axis varies fastest. Without axes, the batch has no
    grid."""

    axes: Sequence[BatchAxis]
    cells: Sequence[str | None]


class Batches:
    def __init__(
        self,
        context: ServiceContext,
        resolve: Resolver,
        accept: Acceptance,
        reuse: Reuse,
        *,
        rules: RerunRules,
        offers: RerunOffers,
        queue: Queue,
    ) -> None:
        self._settings = context.settings
        self._databases = context.databases
        self._hooks = context.hooks
        self._resolve = resolve
        self._accept = accept
        self._reuse = reuse
        self._control = queue.control
        self._wait_reasons = queue.wait_reasons
        self._rules = rules
        self._offers = offers

    async def submit(self, request: BatchRequest) -> BatchState:
        """Accept all items or none, with a constant number of statements in each database."""
        return (await self.submit_once(request))[0]

    async def submit_once(self, request: BatchRequest) -> tuple[BatchState, bool]:
        """Like `submit`, and return whether the batch is new."""
        if not 1 <= len(request.items) <= MAX_ITEMS:
            raise InvalidInput(errors={"items": f"A batch has between 1 and {MAX_ITEMS} items."})
        cells = math.prod(len(axis.values) for axis in request.axes)
        if request.axes and cells != len(request.items):
            raise InvalidInput(
                errors={"axes": f"The axes have {cells:,} combinations, but there are {len(request.items):,} items."}
            )
        check_texts(
            idempotency_key=request.idempotency_key,
            allow_private=self._settings.webhook_allow_private,
            label=request.label,
            webhook_url=request.webhook_url,
        )
        if request.notify_urls and not self._hooks.users_are_owners:
            # Unlike webhook URLs, notification URLs are not checked and could point into the server's own network.
            raise InvalidInput(errors={"notify_urls": "Only a desk sends notifications. Name a webhook_url instead."})
        shard = await self._databases.shard_of(request.tenant_id)
        request_digest = request.request_digest
        if request_digest is None:
            request_digest = await asyncio.to_thread(_digest, request)
        known = await self.find_known(
            request.tenant_id, idempotency_key=request.idempotency_key, request_digest=request_digest
        )
        if known is not None:
            return known, False
        batch, is_new = await self._create(shard, request, request_digest)
        if batch.request_digest != request_digest:
            raise IdempotencyConflict
        return await self.state(request.tenant_id, batch.id), is_new

    async def find_prices(self, request: BatchRequest) -> list[int]:
        """Return the tokens that each item would reserve, without writing anything."""
        requests = [_job_request(request, item, number) async for number, item in paced(enumerate(request.items))]
        return await self._resolve.find_prices(await self._databases.shard_of(request.tenant_id), requests)

    async def find_known(self, tenant_id: str, *, idempotency_key: str, request_digest: str) -> BatchState | None:
        """Find the batch of an earlier equal request. Raises `IdempotencyConflict` if another request used the key."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            batch = await media.batch(tx, tenant_id, key=idempotency_key)
        if batch is None:
            return None
        if batch.request_digest != request_digest:
            raise IdempotencyConflict
        return await self.state(tenant_id, batch.id)

    async def _create(self, shard: Database, request: BatchRequest, request_digest: str) -> tuple[BatchRecord, bool]:
        batch_id = new_id()
        new = await self._new_jobs(shard, request, batch_id, request_digest)
        check_price(new, request.expected_tokens)
        reused = await self._reuse.copy_outputs(shard, new, batch_label=request.label) if request.reuse else {}

        async def work(tx: Tx, balance: int) -> tuple[BatchRecord, AcceptedJobs | None]:
            known = await media.batch(tx, request.tenant_id, key=request.idempotency_key)
            if known is not None:
                return known, None
            # Jobs with a reused output are never active.
            if len(reused) < len(new):
                await self._accept.check_limit(tx, request.tenant_id, request.user_id)
            batch = await media.create_batch(
                tx,
                id=batch_id,
                tenant_id=request.tenant_id,
                user_id=request.user_id,
                label=request.label,
                idempotency_key=request.idempotency_key,
                request_digest=request_digest,
                notify_urls=list(request.notify_urls) or None,
                axes=[asdict(axis) for axis in request.axes] or None,
            )
            return batch, await self._accept.write_jobs(tx, balance, new, reused)

        return await self._accept.run(shard, request.tenant_id, work, reused=reused)

    async def _new_jobs(
        self, shard: Database, request: BatchRequest, batch_id: str, request_digest: str
    ) -> list[NewJobRecord]:
        target = await self._resolve.find_target(
            request.tenant_id,
            effect_id=request.effect_id,
            workflow_slug=request.workflow_slug,
            is_guest=request.is_guest,
        )
        self._resolve.check_batch_size(target, len(request.items))
        found = await self._resolve.load_media(
            shard, request.tenant_id, request.items, target, hash_content=request.reuse
        )
        return await self._resolve.resolve_jobs(
            [_job_request(request, item, number) async for number, item in paced(enumerate(request.items))],
            target,
            found,
            request_digest=request_digest,
            batch_id=batch_id,
        )

    async def state(self, tenant_id: str, batch_id: str) -> BatchState:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            batch = await require_batch(tx, tenant_id, batch_id)
            counts = await jobs.count_in_batches(tx, tenant_id, [batch.id])
        [state] = await self._states(tenant_id, [batch], counts)
        return state

    async def grid(self, tenant_id: str, batch_id: str) -> BatchGrid:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            await require_batch(tx, tenant_id, batch_id)
            axes = [BatchAxis(**axis) for axis in await media.batch_axes(tx, tenant_id, batch_id)]
            found = await media.batch_cells(tx, tenant_id, batch_id) if axes else {}
        count = math.prod(len(axis.values) for axis in axes) if axes else 0
        return BatchGrid(axes=axes, cells=[found.get(number) for number in range(count)])

    async def states(self, tenant_id: str, batch_ids: Collection[str]) -> list[BatchState]:
        if not batch_ids:
            return []
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await media.batches_of(tx, tenant_id, batch_ids)
            counts = await jobs.count_in_batches(tx, tenant_id, [batch.id for batch in found])
        return await self._states(tenant_id, found, counts)

    async def page(self, tenant_id: str, *, before_id: str | None = None, limit: int) -> ResultPage[BatchState]:
        """Return a page of batches, newest first."""
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            found = await media.batch_page(tx, tenant_id, before_id=before_id, limit=limit + 1)
            page = make_page(found, limit=limit)
            counts = await jobs.count_in_batches(tx, tenant_id, [batch.id for batch in page.items])
        return page.with_items(await self._states(tenant_id, page.items, counts))

    async def _states(
        self, tenant_id: str, batches: Sequence[BatchRecord], counts: Mapping[str, Mapping[str, int]]
    ) -> list[BatchState]:
        """Return the states of batches with these counts by status. Prefetched jobs count as queued."""
        active = {id_ for id_, found in counts.items() if any(found.get(status) for status in ACTIVE_JOB)}
        fetched: Counter[str | None] = Counter()
        if active:
            # Most batches of a list have ended and need no further queries.
            async with self._databases.central.read() as tx:
                leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
            fetched.update(item.batch_id for item in leased if item.is_prefetched)
        ends = await self._wait_reasons.batch_ends(tenant_id, active) if active else {}
        return [
            BatchState(
                id=batch.id,
                label=batch.label,
                created_at=batch.created_at,
                **_count_fetched(counts.get(batch.id, {}), fetched[batch.id]),
                expected_seconds=ends.get(batch.id),
                # The batch is no longer held if all its jobs were resumed or canceled one by one.
                held=batch.held_text if counts.get(batch.id, {}).get(JobStatus.PAUSED) else None,
            )
            for batch in batches
        ]

    async def run_again(self, tenant_id: str, batch_id: str, *, new_seeds: bool) -> BatchState:
        """Run all items of a batch again, in a new batch."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            ended = await jobs.newest_in_batch(tx, tenant_id, batch_id)
        await self._rules.check_again(ended)
        offers = await self._offers.of(shard, ended)
        new_batch_id = new_id()

        async def work(tx: Tx, balance: int) -> tuple[BatchRecord, AcceptedJobs]:
            before = await require_batch(tx, tenant_id, batch_id)
            old = await jobs.newest_in_batch(tx, tenant_id, batch_id)
            if not old:
                raise Conflict("This batch has no jobs left to run again.")
            await self._accept.check_limit(tx, tenant_id, old[0].user_id)
            new = await rerun.batch_copies(
                tx, old, offers, batch_id=new_batch_id, new_seeds=new_seeds, vary=self._hooks.vary
            )
            key = f"again:{new_batch_id}"
            batch = await media.create_batch(
                tx,
                id=new_batch_id,
                tenant_id=tenant_id,
                user_id=old[0].user_id,
                label=before.label,
                idempotency_key=key,
                request_digest=key,
                notify_urls=before.notify_urls,
                axes=await media.batch_axes(tx, tenant_id, batch_id) or None,
            )
            return batch, await self._accept.write_jobs(tx, balance, new)

        batch, _ = await self._accept.run(shard, tenant_id, work)
        return await self.state(tenant_id, batch.id)

    async def retry_failed(self, tenant_id: str, batch_id: str, *, new_seeds: bool = False) -> int:
        """Retry the items whose newest attempt failed, and return their number."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            await require_batch(tx, tenant_id, batch_id)
            ended = await _failed_jobs(tx, tenant_id, batch_id)
        await self._rules.check_retry(ended)

        async def work(tx: Tx, balance: int) -> tuple[int, AcceptedJobs | None]:
            failed = await _failed_jobs(tx, tenant_id, batch_id)
            return await self._write_retries(tx, balance, failed, new_seeds=new_seeds)

        retried, _ = await self._accept.run(shard, tenant_id, work)
        return retried

    async def resume(self, tenant_id: str, batch_id: str) -> int:
        """Resume paused jobs. In a held batch, also retry the failed jobs that caused the hold. Returns the number of
        jobs."""
        # Release first, because jobs that fail after the resume must be able to hold the batch again.
        retried = await self.release(tenant_id, [batch_id])
        return retried + await self._control.resume_batch(tenant_id, batch_id)

    async def release(self, tenant_id: str, batch_ids: Sequence[str]) -> int:
        """Release held batches, retry the failed jobs that caused the holds, and return the number of these jobs."""
        shard = await self._databases.shard_of(tenant_id)
        async with shard.read() as tx:
            held = [batch.id for batch in await media.batches_of(tx, tenant_id, batch_ids) if batch.held]

        async def work(tx: Tx, balance: int) -> tuple[int, AcceptedJobs | None]:
            failed: list[JobRecord] = []
            for batch_id in held:
                causes = set(await media.release_batch(tx, tenant_id, batch_id))
                failed += [job for job in await _failed_jobs(tx, tenant_id, batch_id) if job.id in causes]
            return await self._write_retries(tx, balance, failed, new_seeds=False)

        return (await self._accept.run(shard, tenant_id, work))[0] if held else 0

    async def _write_retries(
        self, tx: Tx, balance: int, failed: Sequence[JobRecord], *, new_seeds: bool
    ) -> tuple[int, AcceptedJobs | None]:
        if not failed:
            return 0, None
        first = failed[0]
        await self._accept.check_limit(tx, first.tenant_id, first.user_id, batch_id=first.batch_id)
        retries = await rerun.retries(tx, failed, new_seeds=new_seeds, vary=self._hooks.vary)
        accepted = await self._accept.write_jobs(tx, balance, retries)
        return len(accepted.jobs), accepted


async def _failed_jobs(tx: Tx, tenant_id: str, batch_id: str) -> list[JobRecord]:
    newest = await jobs.newest_in_batch(tx, tenant_id, batch_id)
    return [job for job in newest if job.status == JobStatus.FAILED]


def _count_fetched(counts: Mapping[str, int], fetched: int) -> dict[str, Any]:
    """Return the counts, in which prefetched jobs count as queued, and the number of prefetched jobs."""
    # The minimum is needed because the two databases are not read at the same moment.
    moved = min(fetched, counts.get(JobStatus.PROCESSING, 0))
    if not moved:
        return {"counts": counts}
    queued, processing = counts.get(JobStatus.QUEUED, 0) + moved, counts[JobStatus.PROCESSING] - moved
    return {"counts": {**counts, JobStatus.QUEUED: queued, JobStatus.PROCESSING: processing}, "fetched": moved}


def _digest(request: BatchRequest) -> str:
    return digest(
        {
            "label": request.label,
            "effect_id": request.effect_id,
            "workflow_slug": request.workflow_slug,
            "priority": request.priority,
            "webhook_url": request.webhook_url,
            "notify_urls": list(request.notify_urls),
            "stage": request.stage,
            **wait_limit(request.max_wait_seconds),
            "items": [
                [dict(item.input_payload), item.input_file_id, item.video_id, item.label, item.output_folder]
                for item in request.items
            ],
        }
    )


def _job_request(request: BatchRequest, item: ItemRequest, number: int) -> JobRequest:
    key = f"batch:{request.idempotency_key}:{number}"
    return JobRequest(**{**request.shared_fields(), "idempotency_key": key}, item=item)
