"""Settle leases: complete, fail or requeue a dispatch, fenced by the lease token.

One transaction of the central database decides and writes the outbox entry for the shard. A transaction of the shard
then writes job, attempt, event, tokens, video and output.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

from comfyrelay.comfyui.failures import mentions_out_of_memory
from comfyrelay.domain.ids import output_id, output_path, upload_path
from comfyrelay.domain.queue import lifecycle
from comfyrelay.domain.queue.batch_holds import MAX_EQUAL_FAILURES, hold_text, holds_batch, is_repeated
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.memory import OutOfMemoryStep, is_smaller, judge_out_of_memory
from comfyrelay.domain.queue.states import DispatchStatus, Outcome, Provider
from comfyrelay.domain.queue.updates import NO_MEDIA_FACTS, MediaFacts, UploadedOutput
from comfyrelay.errors import Fault, LeaseLost, OutOfMemory
from comfyrelay.group_commit import GroupCommit
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.queue.decisions import Decided, DecidedTransition, Decisions, Details
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches, leases, memory
from comfyrelay.store.database import Tx


class Verb(StrEnum):
    COMPLETE = "complete"
    FAIL = "fail"
    REQUEUE = "requeue"


# A repeated report with one of these verbs gets the same answer; a repeated requeue gets `LeaseLost`.
_REPEATABLE = {Verb.COMPLETE, Verb.FAIL}


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledOutput:
    """An output as described by its worker, or with its real properties after the check.

    `file_id` identifies the checked copy. Without it, the lease's upload itself is the output, unchecked.
    """

    size: int
    mime_type: str
    extension: str
    sha256: str | None = None
    metadata: dict[str, Any] | None = None
    # The worker's description, unchanged.
    sent: dict[str, Any] | None = None
    file_id: str | None = None
    media: MediaFacts = NO_MEDIA_FACTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A worker's report about the end of its lease."""

    verb: Verb
    dispatch_id: int
    lease_token: str
    worker_id: str | None = None
    provider_job_id: str | None = None
    seed: int | None = None
    # Seconds between the lease and the start of the run, by a monotonic clock.
    began_after_seconds: float | None = None
    about: dict[str, Any] | None = None
    output: SettledOutput | None = None
    # Further outputs, in order. Only checked copies are stored.
    more_outputs: Sequence[SettledOutput] = ()
    # Only answer a repeated report: a lease that was revived in the meantime must not complete without its outputs.
    is_repeat_only: bool = False
    fault: Fault = Fault.JOB
    error: str = ""
    # Error code from `errors`.
    code: str | None = None
    reason: str = ""
    retry_after_seconds: float = 0.0
    # Memory of the GPU on which the job ran out of memory, if it was the only job there.
    gpu_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """The answer to a report: the dispatch's new status. A repeated report gets the same answer and changes nothing."""

    dispatch_id: int
    status: str
    is_repeat: bool = False
    # Whether the worker gets no jobs of the workflow for a while, because it ran out of memory.
    is_blocked: bool = False


@dataclass(kw_only=True, slots=True)
class _SettleBatch:
    """The result of one settling transaction."""

    answers: list[Settlement | Exception]
    # The shard of each report, if its dispatch was found.
    shards: list[str | None]
    decided: Decided = field(default_factory=Decided)


class SettleService:
    def __init__(self, context: ServiceContext, decisions: Decisions, delivery: OutboxDelivery) -> None:
        self._databases = context.databases
        self._offline_seconds = context.settings.worker_offline_seconds
        self._decisions = decisions
        self._delivery = delivery
        self._group: GroupCommit[Report, tuple[Settlement, asyncio.Future[None] | None]] = GroupCommit(self._handle)

    async def complete(
        self,
        dispatch_id: int,
        lease_token: str,
        *,
        output: SettledOutput | None = None,
        provider_job_id: str | None = None,
        seed: int | None = None,
        worker_id: str | None = None,
    ) -> Settlement:
        return await self.report(
            Report(
                verb=Verb.COMPLETE,
                dispatch_id=dispatch_id,
                lease_token=lease_token,
                output=output,
                provider_job_id=provider_job_id,
                seed=seed,
                worker_id=worker_id,
            )
        )

    async def fail(
        self,
        dispatch_id: int,
        lease_token: str,
        *,
        error: str,
        fault: Fault = Fault.JOB,
        retry_after_seconds: float = 0.0,
        worker_id: str | None = None,
        code: str | None = None,
        gpu_bytes: int | None = None,
    ) -> Settlement:
        return await self.report(
            Report(
                verb=Verb.FAIL,
                code=code,
                dispatch_id=dispatch_id,
                lease_token=lease_token,
                error=error,
                fault=fault,
                retry_after_seconds=retry_after_seconds,
                worker_id=worker_id,
                gpu_bytes=gpu_bytes,
            )
        )

    async def requeue(
        self, dispatch_id: int, lease_token: str, *, reason: str, worker_id: str | None = None
    ) -> Settlement:
        return await self.report(
            Report(
                verb=Verb.REQUEUE, dispatch_id=dispatch_id, lease_token=lease_token, reason=reason, worker_id=worker_id
            )
        )

    async def report(self, report: Report, *, wait_for_tenant: bool = True) -> Settlement:
        """Settle one report. Concurrent reports share a transaction.

        The decision is final once the central database has committed it with its outbox entry. Without
        `wait_for_tenant`, the call waits for the shard only if delivery is behind.
        """
        settlement, delivery = await self._group.call(report)
        if delivery is not None and (wait_for_tenant or self._delivery.is_behind):
            await self._delivery.wait_for(delivery)
        return settlement

    async def report_many(self, reports: Sequence[Report]) -> list[Settlement | Exception]:
        """Settle many reports in one transaction, and return a settlement or an error for each."""
        batch = await self._decide(reports)
        await self._delivery.deliver(batch.decided.entries)
        return batch.answers

    async def _handle(
        self, reports: Sequence[Report]
    ) -> Sequence[tuple[Settlement, asyncio.Future[None] | None] | Exception]:
        batch = await self._decide(reports)
        deliveries = self._delivery.begin(batch.decided.entries)
        return [
            answer if isinstance(answer, Exception) else (answer, deliveries.get(shard or ""))
            for answer, shard in zip(batch.answers, batch.shards, strict=True)
        ]

    async def _decide(self, reports: Sequence[Report]) -> _SettleBatch:
        batch = await self._databases.central.run(TransactionStep.SETTLE, lambda tx: self._settle(tx, reports))
        for transition in batch.decided.transitions:
            if transition.hold is not None:
                await self._hold_rest(transition.after, reason=transition.hold)
        # The reporting workers know that their leases have ended, so no stop requests are needed.
        await self._decisions.notify_settled(batch.decided)
        return batch

    async def _hold_rest(self, failed: Dispatch, *, reason: str) -> None:
        """Hold the rest of the batch of a failed dispatch.

        A separate transaction avoids deadlocks between settlements. It runs before the answer, because the worker then
        polls for the next job. After a crash in between, the next failure of the batch holds it.
        """
        assert failed.batch_id is not None
        await self._decisions.decide(
            TransactionStep.HOLD,
            dispatches.of_batch(failed.tenant_id, failed.batch_id),
            lambda dispatch, now: lifecycle.hold(dispatch, workflow_hash=failed.workflow_hash, reason=reason, now=now),
            by="hold",
        )

    async def _settle(self, tx: Tx, reports: Sequence[Report]) -> _SettleBatch:
        ids = sorted({report.dispatch_id for report in reports})
        found, now, has_blocks = await dispatches.lock_reported(tx, ids)
        decisions: dict[int, DecidedTransition] = {}
        accepted: dict[str, tuple[Verb, Settlement]] = {}
        undecided: dict[int, Report] = {}
        batch = _SettleBatch(answers=[LeaseLost()] * len(reports), shards=[None] * len(reports))
        for index, report in enumerate(reports):
            dispatch = found.get(report.dispatch_id)
            if dispatch is None:
                continue
            batch.shards[index] = dispatch.shard
            if dispatch.id not in decisions and not report.is_repeat_only and _is_holder(dispatch, report):
                began_at = lifecycle.began_at(dispatch, after_seconds=report.began_after_seconds, now=now)
                decided = await self._run_out_of_memory(tx, dispatch, report, now, began_at)
                transition = _charge(decided or _transition(dispatch, report, now, began_at), report, now, began_at)
                transition = await _mark_hold(tx, transition, report, decisions.values())
                details = _details(dispatch, report, began_at)
                decisions[dispatch.id] = DecidedTransition(transition=transition, by=report.verb, details=details)
                settlement = Settlement(
                    dispatch_id=dispatch.id,
                    status=transition.after.status,
                    is_blocked=transition.block is not None,
                )
                batch.answers[index] = settlement
                accepted[report.lease_token] = (report.verb, settlement)
            elif report.lease_token in accepted:
                verb, settlement = accepted[report.lease_token]
                is_same = settlement.dispatch_id == dispatch.id and report.worker_id in {None, dispatch.worker_id}
                if is_same and verb is report.verb and verb in _REPEATABLE:
                    batch.answers[index] = replace(settlement, is_repeat=True)
            else:
                undecided[index] = report
        await self._answer_repeats(tx, undecided, batch)
        batch.decided = await self._decisions.write(
            tx, list(decisions.values()), found=found, now=now, has_blocks=has_blocks
        )
        return batch

    async def _run_out_of_memory(
        self, tx: Tx, dispatch: Dispatch, report: Report, now: datetime, began_at: datetime | None
    ) -> Transition | None:
        """Handle a job that ran out of memory alone on a GPU; `None` for other reports."""
        if not _is_out_of_memory(dispatch, report):
            return None
        if report.gpu_bytes:
            await memory.record_memory(tx, dispatch.worker_id, report.gpu_bytes)
        size = report.gpu_bytes or await memory.memory_of(tx, dispatch.worker_id)
        others = await memory.capable_workers(tx, dispatch, offline_seconds=self._offline_seconds)
        others = [worker for worker in others if worker.worker_id not in dispatch.memory_failures]
        blocked = [worker.memory_bytes for worker in others if worker.has_run_out]
        failed = [*dispatch.memory_failures.values(), *blocked]
        completed_by = await memory.completed_by(tx, dispatch, size) if dispatch.only_worker is None else set()
        untried = [
            worker.memory_bytes
            for worker in others
            if not worker.has_run_out
            and (worker.worker_id in completed_by or not is_smaller(worker.memory_bytes, size))
        ]
        step = judge_out_of_memory(size, untried=untried, failed=failed, has_run_elsewhere=bool(completed_by))
        if step is OutOfMemoryStep.NONE and completed_by:
            # The worker is at fault, so the job waits for a worker that is currently offline.
            step = OutOfMemoryStep.ELSEWHERE
        if size is not None and step is not OutOfMemoryStep.ELSEWHERE:
            await memory.record_too_small(tx, dispatch, max(size, *(other or 0 for other in failed), 0))
        return lifecycle.run_out_of_memory(
            dispatch, gpu_bytes=size, failed=failed, step=step, error=report.error, now=now, began_at=began_at
        )

    async def _answer_repeats(self, tx: Tx, undecided: dict[int, Report], batch: _SettleBatch) -> None:
        """Answer a repeated `complete` or `fail` with the same token in the same way as the first."""
        if not undecided:
            return
        past = await leases.by_token(tx, {report.lease_token for report in undecided.values()})
        for index, report in undecided.items():
            lease = past.get(report.lease_token)
            if (
                lease is not None
                and lease.dispatch_id == report.dispatch_id
                and lease.ended_by == report.verb
                and report.verb in _REPEATABLE
                and report.worker_id in {None, lease.worker_id}
                and lease.status_after is not None
            ):
                batch.answers[index] = Settlement(
                    dispatch_id=report.dispatch_id, status=lease.status_after, is_repeat=True
                )


def _is_out_of_memory(dispatch: Dispatch, report: Report) -> bool:
    """Whether a job ran out of memory alone on a GPU.

    Workers that report neither a code nor a fault are recognised by their error message.
    """
    if report.verb is not Verb.FAIL or dispatch.provider != Provider.SELF_HOSTED:
        return False
    if report.code is None:
        return report.fault is Fault.JOB and mentions_out_of_memory(report.error)
    return report.code == OutOfMemory.code and bool(report.gpu_bytes)


def _transition(dispatch: Dispatch, report: Report, now: datetime, began_at: datetime | None) -> Transition:
    transition: Transition | None
    match report.verb:
        case Verb.COMPLETE:
            transition = lifecycle.complete(dispatch, now=now, began_at=began_at)
        case Verb.FAIL:
            wait = timedelta(seconds=max(0.0, report.retry_after_seconds))
            transition = lifecycle.fail(
                dispatch, fault=report.fault, error=report.error, now=now, retry_after=wait, began_at=began_at
            )
        case Verb.REQUEUE:
            transition = lifecycle.requeue(dispatch, reason=report.reason, now=now, began_at=began_at)
        case _:
            assert_never(report.verb)
    assert transition is not None, "the holder of a lease can always end it"
    return transition


def _charge(transition: Transition, report: Report, now: datetime, began_at: datetime | None) -> Transition:
    """Charge the run time. A requeued job without a reported start costs nothing."""
    has_run = report.began_after_seconds is not None or transition.lease_outcome in {Outcome.COMPLETED, Outcome.FAILED}
    return lifecycle.charge(transition, ran_from=began_at if has_run else None, now=now)


async def _mark_hold(
    tx: Tx, transition: Transition, report: Report, decided: Iterable[DecidedTransition]
) -> Transition:
    """Mark the failure if it holds the rest of its batch. `decided` are the earlier decisions of this settlement."""
    failed = transition.after
    if failed.status != DispatchStatus.FAILED or failed.batch_id is None:
        return transition
    # Only some codes depend on completed items, so the query is rare.
    if holds_batch(report.code, has_completed=False) and holds_batch(
        report.code,
        has_completed=await dispatches.has_completed(
            tx, failed.tenant_id, failed.batch_id, workflow_hash=failed.workflow_hash
        ),
    ):
        return replace(transition, hold=hold_text(report.error))
    wanted = MAX_EQUAL_FAILURES - 1
    before = [*_ended_now(failed, decided), *await dispatches.last_ended(tx, failed, limit=wanted)][:wanted]
    if not is_repeated(report.error, [ended.error for ended in before]):
        return transition
    return replace(
        transition,
        hold=hold_text(report.error, failures=len(before) + 1),
        held_with=tuple(ended.job_id for ended in before),
    )


def _ended_now(failed: Dispatch, decided: Iterable[DecidedTransition]) -> list[dispatches.EndedItem]:
    """Return the items of the same batch and hash that ended in this settlement, newest first."""
    same = (failed.tenant_id, failed.batch_id, failed.workflow_hash)
    ended = [decision.transition for decision in decided if decision.transition.after.is_terminal]
    return [
        dispatches.EndedItem(after.tenant_job_id, after.last_error if after.status == DispatchStatus.FAILED else None)
        for after in (transition.after for transition in reversed(ended))
        if (after.tenant_id, after.batch_id, after.workflow_hash) == same and after.status != DispatchStatus.CANCELED
    ]


def _is_holder(dispatch: Dispatch, report: Report) -> bool:
    return lifecycle.holds_lease(dispatch, report.lease_token) and report.worker_id in {None, dispatch.worker_id}


def _details(dispatch: Dispatch, report: Report, began_at: datetime | None) -> Details:
    token = report.lease_token
    return Details(
        provider_job_id=report.provider_job_id,
        output=None if report.output is None else _output_file(dispatch, token, report.output),
        more_outputs=[_output_file(dispatch, token, output) for output in report.more_outputs if output.file_id],
        seed=report.seed,
        began_at=began_at,
        has_run=report.began_after_seconds is not None,
        about=report.about,
    )


def _output_file(dispatch: Dispatch, lease_token: str, output: SettledOutput) -> UploadedOutput:
    tenant_id, job_id, extension = dispatch.tenant_id, dispatch.tenant_job_id, output.extension
    if output.file_id is None:
        path = upload_path(tenant_id=tenant_id, job_id=job_id, lease_token=lease_token, extension=extension)
    else:
        path = output_path(output.file_id, tenant_id=tenant_id, job_id=job_id, extension=extension)
    return UploadedOutput(
        file_id=output.file_id or output_id(lease_token),
        path=path,
        size=output.size,
        mime_type=output.mime_type,
        sha256=output.sha256,
        metadata=output.metadata,
        sent=output.sent,
        media=output.media,
    )
