"""Every decision about dispatches: lock them, judge each, write what follows, then wake and deliver."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.blocks import (
    BLOCKED_EVENT,
    UNBLOCKED_EVENT,
    Block,
    FailoverPolicy,
    is_blocked,
    record_failure,
)
from comfyrelay.domain.queue.lifecycle import Dispatch, Transition, ran_seconds
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Outcome
from comfyrelay.domain.queue.updates import JobUpdate, UploadedOutput, update_of_transition
from comfyrelay.domain.records.workers import NewAuditEntry
from comfyrelay.errors import Fault
from comfyrelay.services.databases import Databases
from comfyrelay.services.outbox.delivery import OutboxDelivery
from comfyrelay.services.queue.previews import PreviewService
from comfyrelay.services.queue.stop_requests import Stops
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store import outbox
from comfyrelay.store.central import audit, catalogue
from comfyrelay.store.central.autoscaling import bursts
from comfyrelay.store.central.queue import blocks, dispatches, leases
from comfyrelay.store.central.queue.dispatches import Condition
from comfyrelay.store.database import Tx
from comfyrelay.store.notify import NotifyChannel
from comfyrelay.store.outbox import OutboxEntry

Judge = Callable[[Dispatch, datetime], Transition | None]
Which = Condition | Collection[int]

_STOP_REQUESTS = {JobEventType.CANCEL_REQUESTED, JobEventType.PAUSE_REQUESTED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What a worker reports beside the end, for the job's history."""

    provider_job_id: str | None = None
    output: UploadedOutput | None = None
    seed: int | None = None
    began_at: datetime | None = None
    about: dict[str, Any] | None = None


NO_DETAILS = Details()


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedTransition:
    """A transition, the verb that brought it about, and what was reported beside it."""

    transition: Transition
    by: str
    details: Details = NO_DETAILS


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """What a transaction locked and decided, to be announced once it is committed."""

    found: Mapping[int, Dispatch] = field(default_factory=dict)
    transitions: Sequence[Transition] = ()
    entries: Sequence[OutboxEntry] = ()
    # whether something can be leased that could not be before
    has_work: bool = False


class Decisions:
    def __init__(
        self,
        databases: Databases,
        delivery: OutboxDelivery,
        notify_channel: NotifyChannel,
        stops: Stops,
        previews: PreviewService,
        *,
        policy: FailoverPolicy,
        on_moved: Callable[[], None],
    ) -> None:
        """`on_moved` is called when dispatches have moved of which no row tells but their own."""
        self._databases = databases
        self._delivery = delivery
        self._notify_channel = notify_channel
        self._stops = stops
        self._previews = previews
        self._policy = policy
        self._on_moved = on_moved

    async def decide(self, step: TransactionStep, which: Which, judge: Judge, *, by: str, post: bool = True) -> Decided:
        """Lock, judge and write in a transaction of its own, and announce it."""
        decided = await self._databases.central.run(step, lambda tx: self.decide_in(tx, which, judge, by=by, post=post))
        await self.announce(decided)
        return decided

    async def decide_in(self, tx: Tx, which: Which, judge: Judge, *, by: str, post: bool = True) -> Decided:
        """Lock, judge and write in a transaction of the caller's, who announces it after the commit."""
        found, now = await dispatches.lock(tx, which)
        decisions = [
            DecidedTransition(transition=transition, by=by)
            for each in found.values()
            if (transition := judge(each, now)) is not None
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
        """Write the transitions of locked dispatches with all that follows from them.

        Without `has_blocks`, none of their workers has a failure to its name, so there is none to clear. Without
        `post`, the shard knows of the transitions already, and nothing is learned from them."""
        if not decisions:
            return Decided(found=found)
        transitions = [each.transition for each in decisions]
        await dispatches.write(tx, transitions)
        await bursts.note(tx, transitions, at=now)
        if ended := [each for each in decisions if each.transition.lease_outcome is not None]:
            await leases.end(tx, [(each.transition, each.by) for each in ended], at=now)
            await audit.record(tx, [_audit_entry(each, now) for each in ended])
            ends = [each.transition for each in ended if post]
            await _update_blocks(tx, ends, policy=self._policy, now=now, has_blocks=has_blocks)
            await _note_timing(tx, ends)
        return Decided(
            found=found,
            transitions=transitions,
            entries=await outbox.post(tx, _updates(decisions, now) if post else {}),
            has_work=any(_can_be_leased(each.after, now) for each in transitions),
        )

    async def announce(self, decided: Decided) -> None:
        """After the commit: wake whom it concerns, and deliver it to the shards."""
        await self.settled(decided)
        self._stops.wake(transition.before.id for transition in decided.transitions if _stops(transition))
        await self._delivery.deliver(decided.entries)

    async def settled(self, decided: Decided) -> None:
        """After the commit, where whoever held the leases knows of it: wake pollers, and forget what was seen."""
        self._previews.ended(decided.transitions)
        # the end of a lease is in the audit
        if any(transition.lease_outcome is None for transition in decided.transitions):
            self._on_moved()
        if decided.has_work:
            await self._notify_channel.notify()

    async def recall(self, which: Condition) -> int:
        """Ask workers to release prefetched jobs that they have not started; return how many."""
        ids = await self._databases.central.run(
            TransactionStep.RECALL, lambda tx: dispatches.recall_prefetched(tx, which)
        )
        self._stops.wake(ids)
        return len(ids)


def _stops(transition: Transition) -> bool:
    """Whether the worker that holds the lease should know of it at once."""
    return transition.lease_outcome is not None or transition.event_type in _STOP_REQUESTS


def _can_be_leased(dispatch: Dispatch, now: datetime) -> bool:
    return dispatch.status == DispatchStatus.QUEUED and dispatch.available_at <= now


def _updates(decisions: Iterable[DecidedTransition], now: datetime) -> dict[str, list[JobUpdate]]:
    updates: dict[str, list[JobUpdate]] = defaultdict(list)
    for each in decisions:
        details = each.details
        updates[each.transition.after.shard].append(
            update_of_transition(
                each.transition,
                at=now,
                provider_job_id=details.provider_job_id,
                output=details.output,
                seed=details.seed,
                began_at=details.began_at,
                about=details.about,
            )
        )
    return updates


def _audit_entry(decision: DecidedTransition, now: datetime) -> NewAuditEntry:
    transition = decision.transition
    ran = ran_seconds(transition, began_at=decision.details.began_at, now=now)
    data: dict[str, Any] = {"status": transition.after.status, "epoch": transition.before.epoch, "ran_seconds": ran}
    if transition.error is not None:
        data["error"] = transition.error
    if transition.fault is not None:
        data["fault"] = transition.fault
    if transition.reason is not None:
        data["reason"] = transition.reason
    return NewAuditEntry(
        worker_id=transition.before.worker_id or "", event=decision.by, dispatch_id=transition.before.id, data=data
    )


async def _update_blocks(
    tx: Tx, ended: Sequence[Transition], *, policy: FailoverPolicy, now: datetime, has_blocks: bool
) -> None:
    """A worker's fault counts against the pair of worker and workflow hash; a success clears it."""
    failed = [m for m in ended if m.lease_outcome is Outcome.FAILED and m.fault is Fault.WORKER]
    succeeded = {_pair(m): m for m in ended if m.lease_outcome is Outcome.COMPLETED}
    events: list[NewAuditEntry] = []
    if succeeded and has_blocks:
        for pair, until in (await blocks.clear(tx, list(succeeded))).items():
            if is_blocked(until, now=now):
                events.append(block_event(UNBLOCKED_EVENT, pair))
    if failed:
        known: dict[blocks.Pair, Block] = await blocks.lock(tx, {_pair(m) for m in failed})
        for transition in failed:
            pair = _pair(transition)
            known[pair] = record_failure(known.get(pair), policy=policy, now=now)
            await blocks.write(tx, pair, known[pair])
            if known[pair].blocked_until is not None:
                events.append(block_event(BLOCKED_EVENT, pair, until=known[pair].blocked_until))
    await audit.record(tx, events)


def block_event(event: str, pair: blocks.Pair, *, until: datetime | None = None) -> NewAuditEntry:
    data: dict[str, Any] = {"workflow_hash": pair[1]}
    if until is not None:
        data["blocked_until"] = until.isoformat()
    return NewAuditEntry(worker_id=pair[0], event=event, data=data)


def _pair(transition: Transition) -> blocks.Pair:
    return (transition.before.worker_id or "", transition.before.workflow_hash)


async def _note_timing(tx: Tx, ended: Sequence[Transition]) -> None:
    seconds = {
        transition.after.effect_id: transition.after.duration_seconds
        for transition in ended
        if transition.lease_outcome is Outcome.COMPLETED
        and transition.after.effect_id is not None
        and transition.after.duration_seconds is not None
    }
    if seconds:
        await catalogue.note_processing_times(tx, seconds)
