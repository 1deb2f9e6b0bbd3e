"""Use several ComfyUI servers as one: an enqueued graph runs on any suitable server."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.graphs.graph import GraphSource, read_graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.bus import Bus, EventStream, Selector
from comfyrelay.comfyui.pool.completion import JobCompletion
from comfyrelay.comfyui.pool.events import PoolEvent
from comfyrelay.comfyui.pool.failover import Blocks, FailoverStrategy, SmartFailover, complete_or_default
from comfyrelay.comfyui.pool.gpu_memory import GpuMemory, Memory
from comfyrelay.comfyui.pool.intake import Intake
from comfyrelay.comfyui.pool.jobs import PoolJob, Registry, StopReason
from comfyrelay.comfyui.pool.members import Member, MemberTimings, ReportsMemory, Roster, Servers
from comfyrelay.comfyui.pool.queues.queue import MemoryQueue, PoolJobStatus, QueueAdapter
from comfyrelay.comfyui.pool.runner import Runner, all_refused_error
from comfyrelay.comfyui.pool.scheduler import Scheduler
from comfyrelay.comfyui.pool.stats import ClientStats, PoolStats
from comfyrelay.comfyui.pool.ticket import Affinity, JobOptions, Ticket
from comfyrelay.errors import Conflict, NotInstalled, RunInterrupted

E = TypeVar("E", bound=PoolEvent)


class WorkflowPool:
    """A pool of ComfyUI servers.

        async with WorkflowPool(["http://a:8188", "http://b:8188"]) as pool:
            result = await pool.run(graph)

    Servers are addresses, `ComfyServer`s, or a mapping of names to either. A server's client id is its name or its
    address. Servers given as addresses are closed with the pool.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        queue: QueueAdapter | None = None,
        failover: FailoverStrategy | None = None,
        timings: MemberTimings | None = None,
        keep_finished: int = 1000,
        event_buffer: int = 1000,
        ahead_seconds: float = 0.0,
        defaults: JobOptions | None = None,
        affinity: Mapping[str, Affinity] | None = None,
        max_queue_size: int | None = None,
    ) -> None:
        """Create a pool, which starts when it is entered or `open` is called.

        `defaults` are options for every job, such as `timeouts`. `affinity` maps workflow hashes to the servers for
        that workflow. Options of a job replace both. If `max_queue_size` jobs are waiting, `enqueue` raises
        `QueueFull`.

        `keep_finished` is the number of finished jobs that can still be looked up, here and in a durable queue.
        `event_buffer` is the number of events that are kept for a slow reader before some are dropped. The next job is
        sent to a busy server ahead of time, to leave no gap between two jobs, if both are known to take at most
        `ahead_seconds` there.
        """
        self._queue = complete_or_default(queue, QueueAdapter, name="queue", default=MemoryQueue)
        self._failover = complete_or_default(failover, FailoverStrategy, name="failover", default=SmartFailover)
        self._bus = Bus(buffer_size=event_buffer)
        self._registry = Registry(keep_finished=keep_finished)
        emit = self._bus.emit
        self.memory = GpuMemory()
        self._scheduler = Scheduler(
            queue=self._queue,
            failover=self._failover,
            memory=self.memory,
            start=self._start,
            give_up=self._give_up,
            release_blocks=self._release_blocks,
            ahead_seconds=ahead_seconds,
        )
        self._roster = Roster(servers, timings=timings or MemberTimings(), emit=emit, wake=self._scheduler.wake)
        self._completion = JobCompletion(queue=self._queue, registry=self._registry, emit=emit)
        self._blocks = Blocks(
            failover=self._failover,
            queue=self._queue,
            emit=emit,
            spawn=self._completion.spawn,
            on_unblocked=self._scheduler.reconsider,
        )
        self._runner = Runner(
            queue=self._queue,
            failover=self._failover,
            completion=self._completion,
            blocks=self._blocks,
            scheduler=self._scheduler,
            memory=self.memory,
            members=self._roster.members,
        )
        self._intake = Intake(
            queue=self._queue,
            registry=self._registry,
            completion=self._completion,
            schedule=self._scheduler.add,
            make_job=partial(PoolJob, cancel=self.cancel, buffer_size=event_buffer),
            is_cached=lambda key: any(member.cache_key == key for member in self._roster),
            defaults=defaults or {},
            affinity=affinity or {},
            max_queue_size=max_queue_size,
        )
        self._was_opened = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Load the jobs in the queue and start connecting to the servers. A pool can be opened only once."""
        if self._was_opened or self._closing is not None:
            raise Conflict("A pool can be opened only once.")
        self._intake.check_affinity(self._roster.ids)
        self._was_opened = True
        try:
            stored = await self._queue.open()
            self._blocks.restore(stored.blocks)
            await self._intake.open(stored)
        except BaseException:
            await self._roster.close()
            await self._queue.close()
            raise
        for record in self._registry.records:
            member = self._roster.find(record.client_id)
            record.server = member.server if member else None
        for member in self._roster:
            self._roster.watch(member)
        self._scheduler.open(self._roster)

    async def close(self, *, drain: bool = False) -> None:
        """Stop the pool. With `drain`, first wait until every job has ended; new jobs are rejected.

        Active runs are interrupted on their servers. A durable queue keeps unfinished jobs for the next start;
        otherwise they are canceled. Tasks that await such a job get `Canceled`.
        """
        # The pool does not wait for a callback that closes the pool.
        if caller := asyncio.current_task():
            self._bus.do_not_wait_for(caller)
        await self._intake.close()
        if drain and self._closing is None:
            await self._registry.idle.wait()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def wait_ready(self) -> None:
        """Wait until every server has been tried once and at least one server is online."""
        await self._roster.ready.wait()

    async def enqueue(self, graph: GraphSource, **options: Unpack[JobOptions]) -> PoolJob:
        """Queue a copy of a graph, given as a dictionary, as JSON text or as the path of a JSON file.

        A seed input of -1 gets a random number, which stays the same in all attempts (`PoolJob.seeds`). With a durable
        queue, the job cannot be lost once this returns. Raises `GraphError` or `InvalidInput` if the graph or an option
        is invalid, and `QueueFull` if `max_queue_size` jobs are waiting.
        """
        return await self._intake.accept(graph, options, self._roster.ids)

    async def run(self, graph: GraphSource, **options: Unpack[JobOptions]) -> RunResult:
        """Enqueue a graph and wait for its result. Canceling this call cancels the job."""
        job = await self.enqueue(graph, **options)
        try:
            return await job
        except asyncio.CancelledError:
            await asyncio.shield(self._completion.spawn(job.cancel(wait=False)))
            raise

    @property
    def jobs(self) -> Mapping[str, PoolJob]:
        """All unfinished jobs and the most recently finished jobs, by id."""
        return self._registry.jobs

    def job(self, job_id: str) -> PoolJob:
        """Return an unfinished or recently finished job. Raises `NotFound` for other ids."""
        return self._registry.job(job_id)

    async def cancel(self, job_id: str, *, wait: bool = True) -> bool:
        """Remove a job from the queue, or stop it on its server.

        Returns false if the job had ended. See `PoolJob.cancel`.
        """
        record = self._registry.record(job_id)
        if record.is_done:
            return False
        while not record.is_done:
            if self._queue.remove(job_id):
                self._scheduler.remove(record.ticket)
                # In a separate task: the job must end even if the caller is canceled.
                await asyncio.shield(self._completion.spawn(self._completion.cancel(record)))
            elif record.task is not None:
                await self._runner.stop(record, StopReason.CANCEL)
            else:
                # Another task has just removed the job and will end it.
                await record.wait()
        is_canceled = record.status is PoolJobStatus.CANCELED
        if is_canceled and wait and record.server is not None and record.prompt_id is not None:
            await record.server.wait_until_stopped(record.prompt_id)
        return is_canceled

    def unblock(self, client_id: str, workflow_hash: str) -> bool:
        """Remove the block and failure count of a server and workflow.

        Returns false if the server was not blocked. `stats().clients[…].blocks` lists all blocks.
        """
        self._roster.get(client_id)
        return self._blocks.lift(client_id, workflow_hash)

    def stats(self) -> PoolStats:
        """Return the number of jobs by status, and the state of each server by client id."""
        return PoolStats(
            **{status.value: self._registry.counts[status] for status in PoolJobStatus},
            clients={member.id: ClientStats.of(member, self._failover) for member in self._roster},
        )

    @overload
    def on(self, selector: type[E], callback: Callable[[E], object]) -> Callable[[], None]: ...

    @overload
    def on(self, selector: str, callback: Callable[[Any], object]) -> Callable[[], None]: ...

    def on(self, selector: Selector, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call a function, or start a coroutine, for each event of a type (`"job:completed"`) or class, or all (`"*"`).

        Returns a function that unsubscribes. Exceptions in a callback are logged.
        """
        return self._bus.on(selector, callback)

    def events(self, *selectors: Selector) -> EventStream[Any]:
        """Stream events of these types or classes, or all, until the pool is closed: `async for event in …`."""
        return self._bus.stream(*selectors)

    def add_server(
        self,
        server: str | ComfyServer,
        *,
        name: str | None = None,
        gpu: str | None = None,
        comfyui: ReportsMemory | None = None,
    ) -> str:
        """Add a server and return its client id.

        Servers with the same `gpu` share its memory: jobs run there in parallel only if they are known to fit together.
        `comfyui` reports the memory if the server itself does not.
        """
        if self._closing is not None:
            raise Conflict("The pool is closed.")
        member = self._roster.add(server, name=name, gpu=gpu, comfyui=comfyui)
        if self._was_opened:
            self._roster.watch(member)
        return member.id

    def pause_server(self, client_id: str, *, is_paused: bool = True) -> None:
        """Pause or resume sending jobs to a server. Active runs continue."""
        member = self._roster.get(client_id)
        if member.is_paused is not is_paused:
            member.is_paused = is_paused
            self._scheduler.reconsider(client_id)

    def recheck_server(self, client_id: str, reason: str) -> None:
        """Take a server offline until a health check succeeds. Active runs continue."""
        self._roster.get(client_id).suspect(reason)

    def check_server(self, client_id: str) -> None:
        """Check an offline server now instead of after the usual pause, because it was started."""
        self._roster.get(client_id).check_now()

    async def measure_memory(self, client_id: str) -> Memory | None:
        """Return the memory of a server and its GPU, and update the known need of the workflow that is running
        there."""
        member = self._roster.find(client_id)
        if member is None:
            return None
        memory = await self.memory.measure(member, self._roster)
        running = {bucket.workflow_hash for bucket in member.buckets}
        if memory is not None and len(running) == 1 and member.loaded.keys() <= running:
            self.memory.raise_need(running.pop(), memory.held)
        return memory

    async def record_too_small(self, graph: GraphSource, gpu_bytes: int) -> None:
        """Record that a workflow did not fit on a GPU of this size, which may belong to another machine.

        Jobs with this workflow go to larger GPUs if there are any.
        """
        self.memory.record_too_small(workflow_hash(read_graph(graph)), gpu_bytes)
        if len(self._roster.online) > 1:
            # Measure the sizes, because a GPU of unknown size is not avoided.
            await self.memory.read_sizes(self._roster.online)

    async def remove_server(self, client_id: str, *, finish: bool = False) -> None:
        """Remove a server.

        Its active runs are interrupted and requeued without counting the attempt; with `finish`, they complete first.
        """
        member = self._roster.remove(client_id)
        self.memory.forget(member)
        active = {record: record.task for record in self._registry.unfinished if record.client_id == client_id}
        if finish:
            await asyncio.gather(*filter(None, active.values()), return_exceptions=True)
        else:
            await asyncio.gather(
                *(self._runner.stop(record, StopReason.PUT_BACK) for record, task in active.items() if task is not None)
            )
        await self._roster.close_member(member)
        for record in self._registry.unfinished:
            bucket = record.ticket.bucket
            if record.failures and record.task is None and bucket.exclude_clients.issuperset(self._roster.ids):
                self._give_up(record.ticket.id)

    def _start(self, ticket: Ticket, member: Member) -> None:
        self._runner.start(self._registry.record(ticket.id), member)

    def _give_up(self, job_id: str) -> None:
        record = self._registry.record(job_id)
        if self._queue.remove(job_id):
            self._scheduler.remove(record.ticket)
            error = record.first_error or RunInterrupted("No server that may run this job can be reached.")
            if isinstance(error, NotInstalled):
                error = all_refused_error(record)
            self._completion.spawn(self._completion.fail(record, error))

    def _release_blocks(self) -> None:
        self._blocks.release_expired()

    async def _close(self) -> None:
        self._scheduler.close()
        busy = [record for record in self._registry.unfinished if record.task is not None]
        await asyncio.gather(*(self._runner.stop(record, StopReason.PUT_BACK) for record in busy))
        for record in self._registry.unfinished:
            if self._queue.durable:
                self._completion.abandon(record)
            elif self._queue.remove(record.ticket.id):
                await self._completion.cancel(record, "The pool was closed.")
        await self._completion.wait_for_tasks()
        # Release a `close(drain=True)` that this close interrupts.
        self._registry.idle.set()
        await self._roster.close()
        await self._queue.close()
        await self._bus.close()
