"""Accept jobs from callers, and restore jobs from a durable queue."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.pool.completion import JobCompletion
from comfyrelay.comfyui.pool.events import JobQueued
from comfyrelay.comfyui.pool.jobs import PoolJob, Record, Registry
from comfyrelay.comfyui.pool.queues.queue import QueueAdapter, StoredJobs
from comfyrelay.comfyui.pool.ticket import JobOptions, Ticket, make_ticket
from comfyrelay.errors import Conflict, InvalidInput, RunLost


class Intake:
    def __init__(
        self,
        *,
        queue: QueueAdapter,
        registry: Registry,
        completion: JobCompletion,
        schedule: Callable[[Ticket], None],
        make_job: Callable[[Record], PoolJob],
        is_cached: Callable[[str], bool],
    ) -> None:
        """`is_cached` says whether the last run of any server had this `cache_key`."""
        self._queue = queue
        self._registry = registry
        self._completion = completion
        self._schedule = schedule
        self._make_job = make_job
        self._is_cached = is_cached
        self._is_open = False
        self._next_sequence = 1
        self._turn = asyncio.Lock()
        # Number of jobs that are being written to the queue.
        self._pending = 0
        self._none_pending = asyncio.Event()
        self._none_pending.set()

    async def open(self, stored: StoredJobs) -> None:
        """Restore the jobs of a durable queue, and accept new jobs."""
        for ticket, outcome in stored.finished:
            record, _ = self._register(ticket)
            self._completion.restore(record, outcome)
        tickets = (*stored.waiting, *(ticket for ticket, _ in stored.finished))
        self._next_sequence = max((ticket.sequence for ticket in tickets), default=0) + 1
        for ticket in stored.waiting:
            record, _ = self._register(ticket)
            self._registry.counts[record.status] += 1
            if ticket.attempts >= ticket.max_attempts:
                self._queue.remove(ticket.id)
                await self._completion.fail(record, RunLost("The process exited during the last attempt."))
            else:
                self._schedule(ticket)
        self._is_open = True

    async def close(self) -> None:
        """Accept no more jobs, and wait until pending ones are queued."""
        self._is_open = False
        await self._none_pending.wait()

    async def accept(self, graph: Graph, options: JobOptions, client_ids: Collection[str]) -> PoolJob:
        # One job per turn of the event loop, even if a caller enqueues thousands.
        async with self._turn:
            await asyncio.sleep(0)
            if not self._is_open:
                raise Conflict("The pool is not open.")
            ticket = make_ticket(graph, options, sequence=self._next_sequence, created_at=utc_now())
            _check_clients(ticket, client_ids)
            ticket = self._route_by_cache_key(ticket)
            self._next_sequence += 1
        await self._put(ticket)
        # No other task has run since the job became available, so this is its first event.
        record, job = self._register(ticket)
        self._registry.counts[record.status] += 1
        self._completion.emit(record, record.event(JobQueued, priority=ticket.priority))
        self._schedule(ticket)
        return job

    def _route_by_cache_key(self, ticket: Ticket) -> Ticket:
        """Send a job to the server that runs, or ran last, a job with the same cache key."""
        key = ticket.cache_key
        if key is None:
            return ticket
        is_known = self._is_cached(key) or any(record.ticket.cache_key == key for record in self._registry.unfinished)
        return replace(ticket, bucket=ticket.bucket._replace(same_as=key)) if is_known else ticket

    async def _put(self, ticket: Ticket) -> None:
        self._pending += 1
        self._none_pending.clear()
        try:
            await self._queue.put(ticket)
        except asyncio.CancelledError:
            # The caller gets no handle, but the queue may have stored the job.
            self._completion.spawn(self._queue.forget([ticket.id]))
            raise
        finally:
            self._pending -= 1
            if not self._pending:
                self._none_pending.set()

    def _register(self, ticket: Ticket) -> tuple[Record, PoolJob]:
        record = Record(ticket=ticket)
        job = self._make_job(record)
        self._registry.add(record, job)
        return record, job


def _check_clients(ticket: Ticket, client_ids: Collection[str]) -> None:
    if not client_ids:
        raise InvalidInput("The pool has no servers.")
    if ticket.bucket.exclude_clients.issuperset(client_ids):
        raise InvalidInput(errors={"exclude_clients": "names every server of the pool"})
    if unknown := sorted(ticket.bucket.preferred_clients.difference(client_ids)):
        known = ", ".join(sorted(client_ids))
        problem = f"names {', '.join(unknown)}, which the pool does not have; it has {known}"
        raise InvalidInput(f"preferred_clients {problem}.", errors={"preferred_clients": problem})
