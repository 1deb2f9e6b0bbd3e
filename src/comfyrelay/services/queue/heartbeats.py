"""Extend leases by heartbeats, store progress and logs, and return stop requests."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from comfyrelay.domain.queue.lifecycle import stop_request
from comfyrelay.errors import DatabaseUnavailable, LeaseLost
from comfyrelay.group_commit import GroupCommit
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.central.queue.dispatches import Beat, BeatAnswer
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

LONGEST_LINE = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    dispatch_id: int
    lease_token: str
    progress: Mapping[str, Any] | None = None
    logs: Sequence[str] = ()
    worker_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatResult:
    lease_expires_at: datetime
    stop: str | None


class HeartbeatService:
    def __init__(self, databases: Databases, *, ttl: timedelta) -> None:
        self._databases = databases
        self._ttl = ttl
        self._group: GroupCommit[Heartbeat, HeartbeatResult] = GroupCommit(self.beat_many)

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResult:
        return await self._group.call(heartbeat)

    async def beat_many(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatResult | Exception]:
        """Extend many leases in one statement. The last progress report of a lease counts."""
        newest: dict[tuple[int, str, str | None], Beat] = {}
        for heartbeat in heartbeats:
            key = (heartbeat.dispatch_id, heartbeat.lease_token, heartbeat.worker_id)
            # A heartbeat without progress does not overwrite an earlier report.
            if heartbeat.progress is not None or key not in newest:
                newest[key] = Beat(
                    dispatch_id=heartbeat.dispatch_id,
                    lease_token=heartbeat.lease_token,
                    worker_id=heartbeat.worker_id,
                    progress=heartbeat.progress,
                )

        async def work(tx: Tx) -> list[BeatAnswer]:
            return await dispatches.heartbeat(tx, list(newest.values()), ttl_seconds=self._ttl.total_seconds())

        extended = {
            (each.dispatch_id, each.lease_token): each
            for each in await self._databases.central.run(TransactionStep.HEARTBEAT, work)
        }
        held = [
            _held(heartbeat, extended.get((heartbeat.dispatch_id, heartbeat.lease_token))) for heartbeat in heartbeats
        ]
        await self._store_logs(heartbeats, held)
        return [_answer(each) for each in held]

    async def _store_logs(self, heartbeats: Sequence[Heartbeat], held: Sequence[BeatAnswer | None]) -> None:
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for heartbeat, answer in zip(heartbeats, held, strict=True):
            if answer is not None:
                lines[answer.shard].extend(
                    {
                        "job_id": answer.tenant_job_id,
                        "epoch": answer.epoch,
                        "tenant_id": answer.tenant_id,
                        "line": line[:LONGEST_LINE],
                    }
                    for line in heartbeat.logs
                )
        for shard, found in lines.items():
            if found:
                await self._write_logs(shard, found)

    async def _write_logs(self, shard: str, lines: Sequence[Mapping[str, Any]]) -> None:
        try:
            with self._databases.watched(shard):
                await self._databases.shard(shard).run(
                    TransactionStep.HEARTBEAT_LOGS, lambda tx: jobs.add_logs(tx, lines)
                )
        except DatabaseUnavailable:
            # Losing log lines is better than losing the lease.
            log.warning("heartbeat.logs_lost", shard=shard, lines=len(lines))


def _held(heartbeat: Heartbeat, extended: BeatAnswer | None) -> BeatAnswer | None:
    """The extended lease, unless another worker holds it."""
    if extended is None or heartbeat.worker_id not in {None, extended.worker_id}:
        return None
    return extended


def _answer(held: BeatAnswer | None) -> HeartbeatResult | Exception:
    if held is None:
        return LeaseLost()
    return HeartbeatResult(
        lease_expires_at=held.lease_expires_at,
        stop=stop_request(
            cancel_requested_at=held.cancel_requested_at,
            pause_mode=held.pause_mode,
            release_requested_at=held.release_requested_at,
        ),
    )
