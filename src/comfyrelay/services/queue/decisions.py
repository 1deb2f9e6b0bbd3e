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
from comfyrelay.domain.queue.lifecycle import Dispatch, Move, ran_seconds
from comfyrelay.domain.queue.states import DispatchStatus, JobEventType, Outcome
from comfyrelay.domain.queue.updates import JobUpdate, UploadedOutput, update_of
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

Judge = Callable[[Dispatch, datetime], Move | None]
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
class DecidedMove:
    """A move, the verb that brought it about, and what was reported beside it."""

    move: Move
    by: str
    details: Details = NO_DETAILS


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """What a transaction locked and decided, to be announced once it is committed."""

    found: Mapping[int, Dispatch] = field(default_factory=dict)
    moves: Sequence[Move] = ()
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
        decisions = [DecidedMove(move=move, by=by) for each in found.values() if (move := judge(each, now)) is not None]
        return await self.write(tx, decisions, found=found, now=now, post=post)

    async def write(
        self,
        tx: Tx,
        decisions: Sequence[DecidedMove],
        *,
        found: Mapping[int, Dispatch],
        now: datetime,
        has_blocks: bool = True,
        post: bool = True,
    ) -> Decided:
        """Write the moves of locked dispatches with all that follows from them.

        Without `has_blocks`, none of their workers has a failure to its name, so there is none to clear. Without
        `post`, the shard knows of the moves already, and nothing is learned from them."""
        if not decisions:
            return Decided(found=found)
        moves = [each.move for each in decisions]
        await dispatches.write(tx, moves)
        await bursts.note(tx, moves, at=now)
        if ended := [each for each in decisions if each.move.ended is not None]:
            await leases.end(tx, [(each.move, each.by) for each in ended], at=now)
            await audit.record(tx, [_audit_entry(each, now) for each in ended])
            ends = [each.move for each in ended if post]
            await _update_blocks(tx, ends, policy=self._policy, now=now, has_blocks=has_blocks)
            await _note_timing(tx, ends)
        return Decided(
            found=found,
            moves=moves,
            entries=await outbox.post(tx, _updates(decisions, now) if post else {}),
            has_work=any(_can_be_leased(each.after, now) for each in moves),
        )

    async def announce(self, decided: Decided) -> None:
        """After the commit: wake whom it concerns, and deliver it to the shards."""
        await self.settled(decided)
        self._stops.wake(move.before.id for move in decided.moves if _stops(move))
        await self._delivery.deliver(decided.entries)

    async def settled(self, decided: Decided) -> None:
        """After the commit, where whoever held the leases knows of it: wake pollers, and forget what was seen."""
        self._previews.ended(decided.moves)
        # the end of a lease is in the audit
        if any(move.ended is None for move in decided.moves):
            self._on_moved()
        if decided.has_work:
            await self._notify_channel.notify()

    async def recall(self, which: Condition) -> int:
        """Ask the workers that hold them for prefetched jobs back which they have not begun; returns for how many."""
        ids = await self._databases.central.run(
            TransactionStep.RECALL, lambda tx: dispatches.recall_prefetched(tx, which)
        )
        self._stops.wake(ids)
        return len(ids)


def _stops(move: Move) -> bool:
    """Whether the worker that holds the lease should know of it at once."""
    return move.ended is not None or move.event_type in _STOP_REQUESTS


def _can_be_leased(dispatch: Dispatch, now: datetime) -> bool:
    return dispatch.status == DispatchStatus.QUEUED and dispatch.available_at <= now


def _updates(decisions: Iterable[DecidedMove], now: datetime) -> dict[str, list[JobUpdate]]:
    updates: dict[str, list[JobUpdate]] = defaultdict(list)
    for each in decisions:
        details = each.details
        updates[each.move.after.shard].append(
            update_of(
                each.move,
                at=now,
                provider_job_id=details.provider_job_id,
                output=details.output,
                seed=details.seed,
                began_at=details.began_at,
                about=details.about,
            )
        )
    return updates


def _audit_entry(decision: DecidedMove, now: datetime) -> NewAuditEntry:
    move = decision.move
    ran = ran_seconds(move, began_at=decision.details.began_at, now=now)
    data: dict[str, Any] = {"status": move.after.status, "epoch": move.before.epoch, "ran_seconds": ran}
    if move.error is not None:
        data["error"] = move.error
    if move.fault is not None:
        data["fault"] = move.fault
    if move.reason is not None:
        data["reason"] = move.reason
    return NewAuditEntry(
        worker_id=move.before.worker_id or "", event=decision.by, dispatch_id=move.before.id, data=data
    )


async def _update_blocks(
    tx: Tx, ended: Sequence[Move], *, policy: FailoverPolicy, now: datetime, has_blocks: bool
) -> None:
    """A worker's fault counts against the pair of worker and workflow hash; a success clears it."""
    failed = [m for m in ended if m.ended is Outcome.FAILED and m.fault is Fault.WORKER]
    succeeded = {_pair(m): m for m in ended if m.ended is Outcome.COMPLETED}
    events: list[NewAuditEntry] = []
    if succeeded and has_blocks:
        for pair, until in (await blocks.clear(tx, list(succeeded))).items():
            if is_blocked(until, now=now):
                events.append(block_event(UNBLOCKED_EVENT, pair))
    if failed:
        known: dict[blocks.Pair, Block] = await blocks.lock(tx, {_pair(m) for m in failed})
        for move in failed:
            pair = _pair(move)
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


def _pair(move: Move) -> blocks.Pair:
    return (move.before.worker_id or "", move.before.workflow_hash)


async def _note_timing(tx: Tx, ended: Sequence[Move]) -> None:
    seconds = {
        move.after.effect_id: move.after.duration_seconds
        for move in ended
        if move.ended is Outcome.COMPLETED
        and move.after.effect_id is not None
        and move.after.duration_seconds is not None
    }
    if seconds:
        await catalogue.note_processing_times(tx, seconds)
