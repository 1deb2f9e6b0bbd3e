"""Make decisions about dispatches: lock and judge them, write the transitions, then notify and deliver."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.blocks import (
    BLOCKED_EVENT,
    UNBLOCKED_EVENT,
    Block,
    is_blocked,
    record_failure,
    record_out_of_memory,
)
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.lifecycle import ran_seconds
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Outcome
from comfyrelay.domain.queue.updates import JobUpdate, UploadedOutput, update_of_transition
from comfyrelay.domain.records.workers import NewAuditEntry
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import Fault
from comfyrelay.pacing import paced
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.queue.previews import PreviewService
from comfyrelay.services.queue.stop_requests import StopRequests
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import audit, catalogue
from comfyrelay.store.central.autoscaling import bursts
from comfyrelay.store.central.queue import blocks, dispatches, leases
from comfyrelay.store.central.queue.dispatches import Condition
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry

Judge = Callable[[Dispatch, datetime], Transition | None]
Which = Condition | Collection[int]

_STOP_REQUESTS = {JobEventType.CANCEL_REQUESTED, JobEventType.PAUSE_REQUESTED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """Details of a worker's report about the end of its lease, for the job's history."""

    provider_job_id: str | None = None
    output: UploadedOutput | None = None
    more_outputs: Sequence[UploadedOutput] = ()
    seed: int | None = None
    began_at: datetime | None = None
    has_run: bool = False
    about: dict[str, Any] | None = None


NO_DETAILS = Details()


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedTransition:
    """A transition, the verb that caused it, and the reported details."""

    transition: Transition
    by: str
    details: Details = NO_DETAILS


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The locked dispatches and the transitions of a transaction, to be announced after the commit."""

    found: Mapping[int, Dispatch] = field(default_factory=dict)
    transitions: Sequence[Transition] = ()
    entries: Sequence[OutboxEntry] = ()
    # Whether a dispatch became available for leasing.
    has_work: bool = False


class Decisions:
    def __init__(
        self,
        context: ServiceContext,
        delivery: OutboxDelivery,
        stop_requests: StopRequests,
        previews: PreviewService,
        *,
        on_transition: Callable[[], None],
    ) -> None:
        """`on_transition` is called after transitions that write no audit entry."""
        self._databases = context.databases
        self._notify_channel = context.notify_channel
        self._policy = context.failover
        self._delivery = delivery
        self._stop_requests = stop_requests
        self._previews = previews
        self._on_transition = on_transition

    async def decide(self, step: TransactionStep, which: Which, judge: Judge, *, by: str, post: bool = True) -> Decided:
        """Lock, judge and write in a separate transaction, and announce the result."""
        decided = await self._databases.central.run(step, lambda tx: self.decide_in(tx, which, judge, by=by, post=post))
        await self.announce(decided)
        return decided

    async def decide_in(self, tx: Tx, which: Which, judge: Judge, *, by: str, post: bool = True) -> Decided:
        """Lock, judge and write in the caller's transaction. The caller announces the result after the commit."""
        found, now = await dispatches.lock(tx, which)
        decisions = [
            DecidedTransition(transition=transition, by=by)
            async for dispatch in paced(found.values())
            if (transition := judge(dispatch, now)) is not None
        ]
        return await self.write(tx, decisions, found=found, now=now, post=post)

    async def write(
        self,
        tx: Tx,
        decisions: Sequence[DecidedTransition],
        *,
        found: Mapping[int, Dispatch],
        now: datetime,
        has_blocks: bool = True,
        post: bool = True,
    ) -> Decided:
        """Write the transitions of locked dispatches with leases, audit entries, blocks and outbox entries.

        `has_blocks` is false if these workers have no blocks that a success could clear. `post` is false if the shard
        already has the result: then no update is sent, and blocks and timings do not change.
        """
        if not decisions:
            return Decided(found=found)
        transitions = [decision.transition for decision in decisions]
        await dispatches.write(tx, transitions)
        await bursts.record_transitions(tx, transitions, at=now)
        if ended := [decision for decision in decisions if decision.transition.lease_outcome is not None]:
            await leases.end(tx, [(decision.transition, decision.by) for decision in ended], at=now)
            await audit.record(tx, [_audit_entry(decision, now) for decision in ended])
            if post:
                ends = [decision.transition for decision in ended]
                await self._update_blocks(tx, ends, now=now, has_blocks=has_blocks)
                await _note_processing_times(tx, ends)
        return Decided(
            found=found,
            transitions=transitions,
            entries=await outbox.post(tx, await _updates(decisions, now) if post else {}),
            has_work=any(
                transition.after.status == DispatchStatus.QUEUED and transition.after.available_at <= now
                for transition in transitions
            ),
        )

    async def announce(self, decided: Decided) -> None:
        """After the commit: wake workers and pollers, and deliver the updates to the shards."""
        await self.notify_settled(decided)
        self._stop_requests.wake(
            transition.before.id
            for transition in decided.transitions
            if transition.lease_outcome is not None or transition.event_type in _STOP_REQUESTS
        )
        await self._delivery.deliver(decided.entries)

    async def notify_settled(self, decided: Decided) -> None:
        """After the commit: wake pollers and remove previews. The workers already know that their leases ended."""
        self._previews.remove_ended(decided.transitions)
        # Ended leases have an audit entry.
        if any(transition.lease_outcome is None for transition in decided.transitions):
            self._on_transition()
        if decided.has_work:
            await self._notify_channel.notify()

    async def _update_blocks(self, tx: Tx, ended: Sequence[Transition], *, now: datetime, has_blocks: bool) -> None:
        """Count worker faults of a (worker, workflow hash) pair; clear them after a success."""
        failed = [
            end
            for end in ended
            if end.block is not None or (end.lease_outcome is Outcome.FAILED and end.fault is Fault.WORKER)
        ]
        succeeded = dict.fromkeys(_pair(end) for end in ended if end.lease_outcome is Outcome.COMPLETED)
        events: list[NewAuditEntry] = []
        if succeeded and has_blocks:
            for pair, until in (await blocks.clear(tx, list(succeeded))).items():
                if is_blocked(until, now=now):
                    events.append(block_event(UNBLOCKED_EVENT, pair))
        for end in ended:
            if end.acquitted:
                pairs = await blocks.clear_of_workers(
                    tx, end.acquitted, workflow_hash=end.before.workflow_hash, only_out_of_memory=True
                )
                events += [block_event(UNBLOCKED_EVENT, pair) for pair in pairs]
        if failed:
            known: dict[blocks.Pair, Block] = await blocks.lock(tx, {_pair(end) for end in failed})
            for end in failed:
                pair = _pair(end)
                known[pair] = self._new_block(known.get(pair), end, now=now)
                await blocks.write(tx, pair, known[pair])
                if known[pair].blocked_until is not None:
                    events.append(block_event(BLOCKED_EVENT, pair, block=known[pair]))
        await audit.record(tx, events)

    def _new_block(self, known: Block | None, end: Transition, *, now: datetime) -> Block:
        if end.block is not None:
            return record_out_of_memory(known, policy=self._policy, now=now, reason=end.block)
        return record_failure(known, policy=self._policy, now=now, reason=user_sentence(end.error))

    async def recall(self, which: Condition) -> int:
        """Ask workers to release prefetched jobs that they have not started, and return the number of jobs."""
        ids = await self._databases.central.run(
            TransactionStep.RECALL, lambda tx: dispatches.recall_prefetched(tx, which)
        )
        self._stop_requests.wake(ids)
        return len(ids)


async def _updates(decisions: Iterable[DecidedTransition], now: datetime) -> dict[str, list[JobUpdate]]:
    updates: dict[str, list[JobUpdate]] = defaultdict(list)
    async for decision in paced(decisions):
        details = decision.details
        updates[decision.transition.after.shard].append(
            update_of_transition(
                decision.transition,
                at=now,
                provider_job_id=details.provider_job_id,
                output=details.output,
                more_outputs=details.more_outputs,
                seed=details.seed,
                began_at=details.began_at,
                has_run=details.has_run,
                about=details.about,
            )
        )
    return updates


def _audit_entry(decision: DecidedTransition, now: datetime) -> NewAuditEntry:
    transition = decision.transition
    data: dict[str, Any] = {
        "status": transition.after.status,
        "epoch": transition.before.epoch,
        "ran_seconds": ran_seconds(transition, began_at=decision.details.began_at, now=now),
    }
    causes = {"error": transition.error, "fault": transition.fault, "reason": transition.reason}
    data |= {name: value for name, value in causes.items() if value is not None}
    return NewAuditEntry(
        worker_id=transition.before.worker_id or "", event=decision.by, dispatch_id=transition.before.id, data=data
    )


def block_event(event: str, pair: blocks.Pair, *, block: Block | None = None, by: str | None = None) -> NewAuditEntry:
    data: dict[str, Any] = {"workflow_hash": pair[1]}
    if block is not None and block.blocked_until is not None:
        data |= {"blocked_until": block.blocked_until.isoformat(), "reason": block.reason}
    if by is not None:
        data["by"] = by
    return NewAuditEntry(worker_id=pair[0], event=event, data=data)


def _pair(transition: Transition) -> blocks.Pair:
    return (transition.before.worker_id or "", transition.before.workflow_hash)


async def _note_processing_times(tx: Tx, ended: Sequence[Transition]) -> None:
    seconds = {
        transition.after.effect_id: transition.after.duration_seconds
        for transition in ended
        if transition.lease_outcome is Outcome.COMPLETED
        and transition.after.effect_id is not None
        and transition.after.duration_seconds is not None
    }
    if seconds:
        await catalogue.record_processing_times(tx, seconds)
