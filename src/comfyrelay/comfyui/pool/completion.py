"""Finish jobs: store the outcome, then notify all waiters and subscribers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.events import JobCanceled, JobCompleted, JobFailed, PoolEvent, PoolJobEvent
from comfyrelay.comfyui.pool.jobs import Record, Registry
from comfyrelay.comfyui.pool.queues.queue import JobOutcome, PoolJobStatus, QueueAdapter
from comfyrelay.errors import Canceled, ComfyError

T = TypeVar("T")
log = structlog.get_logger(__name__)


class JobCompletion:
    def __init__(self, *, queue: QueueAdapter, registry: Registry, emit: Callable[[PoolEvent], None]) -> None:
        self._queue = queue
        self._registry = registry
        self._emit_to_all = emit
        self._tasks: set[asyncio.Task[Any]] = set()

    async def complete(self, record: Record, result: RunResult) -> None:
        await self._end(record, PoolJobStatus.COMPLETED, result=result)

    async def fail(self, record: Record, error: ComfyError) -> None:
        await self._end(record, PoolJobStatus.FAILED, error=error)

    async def cancel(self, record: Record, reason: str | None = None) -> None:
        await self._end(record, PoolJobStatus.CANCELED, reason=reason)

    def restore(self, record: Record, outcome: JobOutcome) -> None:
        """Restore a job that finished before the pool was opened."""
        record.client_id = outcome.client_id
        record.started_at = outcome.started_at
        record.end(outcome, _final_event(record, outcome, None))
        self._mark_finished(record)

    def abandon(self, record: Record) -> None:
        """Fail the waiters of a job that remains in the durable queue while the pool closes."""
        record.failure = Canceled("The pool was closed; the job remains in its queue for the next start.")
        record.set_done()

    def set_status(self, record: Record, status: PoolJobStatus) -> None:
        self._registry.counts[record.status] -= 1
        self._registry.counts[status] += 1
        record.status = status

    def emit(self, record: Record, event: PoolJobEvent) -> None:
        for stream in record.streams:
            stream.put(event)
        self._emit_to_all(event)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that is awaited before the pool closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_for_tasks(self) -> None:
        """Wait for all spawned tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _end(
        self,
        record: Record,
        status: PoolJobStatus,
        *,
        result: RunResult | None = None,
        error: ComfyError | None = None,
        reason: str | None = None,
    ) -> None:
        record.can_stop = False
        outcome = JobOutcome(
            status=status,
            attempts=record.ticket.attempts,
            started_at=record.started_at,
            finished_at=utc_now(),
            client_id=record.client_id,
            result=result,
            error=error,
        )
        try:
            await self._queue.settle(record.ticket.id, outcome)
        except Exception:
            # The job has ended anyway. If a durable queue could not store the outcome, the job runs again after a
            # restart.
            log.exception("pool.settle_failed", job_id=record.ticket.id)
        self.set_status(record, status)
        final_event = _final_event(record, outcome, reason)
        record.end(outcome, final_event)
        self._mark_finished(record)
        self._emit_to_all(final_event)

    def _mark_finished(self, record: Record) -> None:
        record.set_done()
        if dropped := self._registry.mark_finished(record.ticket.id):
            self.spawn(self._forget(dropped))

    async def _forget(self, job_ids: list[str]) -> None:
        try:
            await self._queue.forget(job_ids)
        except Exception:
            log.exception("pool.forget_failed", jobs=len(job_ids))


def _final_event(record: Record, outcome: JobOutcome, reason: str | None) -> PoolJobEvent:
    if outcome.result is not None:
        return record.event(JobCompleted, result=outcome.result)
    if outcome.error is not None:
        return record.event(JobFailed, error=outcome.error)
    return record.event(JobCanceled, reason=Canceled(reason).detail)
