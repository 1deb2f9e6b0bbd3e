"""Extend leases by heartbeats, store progress and logs, and return stop requests."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from comfyrelay.domain.queue.lifecycle import stop_request
from comfyrelay.errors import DatabaseUnavailable, LeaseLost
from comfyrelay.group_commit import GroupCommit
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.central.queue.dispatches import DispatchHeartbeat, ExtendedLease
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

MAX_LINE_LENGTH = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat(DispatchHeartbeat):
    """A heartbeat with new log lines of the job."""

    logs: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatResult:
    lease_expires_at: datetime
    stop: str | None


class HeartbeatService:
    def __init__(self, databases: Databases, *, ttl_seconds: float) -> None:
        self._databases = databases
        self._ttl_seconds = ttl_seconds
        self._group: GroupCommit[Heartbeat, HeartbeatResult] = GroupCommit(self.beat_many)

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResult:
        return await self._group.call(heartbeat)

    async def beat_many(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatResult | Exception]:
        """Extend many leases in one statement. The last progress report of a lease counts."""
        newest: dict[tuple[int, str, str | None], DispatchHeartbeat] = {}
        for heartbeat in heartbeats:
            key = (heartbeat.dispatch_id, heartbeat.lease_token, heartbeat.worker_id)
            # A heartbeat without progress does not overwrite an earlier report.
            if heartbeat.progress is not None or key not in newest:
                newest[key] = heartbeat

        async def work(tx: Tx) -> list[ExtendedLease]:
            return await dispatches.heartbeat(tx, list(newest.values()), ttl_seconds=self._ttl_seconds)

        extended = {
            (lease.dispatch_id, lease.lease_token): lease
            for lease in await self._databases.central.run(TransactionStep.HEARTBEAT, work)
        }
        held: list[ExtendedLease | None] = []
        for heartbeat in heartbeats:
            lease = extended.get((heartbeat.dispatch_id, heartbeat.lease_token))
            is_holder = lease is not None and heartbeat.worker_id in {None, lease.worker_id}
            held.append(lease if is_holder else None)
        await self._store_logs(heartbeats, held)
        return [LeaseLost() if lease is None else _result(lease) for lease in held]

    async def _store_logs(self, heartbeats: Sequence[Heartbeat], held: Sequence[ExtendedLease | None]) -> None:
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for heartbeat, lease in zip(heartbeats, held, strict=True):
            if lease is not None and heartbeat.logs:
                lines[lease.shard].extend(
                    {
                        "job_id": lease.tenant_job_id,
                        "epoch": lease.epoch,
                        "tenant_id": lease.tenant_id,
                        "line": line[:MAX_LINE_LENGTH],
                    }
                    for line in heartbeat.logs
                )
        for shard, rows in lines.items():
            try:
                with self._databases.watched(shard):
                    await self._databases.shard(shard).run(
                        TransactionStep.HEARTBEAT_LOGS, partial(jobs.add_logs, lines=rows)
                    )
            except DatabaseUnavailable:
                # Losing log lines is better than losing the lease.
                log.warning("heartbeat.logs_lost", shard=shard, lines=len(rows))


def _result(lease: ExtendedLease) -> HeartbeatResult:
    return HeartbeatResult(
        lease_expires_at=lease.lease_expires_at,
        stop=stop_request(
            cancel_requested_at=lease.cancel_requested_at,
            pause_mode=lease.pause_mode,
            release_requested_at=lease.release_requested_at,
        ),
    )
