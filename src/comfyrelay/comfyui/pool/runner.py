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
from comfyrelay.comfyui.pool.completion import JobCompletion
from comfyrelay.comfyui.pool.event_translator import EventTranslator
from comfyrelay.comfyui.pool.events import JobRetrying
from comfyrelay.comfyui.pool.failover import Blocks, FailoverStrategy, Failure, FailureVerdict
from comfyrelay.comfyui.pool.gpu_memory import GpuMemory
from comfyrelay.comfyui.pool.jobs import Record, StopReason
from comfyrelay.comfyui.pool.members import Member
from comfyrelay.comfyui.pool.queues.queue import PoolJobStatus, QueueAdapter
from comfyrelay.comfyui.pool.scheduler import Scheduler
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
    """An attempt that was queued behind another run failed because of that run.

    The attempt never started, or the server was no longer usable. The job is requeued without counting the attempt.
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
        blocks: Blocks,
        scheduler: Scheduler,
        memory: GpuMemory,
        members: Collection[Member],
    ) -> None:
        self._queue = queue
        self._failover = failover
        self._completion = completion
        self._blocks = blocks
        self._scheduler = scheduler
        self._memory = memory
        self._members = members
        self._starts = 0

    def start(self, record: Record, member: Member) -> None:
        """Start an attempt of a job that was taken from the queue."""
        self._starts += 1
        member.last_used = self._starts
        record.is_behind = member.running >= member.server.slots
        record.has_started = False
        member.buckets.append(record.ticket.bucket)
        member.cache_key = record.ticket.cache_key
        if member.completed_cache_key != member.cache_key:
            member.completed_cache_key = None
        record.ticket = replace(record.ticket, attempts=record.ticket.attempts + 1)
        record.client_id = member.id
        record.server = member.server
        record.started_at = utc_now()
        record.progress = 0.0
        record.prompt_id = None
        self._completion.set_status(record, PoolJobStatus.RUNNING)
        record.task = self._completion.spawn(self._attempt(record, member))

    async def stop(self, record: Record, reason: StopReason) -> None:
        """Stop a job that is not waiting, and wait until its task has ended."""
        task = record.task
        assert task is not None
        if record.stop is None:
            record.stop = reason
            if record.can_stop:
                task.cancel()
        await asyncio.wait({task})

    async def _attempt(self, record: Record, member: Member) -> None:
        try:
            outcome = await self._run(record, member)
            if isinstance(outcome, RunResult):
                await self._succeed(record, member, outcome)
            else:
                await self._fail(record, member, outcome)
        except _CollateralFailure as failure:
            if isinstance(failure.error, _SUSPECT_ERRORS):
                member.suspect(failure.error.detail)
            if record.has_started:
                self._completion.emit(record, record.event(JobRetrying, error=failure.error, delay_seconds=0.0))
            await self._handle_stop(record, StopReason.PUT_BACK)
        except asyncio.CancelledError:
            if record.stop is None:
                raise
            await self._handle_stop(record, record.stop)
        except Exception as error:
            # The queue or the strategy failed, not a server: a disk may be full.
            log.exception("pool.attempt_failed", client_id=member.id, job_id=record.ticket.id)
            await self._completion.fail(record, _unexpected(error))

    async def _run(self, record: Record, member: Member) -> RunResult | ComfyError:
        bucket = record.ticket.bucket
        began = asyncio.get_running_loop().time()
        try:
            # A task that is canceled before its first step never reaches its own cleanup.
            record.can_stop = True
            if record.stop is not None:
                raise asyncio.CancelledError
            await self._queue.begin(record.ticket)
            if member.gpu is not None or bucket.alone:
                await self._memory.free_memory_for(bucket, member, self._members)
                # The new measurement may let other jobs start.
                self._scheduler.reconsider_gpu(member)
            outcome = await self._run_on(member.server, record)
            if isinstance(outcome, _SPREADING_ERRORS):
                if record.is_behind and (not record.has_started or member.failed_at >= began):
                    raise _CollateralFailure(outcome)
                member.failed_at = asyncio.get_running_loop().time()
            if member.gpu is not None and isinstance(outcome, OutOfMemory):
                self._memory.record_out_of_memory(bucket.workflow_hash)
            elif member.gpu is not None and isinstance(outcome, RunResult):
                # Measure before the next run starts there and holds memory, too.
                await self._memory.learn(bucket.workflow_hash, member, self._members)
            return outcome
        finally:
            if record.has_started:
                member.record_loaded(bucket.workflow_hash)
            member.buckets.remove(bucket)
            self._scheduler.reconsider_gpu(member)

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
        self._record_cache_use(record.ticket, member, result)
        member.record_completed(workflow_hash, result.seconds)
        self._update_pins(record.ticket.bucket, member)
        self._blocks.record_success(member.id, workflow_hash)
        for client_id, (verdict, error) in record.failures.items():
            if verdict is FailureVerdict.ELSEWHERE and client_id != member.id:
                # Another server could run it, so this server was at fault.
                self._blocks.record_failure(client_id, workflow_hash, error)
        await self._completion.complete(record, result)

    def _record_cache_use(self, ticket: Ticket, member: Member, result: RunResult) -> None:
        """Record whether a server that repeats its last work used its cache, which not every node allows."""
        key = ticket.cache_key
        if key is not None and member.completed_cache_key == key:
            graph = orjson.loads(ticket.graph)
            # Output nodes always run, because each run has its own folder.
            is_cached = graph.keys() - output_nodes(graph) <= result.cached_nodes
            self._scheduler.record_repeat(ticket.bucket.workflow_hash, is_cached=is_cached)
        if member.cache_key == key:
            member.completed_cache_key = key

    def _update_pins(self, bucket: Bucket, member: Member) -> None:
        """Pin a workflow that stays loaded to one server. Unpin it after a job that does not request this."""
        holders = [other for other in self._members if other.pinned == bucket.workflow_hash]
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
            await self._handle_out_of_memory(record, member, error)
            return
        if verdict is FailureVerdict.SERVER:
            self._blocks.record_failure(member.id, record.ticket.bucket.workflow_hash, error)
        if isinstance(error, _SUSPECT_ERRORS):
            member.suspect(error.detail)
        if (ticket := self._next_attempt(record, member, verdict)) is not None:
            record.ticket = ticket
            await self._retry(record, error)
        elif verdict is not FailureVerdict.JOB and isinstance(error, NotInstalled):
            await self._completion.fail(record, all_refused_error(record))
        else:
            await self._completion.fail(record, error)

    async def _is_crowded(self, record: Record, member: Member, error: OutOfMemory) -> bool:
        """Whether the job ran without other jobs on its GPU, but other programs held much of the memory.

        This says nothing about the job or the GPU. The job is retried later, when the memory may be free.
        """
        size = await self._memory.size(member) if record.ticket.bucket.alone else None
        if size is None or is_alone_on_gpu(size, others := await self._memory.held_by_others(member, self._members)):
            return False
        error.others_bytes = others
        error.retry_after_seconds = CROWDED_SECONDS
        return True

    async def _handle_out_of_memory(self, record: Record, member: Member, error: OutOfMemory) -> None:
        """Retry a job alone or on a larger GPU. No server is blamed, and moving the job costs no attempt."""
        ticket, bucket = record.ticket, record.ticket.bucket
        larger: set[str] = set()
        if bucket.alone and (size := await self._memory.size(member)) is not None:
            error.gpu_bytes = size
            self._memory.record_too_small(bucket.workflow_hash, size)
            larger = await self._memory.larger(size, self._members)
        elsewhere = bucket._replace(
            exclude_clients=bucket.exclude_clients | {other.id for other in self._members if other.id not in larger}
        )
        next_step = next_memory_step(
            ran_alone=bucket.alone,
            has_moved=ticket.ran_out_bytes is not None,
            has_larger_gpu=bool(larger) and self._scheduler.has_online_server(elsewhere),
        )
        again = replace(ticket, attempts=ticket.attempts - 1)
        if next_step is OutOfMemoryStep.ALONE:
            record.ticket = replace(again, bucket=bucket._replace(alone=True))
        elif next_step is OutOfMemoryStep.LARGER:
            # The job fails with this error if the larger GPU becomes unreachable.
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
            earlier={
                client_id: earlier for client_id, (_, earlier) in record.failures.items() if client_id != member.id
            },
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
            can_move = self._scheduler.has_server(elsewhere)
            return replace(ticket, bucket=elsewhere, attempts=ticket.attempts - 1) if can_move else None
        can_move = self._scheduler.has_online_server(elsewhere)
        if verdict is FailureVerdict.ELSEWHERE:
            moved = replace(ticket, bucket=elsewhere, give_up_after_seconds=_give_up_seconds(ticket))
            return moved if can_move and not is_last else None
        if ticket.one_attempt_per_server and verdict is FailureVerdict.SERVER:
            return replace(ticket, bucket=elsewhere, attempts=ticket.attempts - 1) if can_move else None
        return None if is_last else ticket

    async def _retry(self, record: Record, error: ComfyError) -> None:
        # The delay that a server requests does not apply to another one.
        bucket = record.ticket.bucket
        runs_alone_now = bucket.alone and error.retry_after_seconds is None
        is_moving = record.ticket.one_attempt_per_server or record.client_id in bucket.exclude_clients or runs_alone_now
        delay = 0.0 if is_moving else max(record.ticket.retry_delay, error.retry_after_seconds or 0.0)
        self._completion.set_status(record, PoolJobStatus.RETRYING)
        self._completion.emit(record, record.event(JobRetrying, error=error, delay_seconds=delay))
        await asyncio.sleep(delay)
        await self._put_back(record)

    async def _handle_stop(self, record: Record, reason: StopReason) -> None:
        if reason is StopReason.CANCEL:
            await self._completion.cancel(record)
            return
        if record.status is PoolJobStatus.RUNNING:
            # Neither the job nor the server failed.
            record.ticket = replace(record.ticket, attempts=record.ticket.attempts - 1)
        await self._put_back(record)

    async def _put_back(self, record: Record) -> None:
        await self._queue.put_back(record.ticket)
        self._completion.set_status(record, PoolJobStatus.QUEUED)
        record.task = None
        record.stop = None
        record.can_stop = False
        self._scheduler.add(record.ticket)


def _give_up_seconds(ticket: Ticket) -> float:
    limit = ticket.give_up_after_seconds
    return SECOND_ATTEMPT_SECONDS if limit is None else min(limit, SECOND_ATTEMPT_SECONDS)


def _unexpected(error: Exception) -> ComfyError:
    detail = f"The run failed unexpectedly ({type(error).__name__})."
    return ComfyError(detail, raw="".join(traceback.format_exception(error)))


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
