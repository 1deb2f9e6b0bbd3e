"""Runs jobs on servers, and decides what comes of it: done, tried again, given up, canceled or put back."""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import replace

import orjson
import structlog

from comfyrelay.clock import utc_now
from comfyrelay.comfy.outputs import RunResult
from comfyrelay.comfy.server import ComfyServer
from comfyrelay.errors import (
    ComfyError,
    ComfyRelayError,
    DeviceFault,
    Fault,
    NotInstalled,
    RunLost,
    RunTimedOut,
    ServerUnreachable,
)
from comfyrelay.pool.endings import Endings
from comfyrelay.pool.event_translator import EventTranslator
from comfyrelay.pool.events import ClientBlockedWorkflow, JobRetrying, PoolEvent
from comfyrelay.pool.failover import FailoverStrategy
from comfyrelay.pool.member import Member
from comfyrelay.pool.queue import JobStatus, QueueAdapter
from comfyrelay.pool.record import Record, Stop
from comfyrelay.pool.scheduler import Scheduler
from comfyrelay.pool.stats import Tally

log = structlog.get_logger(__name__)


class Runner:
    def __init__(
        self,
        *,
        queue: QueueAdapter,
        failover: FailoverStrategy,
        endings: Endings,
        tally: Tally,
        emit: Callable[[PoolEvent], None],
        scheduler: Scheduler,
    ) -> None:
        self._queue = queue
        self._failover = failover
        self._endings = endings
        self._tally = tally
        self._emit = emit
        self._scheduler = scheduler
        self._uses = 0

    def start(self, record: Record, member: Member) -> None:
        """Begin an attempt of a job that was taken from the queue."""
        self._uses += 1
        member.last_used = self._uses
        member.running += 1
        record.ticket = replace(record.ticket, attempts=record.ticket.attempts + 1)
        record.client_id = member.id
        record.server = member.server
        record.started_at = utc_now()
        record.progress = 0.0
        self._set(record, JobStatus.RUNNING)
        record.task = self._endings.spawn(self._attempt(record, member))

    async def stop(self, record: Record, why: Stop) -> None:
        """Stop what is going on with a job that does not wait, and return when that is over."""
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
        except asyncio.CancelledError:
            if record.stop is None:
                raise
            await self._stopped(record, record.stop)
        except Exception as error:
            # the queue or the strategy failed, and no server: a disk may be full
            log.exception("pool.attempt_failed", client_id=member.id, job_id=record.ticket.id)
            await self._endings.fail(record, _unexpected(error))

    async def _run(self, record: Record, member: Member) -> RunResult | ComfyError:
        try:
            # a task that is canceled before its first step never reaches its own clean-up
            record.can_stop = True
            if record.stop is not None:
                raise asyncio.CancelledError
            await self._queue.begin(record.ticket)
            return await self._run_on(member.server, record)
        finally:
            member.running -= 1
            self._scheduler.wake()

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
                on_event=EventTranslator(record, graph, self._endings.emit).translate,
            )
        except ComfyError as error:
            return error
        except ComfyRelayError as error:
            # a graph or a file that is wrong here is wrong everywhere
            return ComfyError(error.detail, fault=Fault.JOB)
        except Exception as error:
            log.exception("pool.run_failed", client_id=record.client_id, job_id=ticket.id)
            return _unexpected(error)

    async def _succeed(self, record: Record, member: Member, result: RunResult) -> None:
        workflow_hash = record.ticket.lane.workflow_hash
        member.completed += 1
        member.note_warm(workflow_hash)
        if self._failover.record_success(member.id, workflow_hash):
            self._scheduler.unblocked(member.id, workflow_hash)
        await self._endings.complete(record, result)

    async def _fail(self, record: Record, member: Member, error: ComfyError) -> None:
        member.failed += 1
        record.first_error = record.first_error or error
        record.last_error = error
        if error.fault is Fault.WORKER:
            self._block(member, record.ticket.lane.workflow_hash, error)
        if isinstance(error, ServerUnreachable | RunLost | RunTimedOut | DeviceFault):
            # it gets no more jobs until it has been seen to be fine
            member.doubt(error.detail)
        must_move = record.ticket.one_try_per_server and error.fault is Fault.WORKER
        can_move = (must_move or isinstance(error, NotInstalled)) and self._exclude(record, member, error)
        is_last = record.ticket.attempts >= record.ticket.max_attempts or (must_move and not can_move)
        if error.fault is Fault.JOB or is_last:
            await self._endings.fail(record, error)
        else:
            await self._retry(record, error)

    def _exclude(self, record: Record, member: Member, error: ComfyError) -> bool:
        """Do not use this server for the job again, at the cost of no attempt; false when there is no other to try."""
        ticket = record.ticket
        lane = ticket.lane._replace(exclude_clients=ticket.lane.exclude_clients | {member.id})
        # one that is away may have what is missing here
        can_move = self._scheduler.could_run(lane, online_only=not isinstance(error, NotInstalled))
        if can_move:
            record.ticket = replace(ticket, lane=lane, attempts=ticket.attempts - 1)
        return can_move

    def _block(self, member: Member, workflow_hash: str, error: ComfyError) -> None:
        until = self._failover.record_failure(member.id, workflow_hash, error)
        if until is not None:
            self._emit(ClientBlockedWorkflow(client_id=member.id, workflow_hash=workflow_hash, blocked_until=until))

    async def _retry(self, record: Record, error: ComfyError) -> None:
        # another server need not wait for what this one asks for
        is_moving = record.ticket.one_try_per_server
        delay = 0.0 if is_moving else max(record.ticket.retry_delay, error.retry_after_seconds or 0.0)
        self._set(record, JobStatus.RETRYING)
        self._endings.emit(record, record.event(JobRetrying, error=error, delay_seconds=delay))
        await asyncio.sleep(delay)
        await self._put_back(record)

    async def _stopped(self, record: Record, why: Stop) -> None:
        if why is Stop.CANCEL:
            await self._endings.cancel(record)
            return
        if record.status is JobStatus.RUNNING:
            # neither the job nor the server failed
            record.ticket = replace(record.ticket, attempts=record.ticket.attempts - 1)
        await self._put_back(record)

    async def _put_back(self, record: Record) -> None:
        await self._queue.put_back(record.ticket)
        self._set(record, JobStatus.QUEUED)
        record.task = None
        record.stop = None
        record.can_stop = False
        self._scheduler.arrived(record.ticket)

    def _set(self, record: Record, status: JobStatus) -> None:
        self._tally.moved(record.status, status)
        record.status = status


def _unexpected(error: Exception) -> ComfyError:
    what = f"The run failed unexpectedly ({type(error).__name__})."
    return ComfyError(what, raw="".join(traceback.format_exception(error)))
