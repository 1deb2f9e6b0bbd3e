"""Several ComfyUI servers as one: enqueue a graph, and it runs on one that can."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, Unpack, overload

from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.blocks import Blocks
from comfyrelay.comfyui.pool.bus import Bus, Selector
from comfyrelay.comfyui.pool.completion import Endings
from comfyrelay.comfyui.pool.events import ClientState, PoolEvent
from comfyrelay.comfyui.pool.failover import FailoverStrategy, SmartFailover
from comfyrelay.comfyui.pool.gpu_memory import GpuMemory, Memory, ReportsMemory
from comfyrelay.comfyui.pool.intake import Intake
from comfyrelay.comfyui.pool.job import PoolJob
from comfyrelay.comfyui.pool.member import Member, MemberTimings
from comfyrelay.comfyui.pool.members import Roster, Servers
from comfyrelay.comfyui.pool.queue import MemoryQueue, PoolJobStatus, QueueAdapter
from comfyrelay.comfyui.pool.record import Record, StopReason
from comfyrelay.comfyui.pool.registry import Registry
from comfyrelay.comfyui.pool.runner import Runner, refusal_of_all
from comfyrelay.comfyui.pool.scheduler import Scheduler
from comfyrelay.comfyui.pool.stats import ClientStats, PoolStats, Tally
from comfyrelay.comfyui.pool.streams import EventStream
from comfyrelay.comfyui.pool.ticket import JobOptions, Ticket
from comfyrelay.errors import Conflict, NotFound, NotInstalled, RunInterrupted

E = TypeVar("E", bound=PoolEvent)


class WorkflowPool:
    """`async with WorkflowPool(["http://a:8188", "http://b:8188"]) as pool: result = await pool.run(graph)`.

    Servers are addresses, `ComfyServer`s, or a mapping of names to either; a server's client id is its name, or else
    its address. Those given as addresses are closed with the pool.
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
    ) -> None:
        """Make a pool; nothing happens before it is entered, or `open` is called.

        `keep_finished` is how many finished jobs can still be looked up, here and in a durable queue. `event_buffer` is
        how many events wait for a slow reader before some are dropped. The next job in line is handed to a busy server
        ahead of time, so that nothing lies between two jobs, if it is known that both take no longer than
        `ahead_seconds` there.
        """
        # an empty queue is false
        self._queue = MemoryQueue() if queue is None else queue
        self._failover = SmartFailover() if failover is None else failover
        self._event_buffer = event_buffer
        self._bus = Bus(buffer_size=event_buffer)
        self._registry = Registry(keep_finished=keep_finished)
        self._tally = Tally()
        emit = self._bus.emit
        self.memory = GpuMemory()
        self._scheduler = Scheduler(
            queue=self._queue,
            failover=self._failover,
            memory=self.memory,
            start=self._start,
            give_up=self._give_up,
            release=self._release_blocks,
            ahead_seconds=ahead_seconds,
        )
        self._roster = Roster(servers, timings=timings or MemberTimings(), emit=emit, wake=self._scheduler.wake)
        self._endings = Endings(queue=self._queue, registry=self._registry, tally=self._tally, emit=emit)
        self._blocks = Blocks(
            failover=self._failover,
            queue=self._queue,
            emit=emit,
            spawn=self._endings.spawn,
            unblocked=self._scheduler.unblocked,
        )
        self._runner = Runner(
            queue=self._queue,
            failover=self._failover,
            endings=self._endings,
            tally=self._tally,
            blocks=self._blocks,
            scheduler=self._scheduler,
            memory=self.memory,
            members=self._roster.members,
        )
        self._intake = Intake(
            queue=self._queue,
            registry=self._registry,
            endings=self._endings,
            tally=self._tally,
            arrived=self._scheduler.arrived,
            make_job=self._make_job,
            restore_blocks=self._blocks.restore,
            is_cached=lambda key: any(each.cached == key for each in self._roster),
        )
        # made once: `self._cancel_job` is a new object each time
        self._cancel = self._cancel_job
        self._was_opened = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Take up what the queue holds, and begin to connect to the servers. A pool is opened once."""
        if self._was_opened or self._closing is not None:
            raise Conflict("A pool can be opened once only.")
        self._was_opened = True
        try:
            await self._intake.open()
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
        """Stop. With `drain`, wait first until every job has ended; no new ones are taken meanwhile.

        Runs under way are interrupted on their servers. A durable queue keeps what has not ended for the next start;
        with another, those jobs are canceled. Whoever awaits one of them gets `Canceled`.
        """
        # a callback that closes the pool is not waited for by the pool
        if caller := asyncio.current_task():
            self._bus.do_not_wait_for(caller)
        await self._intake.close()
        if drain and self._closing is None:
            await self._registry.idle.wait()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def wait_ready(self) -> None:
        """Return when every server was tried once and at least one is online."""
        await self._roster.ready.wait()

    async def enqueue(self, graph: Graph, **options: Unpack[JobOptions]) -> PoolJob:
        """Put a graph as it is now into the queue. With a durable queue, it cannot be lost once this returns."""
        return await self._intake.take(graph, options, self._roster.ids)

    async def run(self, graph: Graph, **options: Unpack[JobOptions]) -> RunResult:
        """Enqueue a graph and wait for its result. Canceling this call cancels the job."""
        job = await self.enqueue(graph, **options)
        try:
            return await job
        except asyncio.CancelledError:
            await asyncio.shield(self._endings.spawn(job.cancel(wait=False)))
            raise

    @property
    def jobs(self) -> Mapping[str, PoolJob]:
        """All jobs that have not ended, and the last of those that have, by their id."""
        return self._registry.jobs

    def job(self, job_id: str) -> PoolJob:
        return self._registry.job(job_id)

    async def cancel(self, job_id: str, *, wait: bool = True) -> bool:
        """Take a job out of the queue, or stop it on its server; false when it had ended before. See `PoolJob.cancel`."""
        return await self._cancel_job(job_id, wait)

    async def _cancel_job(self, job_id: str, wait: bool) -> bool:
        record = self._registry.record(job_id)
        if record.is_done:
            return False
        while not record.is_done:
            if self._queue.remove(job_id):
                self._scheduler.withdrawn(record.ticket)
                # not in this task: whoever asked may lose interest, the job must end all the same
                await asyncio.shield(self._endings.spawn(self._endings.cancel(record)))
            elif record.task is not None:
                await self._runner.stop(record, StopReason.CANCEL)
            else:
                # somebody else has just taken it out
                await record.wait()
        is_canceled = record.status is PoolJobStatus.CANCELED
        if is_canceled and wait and record.server is not None and record.prompt_id is not None:
            await record.server.wait_until_stopped(record.prompt_id)
        return is_canceled

    def unblock(self, client_id: str, workflow_hash: str) -> bool:
        """Let a server have a workflow again that it has failed at, and forget its failures; false when it was not
        blocked. Who is blocked for what is in `stats().clients[…].blocks`."""
        if self._roster.find(client_id) is None:
            raise NotFound(f'This pool has no server "{client_id}".')
        return self._blocks.lift(client_id, workflow_hash)

    def stats(self) -> PoolStats:
        return PoolStats(
            **{status.value: self._tally[status] for status in PoolJobStatus},
            clients={member.id: ClientStats.of(member, self._failover) for member in self._roster},
        )

    @overload
    def on(self, which: type[E], callback: Callable[[E], object]) -> Callable[[], None]: ...

    @overload
    def on(self, which: str, callback: Callable[[Any], object]) -> Callable[[], None]: ...

    def on(self, which: Selector, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call back, or start a coroutine, at each event of a type (`"job:completed"`), class, or all (`"*"`).

        Returns a function that ends this. What a callback raises is logged, and goes no further.
        """
        return self._bus.on(which, callback)

    def events(self, *which: Selector) -> EventStream[Any]:
        """Events of these types or classes, or all, from now until the pool is closed: `async for event in …`."""
        return self._bus.stream(*which)

    def add_server(
        self,
        server: str | ComfyServer,
        *,
        name: str | None = None,
        gpu: str | None = None,
        comfyui: ReportsMemory | None = None,
    ) -> str:
        """Use one more server; returns its client id.

        Servers of one `gpu` share its memory: jobs run there side by side only where that is known to hold them.
        `comfyui` is whom to ask about it, where the server is none itself.
        """
        if self._closing is not None:
            raise Conflict("The pool is closed.")
        member = self._roster.add(server, name=name, gpu=gpu, comfyui=comfyui)
        if self._was_opened:
            self._roster.watch(member)
        return member.id

    def rest(self, client_id: str, *, is_resting: bool = True) -> None:
        """Give a server no more jobs, or again; what runs there goes on."""
        member = self._roster.find(client_id)
        if member is None:
            raise NotFound(f'This pool has no server "{client_id}".')
        if member.is_resting is not is_resting:
            member.is_resting = is_resting
            self._scheduler.unblocked(client_id)

    async def measure_memory(self, client_id: str) -> Memory | None:
        """What a server and its GPU hold; a workflow that runs there and takes more than before is known by it."""
        member = self._roster.find(client_id)
        if member is None:
            return None
        found = await self.memory.measure(member, self._roster)
        here = {each.workflow_hash for each in member.buckets}
        if found is not None and len(here) == 1 and member.loaded.keys() <= here:
            self.memory.grew(here.pop(), found.held)
        return found

    async def outgrew(self, graph: Graph, gpu_bytes: int) -> None:
        """A workflow did not fit into a GPU of this size, somewhere else or in an earlier life: it goes to larger ones
        while there are some."""
        self.memory.outgrew(workflow_hash(graph), gpu_bytes)
        online = [each for each in self._roster if each.state is ClientState.ONLINE]
        if len(online) > 1:
            # nobody is spared whose size is not known
            await self.memory.larger(gpu_bytes, online)

    async def remove_server(self, client_id: str, *, finish: bool = False) -> None:
        """Use a server no more. What runs there is interrupted and put back, with that attempt not counted; with
        `finish`, it is let run to its end first."""
        member = self._roster.take_out(client_id)
        self.memory.forget(member)
        here = [each for each in self._registry.unfinished if each.task is not None and each.client_id == client_id]
        if finish:
            await asyncio.gather(*(each.task for each in here if each.task is not None), return_exceptions=True)
        else:
            await asyncio.gather(*(self._runner.stop(record, StopReason.PUT_BACK) for record in here))
        await self._roster.dismiss(member)
        for record in self._registry.unfinished:
            bucket = record.ticket.bucket
            if record.failures and record.task is None and bucket.exclude_clients.issuperset(self._roster.ids):
                self._give_up(record.ticket.id)

    def _make_job(self, record: Record) -> PoolJob:
        return PoolJob(record, cancel=self._cancel, buffer_size=self._event_buffer)

    def _start(self, ticket: Ticket, member: Member) -> None:
        self._runner.start(self._registry.record(ticket.id), member)

    def _give_up(self, job_id: str) -> None:
        record = self._registry.record(job_id)
        if self._queue.remove(job_id):
            self._scheduler.withdrawn(record.ticket)
            error = record.first_error or RunInterrupted("No server that may run this job can be reached.")
            if isinstance(error, NotInstalled):
                error = refusal_of_all(record)
            self._endings.spawn(self._endings.fail(record, error))

    def _release_blocks(self) -> None:
        self._blocks.release()

    async def _close(self) -> None:
        self._scheduler.close()
        busy = [record for record in self._registry.unfinished if record.task is not None]
        await asyncio.gather(*(self._runner.stop(record, StopReason.PUT_BACK) for record in busy))
        for record in self._registry.unfinished:
            if self._queue.durable:
                self._endings.abandon(record)
            elif self._queue.remove(record.ticket.id):
                await self._endings.cancel(record, "The pool was closed.")
        await self._endings.finish()
        # for a drain that this cuts short
        self._registry.idle.set()
        await self._roster.close()
        await self._queue.close()
        await self._bus.close()
