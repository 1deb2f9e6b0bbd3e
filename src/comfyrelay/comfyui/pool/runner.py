"""Run jobs on servers and decide the next step: complete, retry, fail, cancel or requeue."""

import asyncio
import traceback
from collections.abc import Collection
from dataclasses import replace

import orjson
import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfyui.client.interface import ComfyServer
from comfyrelay.comfyui.graphs.nodes import output_nodes
from comfyrelay.comfyui.outputs import RunResult
from comfyrelay.comfyui.pool.blocks import Blocks
from comfyrelay.comfyui.pool.completion import JobCompletion
from comfyrelay.comfyui.pool.event_translator import EventTranslator
from comfyrelay.comfyui.pool.events import JobRetrying
from comfyrelay.comfyui.pool.failover import FailoverStrategy, Failure, FailureVerdict
from comfyrelay.comfyui.pool.gpu_memory import GpuMemory
from comfyrelay.comfyui.pool.member import Member
from comfyrelay.comfyui.pool.queue import PoolJobStatus, QueueAdapter
from comfyrelay.comfyui.pool.record import Record, StopReason
from comfyrelay.comfyui.pool.scheduler import Scheduler
from comfyrelay.comfyui.pool.stats import Tally
from comfyrelay.comfyui.pool.ticket import Bucket, Ticket
from comfyrelay.domain.queue.memory import OutOfMemoryStep, is_alone_on_gpu, next_memory_step
from comfyrelay.errors import (
    ComfyError,
    ComfyRelayError,
    DeviceFault,
    Fault,
    NotInstalled,
    OutOfMemory,
    RunLost,
    RunTimedOut,
    ServerUnreachable,
)

log = structlog.get_logger(__name__)

# After these errors a server gets no jobs until a health check succeeds.
_SUSPECT_ERRORS = (ServerUnreachable, RunLost, RunTimedOut, DeviceFault)
# After-effects of these errors may fail the next run.
_SPREADING_ERRORS = (*_SUSPECT_ERRORS, OutOfMemory)
# How long a job whose node raised an exception waits for other servers if all of them are unreachable.
SECOND_ATTEMPT_SECONDS = 10.0
# How long a job waits if other programs hold the GPU's memory.
CROWDED_SECONDS = 30.0


class _CollateralFailure(Exception):
    """An attempt that was queued behind another run failed because of that run:

    it never started, or the server was no longer usable. It is requeued without counting the attempt.
    """

    def __init__(self, error: ComfyError) -> None:
        super().__init__(error.detail)
        self.error = error


class Runner:
    def __init__(
        self,
        *,
        queue: QueueAdapter,
        failover: FailoverStrategy,
        completion: JobCompletion,
        tally: Tally,
        blocks: Blocks,
        scheduler: Scheduler,
        memory: GpuMemory,
        members: Collection[Member],
    ) -> None:
        self._queue = queue
        self._failover = failover
        self._completion = completion
        self._tally = tally
        self._blocks = blocks
        self._scheduler = scheduler
        self._memory = memory
        self._members = members
        self._uses = 0

    def start(self, record: Record, member: Member) -> None:
        """Start an attempt of a job that was taken from the queue."""
        self._uses += 1
        member.last_used = self._uses
        record.is_behind = member.running >= member.server.slots
        record.has_begun = False
        member.running += 1
        member.buckets.append(record.ticket.bucket)
        member.cached = record.ticket.cache_key
        if member.made != member.cached:
            member.made = None
        record.ticket = replace(record.ticket, attempts=record.ticket.attempts + 1)
        record.client_id = member.id
        record.server = member.server
        record.started_at = utc_now()
        record.progress = 0.0
        record.prompt_id = None
        self._set(record, PoolJobStatus.RUNNING)
        record.task = self._completion.spawn(self._attempt(record, member))

    async def stop(self, record: Record, why: StopReason) -> None:
        """Stop a job that is not waiting, and wait until its task has ended."""
        task = record.task
        assert task is not None
        if record.stop is None:
            record.stop = why
            if record.can_stop:
                task.cancel()
        await asyncio.wait({task})

    async def _attempt(self, record: Record, member: Member) -> None:
        try:
            verdict = await self._run(record, member)
            if isinstance(verdict, RunResult):
                await self._succeed(record, member, verdict)
            else:
                await self._fail(record, member, verdict)
        except _CollateralFailure as failed:
            if isinstance(failed.error, _SUSPECT_ERRORS):
                member.suspect(failed.error.detail)
            if record.has_begun:
                self._completion.emit(record, record.event(JobRetrying, error=failed.error, delay_seconds=0.0))
            await self._stopped(record, StopReason.PUT_BACK)
        except asyncio.CancelledError:
            if record.stop is None:
                raise
            await self._stopped(record, record.stop)
        except Exception as error:
            # The queue or the strategy failed, not a server: a disk may be full.
            log.exception("pool.attempt_failed", client_id=member.id, job_id=record.ticket.id)
            await self._completion.fail(record, _unexpected(error))

    async def _run(self, record: Record, member: Member) -> RunResult | ComfyError:
        bucket = record.ticket.bucket
        since = asyncio.get_running_loop().time()
        try:
            # A task that is canceled before its first step never reaches its own cleanup.
            record.can_stop = True
            if record.stop is not None:
                raise asyncio.CancelledError
            await self._queue.begin(record.ticket)
            if member.gpu is not None or bucket.alone:
                await self._memory.free_memory_for(bucket, member, self._members)
                # The new measurement may let other jobs start.
                self._scheduler.ran(member)
            ran = await self._run_on(member.server, record)
            if isinstance(ran, _SPREADING_ERRORS):
                if record.is_behind and (not record.has_begun or member.failed_at >= since):
                    raise _CollateralFailure(ran)
                member.failed_at = asyncio.get_running_loop().time()
            if member.gpu is not None:
                await self._learn(bucket.workflow_hash, member, ran)
            return ran
        finally:
            if record.has_begun:
                member.note_loaded(bucket.workflow_hash)
            member.running -= 1
            member.buckets.remove(bucket)
            self._scheduler.ran(member)

    async def _learn(self, workflow_hash: str, member: Member, ran: RunResult | ComfyError) -> None:
        if isinstance(ran, OutOfMemory):
            self._memory.ran_out(workflow_hash)
        elif isinstance(ran, RunResult):
            # Measure before the next run starts there and holds memory, too.
            await self._memory.learn(workflow_hash, member, self._members)

    async def _run_on(self, server: ComfyServer, record: Record) -> RunResult | ComfyError:
        ticket = record.ticket
        graph = orjson.loads(ticket.graph)
        try:
            return await server.run(
                graph,
                wanted=ticket.include_outputs,
                attachments=ticket.attachments,
                timeouts=ticket.timeouts,
                extra_data=ticket.extra_data,
                on_event=EventTranslator(record, graph, self._completion.emit).translate,
            )
        except ComfyError as error:
            return error
        except ComfyRelayError as error:
            # A graph or file that is invalid here is invalid everywhere.
            return ComfyError(error.detail, fault=Fault.JOB)
        except Exception as error:
            log.exception("pool.run_failed", client_id=record.client_id, job_id=ticket.id)
            return _unexpected(error)

    async def _succeed(self, record: Record, member: Member, result: RunResult) -> None:
        workflow_hash = record.ticket.bucket.workflow_hash
        self._note_made(record.ticket, member, result)
        member.completed += 1
        member.note_warm(workflow_hash, result.seconds)
        self._note_pinned(record.ticket.bucket, member)
        self._blocks.succeeded(member.id, workflow_hash)
        for client_id, (verdict, error) in record.failures.items():
            if verdict is FailureVerdict.ELSEWHERE and client_id != member.id:
                # Another server could run it, so this server was at fault.
                self._blocks.failed(client_id, workflow_hash, error)
        await self._completion.complete(record, result)

    def _note_made(self, ticket: Ticket, member: Member, result: RunResult) -> None:
        """Record whether a server that repeats its last work used its cache, which not every node allows."""
        key = ticket.cache_key
        if key is not None and member.made == key:
            graph = orjson.loads(ticket.graph)
            # Savers always run, because each run has its own folder.
            is_cached = graph.keys() - output_nodes(graph) <= result.cached_nodes
            self._scheduler.record_repeat(ticket.bucket.workflow_hash, is_cached=is_cached)
        if member.cached == key:
            member.made = key

    def _note_pinned(self, bucket: Bucket, member: Member) -> None:
        """Pin a workflow that stays loaded to one server, and unpin it once that is no longer wanted."""
        holders = [each for each in self._members if each.pinned == bucket.workflow_hash]
        if not bucket.keep_loaded:
            for holder in holders:
                holder.pinned = None
        elif not holders and member.pinned is None:
            member.pinned = bucket.workflow_hash

    async def _fail(self, record: Record, member: Member, error: ComfyError) -> None:
        member.failed += 1
        record.prompt_id = None
        record.first_error = record.first_error or error
        record.last_error = error
        verdict = self._verdict(record, member, error)
        if (
            isinstance(error, OutOfMemory)
            and verdict is not FailureVerdict.JOB
            and member.comfyui is not None
            and not await self._is_crowded(record, member, error)
        ):
            await self._ran_out(record, member, error)
            return
        if verdict is FailureVerdict.SERVER:
            self._blocks.failed(member.id, record.ticket.bucket.workflow_hash, error)
        if isinstance(error, _SUSPECT_ERRORS):
            # It gets no jobs until a health check succeeds.
            member.suspect(error.detail)
        if (ticket := self._next_attempt(record, member, verdict)) is not None:
            record.ticket = ticket
            await self._retry(record, error)
        elif verdict is not FailureVerdict.JOB and isinstance(error, NotInstalled):
            await self._completion.fail(record, all_refused_error(record))
        else:
            await self._completion.fail(record, error)

    async def _is_crowded(self, record: Record, member: Member, error: OutOfMemory) -> bool:
        """Whether the job had no neighbours of ours but other programs held much of the GPU.

        That says nothing about the job or the GPU: it is retried like any server fault, when the memory may be free.
        """
        size = await self._memory.size(member) if record.ticket.bucket.alone else None
        if size is None or is_alone_on_gpu(size, others := await self._memory.held_by_others(member, self._members)):
            return False
        error.others_bytes = others
        error.retry_after_seconds = CROWDED_SECONDS
        return True

    async def _ran_out(self, record: Record, member: Member, error: OutOfMemory) -> None:
        """Handle an out-of-memory error: no server is blamed, and moving the job costs no attempt."""
        ticket, bucket = record.ticket, record.ticket.bucket
        larger: set[str] = set()
        if bucket.alone and (size := await self._memory.size(member)) is not None:
            error.gpu_bytes = size
            self._memory.record_too_small(bucket.workflow_hash, size)
            larger = await self._memory.larger(size, self._members)
        elsewhere = bucket._replace(
            exclude_clients=bucket.exclude_clients | {each.id for each in self._members if each.id not in larger}
        )
        next_step = next_memory_step(
            ran_alone=bucket.alone,
            has_moved=ticket.ran_out_bytes is not None,
            has_larger_gpu=bool(larger) and self._scheduler.could_run(elsewhere),
        )
        again = replace(ticket, attempts=ticket.attempts - 1)
        if next_step is OutOfMemoryStep.ALONE:
            record.ticket = replace(again, bucket=bucket._replace(alone=True))
        elif next_step is OutOfMemoryStep.LARGER:
            # The error to report if the larger GPU goes away.
            record.first_error = error
            record.ticket = replace(
                again, bucket=elsewhere, ran_out_bytes=error.gpu_bytes, give_up_after_seconds=_give_up_seconds(ticket)
            )
        else:
            await self._completion.fail(record, error)
            return
        await self._retry(record, error)

    def _verdict(self, record: Record, member: Member, error: ComfyError) -> FailureVerdict:
        failure = Failure(
            client_id=member.id,
            workflow_hash=record.ticket.bucket.workflow_hash,
            error=error,
            earlier={client_id: each for client_id, (_, each) in record.failures.items() if client_id != member.id},
        )
        verdict = self._failover.judge(failure)
        record.failures = {**record.failures, member.id: (verdict, error)}
        return verdict

    def _next_attempt(self, record: Record, member: Member, verdict: FailureVerdict) -> Ticket | None:
        """Return the ticket for the next attempt, or `None` if the job has failed for good."""
        ticket = record.ticket
        elsewhere = ticket.bucket._replace(exclude_clients=ticket.bucket.exclude_clients | {member.id})
        is_last = ticket.attempts >= ticket.max_attempts
        if verdict is FailureVerdict.JOB:
            return None
        if isinstance(record.last_error, NotInstalled):
            # An unreachable or blocked server may have the missing nodes or models. A rejection costs no attempt.
            can_move = self._scheduler.could_ever_run(elsewhere)
            return replace(ticket, bucket=elsewhere, attempts=ticket.attempts - 1) if can_move else None
        if verdict is FailureVerdict.ELSEWHERE:
            can_move = self._scheduler.could_run(elsewhere) and not is_last
            return (
                replace(ticket, bucket=elsewhere, give_up_after_seconds=_give_up_seconds(ticket)) if can_move else None
            )
        if ticket.one_attempt_per_server and verdict is FailureVerdict.SERVER:
            can_move = self._scheduler.could_run(elsewhere)
            return replace(ticket, bucket=elsewhere, attempts=ticket.attempts - 1) if can_move else None
        return None if is_last else ticket

    async def _retry(self, record: Record, error: ComfyError) -> None:
        # Another server does not have to wait for the delay this one requests.
        bucket = record.ticket.bucket
        runs_alone_now = bucket.alone and error.retry_after_seconds is None
        is_moving = record.ticket.one_attempt_per_server or record.client_id in bucket.exclude_clients or runs_alone_now
        delay = 0.0 if is_moving else max(record.ticket.retry_delay, error.retry_after_seconds or 0.0)
        self._set(record, PoolJobStatus.RETRYING)
        self._completion.emit(record, record.event(JobRetrying, error=error, delay_seconds=delay))
        await asyncio.sleep(delay)
        await self._put_back(record)

    async def _stopped(self, record: Record, why: StopReason) -> None:
        if why is StopReason.CANCEL:
            await self._completion.cancel(record)
            return
        if record.status is PoolJobStatus.RUNNING:
            # Neither the job nor the server failed.
            record.ticket = replace(record.ticket, attempts=record.ticket.attempts - 1)
        await self._put_back(record)

    async def _put_back(self, record: Record) -> None:
        await self._queue.put_back(record.ticket)
        self._set(record, PoolJobStatus.QUEUED)
        record.task = None
        record.stop = None
        record.can_stop = False
        self._scheduler.arrived(record.ticket)

    def _set(self, record: Record, status: PoolJobStatus) -> None:
        self._tally.moved(record.status, status)
        record.status = status


def _give_up_seconds(ticket: Ticket) -> float:
    limit = ticket.give_up_after_seconds
    return SECOND_ATTEMPT_SECONDS if limit is None else min(limit, SECOND_ATTEMPT_SECONDS)


def _unexpected(error: Exception) -> ComfyError:
    what = f"The run failed unexpectedly ({type(error).__name__})."
    return ComfyError(what, raw="".join(traceback.format_exception(error)))


def all_refused_error(record: Record) -> ComfyError:
    """Return the error of a job for which no server has the nodes or models, with the reason of each server."""
    errors = {client_id: error for client_id, (_, error) in record.failures.items()}
    if len(errors) == 1:
        return next(iter(errors.values()))
    reasons = [f"{client_id}: {error.detail}" for client_id, error in errors.items()]
    return NotInstalled(
        f"No server can run this. {'; '.join(reasons)}",
        problems=list(dict.fromkeys(problem for error in errors.values() for problem in error.problems)),
        raw="\n".join(error.raw for error in errors.values() if error.raw) or None,
    )
