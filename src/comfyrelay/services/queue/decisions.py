"""Writing what was decided about dispatches: the moves, the ends of leases, the audit, the blocks and the entries."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from comfyrelay.domain.failover import (
    BLOCKED_EVENT,
    UNBLOCKED_EVENT,
    Block,
    FailoverPolicy,
    is_blocked,
    record_failure,
)
from comfyrelay.domain.lifecycle import Move
from comfyrelay.domain.records.fleet import AuditEntry
from comfyrelay.domain.states import Outcome
from comfyrelay.domain.updates import JobUpdate, OutputFile, update_of
from comfyrelay.errors import Fault
from comfyrelay.store import outbox
from comfyrelay.store.central import audit, blocks, catalogue, dispatches, leases
from comfyrelay.store.database import Tx
from comfyrelay.store.outbox import OutboxEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What a worker details beside its verdict, for the job's history."""

    provider_job_id: str | None = None
    output: OutputFile | None = None
    seed: int | None = None
    began_at: datetime | None = None
    about: dict[str, Any] | None = None


NO_DETAILS = Details()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A move, the verb that brought it about, and what was details beside it."""

    move: Move
    by: str
    details: Details = NO_DETAILS


async def write(
    tx: Tx, decided: Sequence[Decision], *, now: datetime, policy: FailoverPolicy, has_blocks: bool = True
) -> list[OutboxEntry]:
    """Write the moves of locked dispatches with all that follows from them; the entries are to be delivered next.

    Without `has_blocks`, none of their workers is known to have a failure to its name, so there is none to clear."""
    if not decided:
        return []
    ended = [each for each in decided if each.move.ended is not None]
    await dispatches.write(tx, [each.move for each in decided])
    if ended:
        await leases.end(tx, [(each.move, each.by) for each in ended], at=now)
        await audit.record(tx, [_audit_entry(each) for each in ended])
        moves = [each.move for each in ended]
        await _update_blocks(tx, moves, policy=policy, now=now, has_blocks=has_blocks)
        await _note_timing(tx, moves)
    updates: dict[str, list[JobUpdate]] = defaultdict(list)
    for each in decided:
        details = each.details
        updates[each.move.after.db_pool].append(
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
    return await outbox.post(tx, updates)


def _audit_entry(verdict: Decision) -> AuditEntry:
    move = verdict.move
    data: dict[str, Any] = {"status": move.after.status, "epoch": move.before.epoch}
    if move.error is not None:
        data["error"] = move.error
    if move.fault is not None:
        data["fault"] = move.fault
    if move.reason is not None:
        data["reason"] = move.reason
    return AuditEntry(worker_id=move.before.worker_id or "", event=verdict.by, dispatch_id=move.before.id, data=data)


async def _update_blocks(
    tx: Tx, ended: Sequence[Move], *, policy: FailoverPolicy, now: datetime, has_blocks: bool
) -> None:
    """A worker's fault counts against the pair of worker and workflow hash; a success clears it."""
    failed = [m for m in ended if m.ended is Outcome.FAILED and m.fault is Fault.WORKER]
    succeeded = {_pair(m): m for m in ended if m.ended is Outcome.COMPLETED}
    events: list[AuditEntry] = []
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


def block_event(event: str, pair: blocks.Pair, *, until: datetime | None = None) -> AuditEntry:
    data: dict[str, Any] = {"workflow_hash": pair[1]}
    if until is not None:
        data["blocked_until"] = until.isoformat()
    return AuditEntry(worker_id=pair[0], event=event, data=data)


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
