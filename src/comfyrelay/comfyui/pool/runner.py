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
from comfyrelay.domain.queue.memory import OutOfMemoryStep, judge_out_of_memory
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

# After these errors, a server gets no jobs until a health check succeeds.
_SUSPECT_ERRORS = (ServerUnreachable, RunLost, RunTimedOut, DeviceFault)
# After-effects of these errors may make the next run fail.
_SPREADING_ERRORS = (*_SUSPECT_ERRORS, OutOfMemory)
# How long a job whose node raised an exception waits if all other servers are unreachable.
SECOND_ATTEMPT_SECONDS = 10.0


class _CollateralFailure(Exception):
    """An attempt that was queued behind another run has failed because of that run.

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
        """Stop a run, and wait until its task has ended. Does nothing if the run has already ended."""
        if (task := record.task) is None:
            return
        if record.stop is None:
            record.stop = reason
            if record.can_stop:
                task.cancel()
        await asyncio.wait({task})

    async def _attempt(self, record: Record, member: Member) -> None:
        try:
            outcome = await self._run(record, member)
            if isinstance(outcome, RunResult):
                await self._handle_success(record, member, outcome)
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
            # The queue or the failover strategy failed, not a server. For example, a disk may be full.
            log.exception("pool.attempt_failed", client_id=member.id, job_id=record.ticket.id)
            await self._completion.fail(record, _unexpected_error(error))

    async def _run(self, record: Record, member: Member) -> RunResult | ComfyError:
        bucket = record.ticket.bucket
        began = asyncio.get_running_loop().time()
        try:
            # A task that is canceled before its first step never runs its own cleanup.
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
            if isinstance(outcome, OutOfMemory):
                # Measure while the server gets no other job, because it must be blocked before its next job.
                await self._memory.explain(outcome, bucket, member, self._members)
            elif member.gpu is not None and isinstance(outcome, RunResult):
                # Measure before the next run starts on this server and holds memory itself.
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
            return _unexpected_error(error)

    async def _handle_success(self, record: Record, member: Member, result: RunResult) -> None:
        workflow_hash = record.ticket.bucket.workflow_hash
        self._record_cache_use(record.ticket, member, result)
        member.record_completed(workflow_hash, result.seconds)
        self._memory.record_completed(workflow_hash, member)
        self._update_pins(record.ticket.bucket, member)
        self._blocks.record_success(member.id, workflow_hash)
        for client_id, (verdict, error) in record.failures.items():
            if verdict is FailureVerdict.ELSEWHERE and client_id != member.id:
                # Another server could run the job, so this server was at fault.
                self._blocks.record_failure(client_id, workflow_hash, error)
        await self._completion.complete(record, result)

    def _record_cache_use(self, ticket: Ticket, member: Member, result: RunResult) -> None:
        """Record whether a server that repeated its last work used its cache, which some nodes do not support."""
        key = ticket.cache_key
        if key is not None and member.completed_cache_key == key:
            graph = orjson.loads(ticket.graph)
            # Output nodes always run, because each run has its own folder.
            is_cached = graph.keys() - output_nodes(graph) <= result.cached_nodes
            self._scheduler.record_repeat(ticket.bucket.workflow_hash, is_cached=is_cached)
        if member.cache_key == key:
            member.completed_cache_key = key

    def _update_pins(self, bucket: Bucket, member: Member) -> None:
        """Pin a workflow with `keep_loaded` to one server. Unpin it after a job without this option."""
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
        if isinstance(error, OutOfMemory) and verdict is not FailureVerdict.JOB:
            await self._handle_out_of_memory(record, member, error, verdict)
        else:
            await self._handle_failure(record, member, error, verdict)

    async def _handle_failure(self, record: Record, member: Member, error: ComfyError, verdict: FailureVerdict) -> None:
        if verdict is FailureVerdict.SERVER:
            self._blocks.record_failure(member.id, record.ticket.bucket.workflow_hash, error)
        if isinstance(error, _SUSPECT_ERRORS):
            member.suspect(error.detail)
        if (ticket := self._next_attempt(record, member, verdict)) is not None:
            await self._retry(record, ticket, error)
        elif verdict is not FailureVerdict.JOB and isinstance(error, NotInstalled):
            await self._completion.fail(record, all_refused_error(record))
        else:
            await self._completion.fail(record, error)

    async def _handle_out_of_memory(
        self, record: Record, member: Member, error: OutOfMemory, verdict: FailureVerdict
    ) -> None:
        """Retry a job alone on its GPU, then on each other GPU that may have enough memory. The retries are not
        counted."""
        ticket, bucket = record.ticket, record.ticket.bucket
        again = replace(ticket, attempts=ticket.attempts - 1)
        if not error.ran_alone:
            # A retry on the same GPU shows whether the server is at fault.
            alone = bucket._replace(alone=True, preferred_clients=bucket.preferred_clients | {member.id})
            await self._retry(record, replace(again, bucket=alone), error, at_once=True)
            return
        tried = _errors_with_whole_gpu(record)
        others = self._memory.on_other_gpus(tried, self._members)
        is_proven = self._memory.has_run_on(bucket.workflow_hash, others, not_larger_than=member)
        ran_out_bytes = max((size for size in (ticket.ran_out_bytes, error.gpu_bytes) if size), default=None)
        capable = self._memory.capable(bucket.workflow_hash, others, ran_out_bytes=ran_out_bytes)
        step = judge_out_of_memory(
            error.gpu_bytes,
            untried=[self._memory.known_size(other) for other in self._scheduler.online_servers(bucket, capable)],
            failed=[earlier.gpu_bytes for client_id, earlier in tried.items() if client_id != member.id],
            has_run_elsewhere=is_proven,
        )
        is_job_fault = step is OutOfMemoryStep.NONE and error.gpu_bytes is not None and not is_proven
        if error.gpu_bytes and (step is OutOfMemoryStep.LARGER or is_job_fault):
            self._acquit_servers(record, error.gpu_bytes)
        if is_job_fault:
            await self._completion.fail(record, error)
        elif step is OutOfMemoryStep.NONE:
            # The server is at fault, and no other server is online.
            error.gpu_bytes = None
            await self._handle_failure(record, member, error, verdict)
        else:
            if step is OutOfMemoryStep.ELSEWHERE and verdict is FailureVerdict.SERVER:
                self._blocks.record_failure(member.id, bucket.workflow_hash, error)
            elif step is OutOfMemoryStep.LARGER:
                capable &= self._memory.larger(ran_out_bytes or 0, self._members)
            # The job fails with this error if the other servers become unreachable.
            record.first_error = error
            incapable = {other.id for other in self._members if other.id not in capable}
            moved = replace(
                again,
                bucket=bucket._replace(exclude_clients=bucket.exclude_clients | incapable),
                ran_out_bytes=ran_out_bytes,
                give_up_after_seconds=_give_up_seconds(ticket),
            )
            await self._retry(record, moved, error, at_once=True)

    def _acquit_servers(self, record: Record, gpu_bytes: int) -> None:
        """Record that GPUs of this size are too small, and lift the blocks that this job caused."""
        workflow_hash = record.ticket.bucket.workflow_hash
        self._memory.record_too_small(workflow_hash, gpu_bytes)
        for client_id in _errors_with_whole_gpu(record):
            self._blocks.lift(client_id, workflow_hash)

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
        """Return the ticket for the next attempt, or `None` if the job has failed permanently."""
        ticket = record.ticket
        elsewhere = ticket.bucket._replace(exclude_clients=ticket.bucket.exclude_clients | {member.id})
        is_last = ticket.attempts >= ticket.max_attempts
        if verdict is FailureVerdict.JOB:
            return None
        if isinstance(record.last_error, NotInstalled):
            # An unreachable or blocked server may have the missing nodes or models. A rejection does not count as an
            # attempt.
            can_move = self._scheduler.has_server(elsewhere)
            return replace(ticket, bucket=elsewhere, attempts=ticket.attempts - 1) if can_move else None
        can_move = bool(self._scheduler.online_servers(elsewhere))
        if verdict is FailureVerdict.ELSEWHERE:
            moved = replace(ticket, bucket=elsewhere, give_up_after_seconds=_give_up_seconds(ticket))
            return moved if can_move and not is_last else None
        if ticket.one_attempt_per_server and verdict is FailureVerdict.SERVER:
            return replace(ticket, bucket=elsewhere, attempts=ticket.attempts - 1) if can_move else None
        return None if is_last else ticket

    async def _retry(self, record: Record, ticket: Ticket, error: ComfyError, *, at_once: bool = False) -> None:
        # The delay that a server requests does not apply to another server.
        is_moving = ticket.one_attempt_per_server or record.client_id in ticket.bucket.exclude_clients
        delay = 0.0 if at_once or is_moving else max(ticket.retry_delay, error.retry_after_seconds or 0.0)
        self._completion.set_status(record, PoolJobStatus.RETRYING)
        # The event has the number of the failed attempt, which may not be counted in the next ticket.
        self._completion.emit(record, record.event(JobRetrying, error=error, delay_seconds=delay))
        record.ticket = ticket
        await asyncio.sleep(delay)
        await self._put_back(record)

    async def _handle_stop(self, record: Record, reason: StopReason) -> None:
        if reason is StopReason.CANCEL:
            await self._completion.cancel(record)
            return
        if record.status is PoolJobStatus.RUNNING:
            # Neither the job nor the server is at fault.
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


def _errors_with_whole_gpu(record: Record) -> dict[str, OutOfMemory]:
    """Return the errors of a job that ran out of memory with a GPU to itself, by client id."""
    return {
        client_id: error
        for client_id, (_, error) in record.failures.items()
        if isinstance(error, OutOfMemory) and error.ran_alone
    }


def _unexpected_error(error: Exception) -> ComfyError:
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
