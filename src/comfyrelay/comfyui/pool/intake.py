"""Accept jobs from callers, and restore jobs from a durable queue."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.graphs.graph import Graph, GraphSource, read_graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.pool.completion import JobCompletion
from comfyrelay.comfyui.pool.events import JobQueued
from comfyrelay.comfyui.pool.jobs import PoolJob, Record, Registry
from comfyrelay.comfyui.pool.queues.queue import QueueAdapter, StoredJobs
from comfyrelay.comfyui.pool.ticket import (
    AFFINITY_OPTIONS,
    JOB_OPTIONS,
    Affinity,
    JobOptions,
    Ticket,
    check_names,
    check_options,
    make_ticket,
)
from comfyrelay.errors import Conflict, IdempotencyConflict, InvalidInput, QueueFull, RunLost


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
        defaults: JobOptions,
        affinity: Mapping[str, Affinity],
        max_queue_size: int | None,
    ) -> None:
        """`is_cached` returns whether this `cache_key` was that of any server's last run."""
        check_options(defaults, where="defaults")
        check_names(defaults, allowed=JOB_OPTIONS - {"job_id"}, where="defaults")
        for digest, servers in affinity.items():
            check_names(servers, allowed=AFFINITY_OPTIONS, where=f"affinity of workflow {digest}")
        if max_queue_size is not None and max_queue_size < 1:
            raise InvalidInput(errors={"max_queue_size": "must be at least 1"})
        self._queue = queue
        self._registry = registry
        self._completion = completion
        self._schedule = schedule
        self._make_job = make_job
        self._is_cached = is_cached
        self._defaults = defaults
        self._affinity = affinity
        self._max_queue_size = max_queue_size
        self._is_open = False
        self._next_sequence = 1
        self._turn = asyncio.Lock()
        # Number of jobs that are being written to the queue.
        self._pending = 0
        self._none_pending = asyncio.Event()
        self._none_pending.set()
        # Events by the caller's job id, set when the job that is being enqueued is known.
        self._enqueueing: dict[str, asyncio.Event] = {}

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
        """Accept no more jobs, and wait until pending jobs are queued."""
        self._is_open = False
        await self._none_pending.wait()

    def check_affinity(self, client_ids: Collection[str]) -> None:
        """Check that the pool has all servers that are named in the affinities."""
        for digest, servers in self._affinity.items():
            named = {*servers.get("preferred_clients", ()), *servers.get("exclude_clients", ())}
            _check_known(f"affinity of workflow {digest}", named, client_ids)

    async def accept(self, source: GraphSource, options: JobOptions, client_ids: Collection[str]) -> PoolJob:
        check_options(options, where="enqueue")
        job_id = options.get("job_id")
        if job_id is None:
            return await self._accept_new(source, options, client_ids)
        while (enqueueing := self._enqueueing.get(job_id)) is not None:
            await enqueueing.wait()
        if (known := self._registry.jobs.get(job_id)) is not None:
            ticket = make_ticket(source, {"job_id": job_id}, sequence=0, created_at=utc_now())
            if ticket.graph_digest != self._registry.record(job_id).ticket.graph_digest:
                raise IdempotencyConflict(f'The pool has a job "{job_id}" with another graph: use another job_id.')
            return known
        self._enqueueing[job_id] = asyncio.Event()
        try:
            return await self._accept_new(source, options, client_ids)
        finally:
            self._enqueueing.pop(job_id).set()

    async def _accept_new(self, source: GraphSource, options: JobOptions, client_ids: Collection[str]) -> PoolJob:
        # One job per iteration of the event loop, even if a caller enqueues thousands.
        async with self._turn:
            await asyncio.sleep(0)
            if not self._is_open:
                raise Conflict("The pool is not open.")
            self._check_room()
            graph = read_graph(source)
            options = self._with_defaults(graph, options, client_ids)
            ticket = make_ticket(graph, options, sequence=self._next_sequence, created_at=utc_now())
            _check_clients(ticket, client_ids)
            ticket = self._route_by_cache_key(ticket)
            self._next_sequence += 1
            self._begin_put()
        await self._put(ticket)
        # No other task has run since the job became available, so this is its first event.
        record, job = self._register(ticket)
        self._registry.counts[record.status] += 1
        self._completion.emit(record, record.event(JobQueued, priority=ticket.priority))
        self._schedule(ticket)
        return job

    def _check_room(self) -> None:
        waiting = len(self._queue) + self._pending
        if self._max_queue_size is not None and waiting >= self._max_queue_size:
            raise QueueFull(
                f"The queue of the pool is full: {waiting} jobs are waiting, and max_queue_size is "
                f"{self._max_queue_size}. Enqueue again when a job has started."
            )

    def _with_defaults(self, graph: Graph, options: JobOptions, client_ids: Collection[str]) -> JobOptions:
        affinity = Affinity(**self._affinity.get(workflow_hash(graph), {})) if self._affinity else Affinity()
        if "preferred_clients" in affinity:
            # A preferred server may have been removed since the pool was opened.
            affinity["preferred_clients"] = set(affinity["preferred_clients"]).intersection(client_ids)
        return JobOptions(**{**self._defaults, **affinity, **options})

    def _route_by_cache_key(self, ticket: Ticket) -> Ticket:
        """Prefer the server that is running, or last ran, a job with the same cache key."""
        key = ticket.cache_key
        if key is None:
            return ticket
        is_known = self._is_cached(key) or any(record.ticket.cache_key == key for record in self._registry.unfinished)
        return replace(ticket, bucket=ticket.bucket._replace(same_as=key)) if is_known else ticket

    def _begin_put(self) -> None:
        self._pending += 1
        self._none_pending.clear()

    async def _put(self, ticket: Ticket) -> None:
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
    _check_known("preferred_clients", ticket.bucket.preferred_clients, client_ids)


def _check_known(field: str, named: Iterable[str], client_ids: Collection[str]) -> None:
    if unknown := sorted(set(named).difference(client_ids)):
        problem = f"names {', '.join(unknown)}, which the pool does not have; it has {', '.join(sorted(client_ids))}"
        raise InvalidInput(f"{field} {problem}.", errors={field: problem})
