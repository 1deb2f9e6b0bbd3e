"""Extend leases by heartbeats, store progress and logs, and return stop requests."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog

from comfyrelay.domain.queue import lost_leases
from comfyrelay.domain.queue.dispatch import Dispatch, Transition
from comfyrelay.domain.queue.lifecycle import holds_lease, stop_request
from comfyrelay.errors import DatabaseUnavailable, LeaseLost
from comfyrelay.group_commit import GroupCommit
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.decisions import Decided, Decisions
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches, leases
from comfyrelay.store.central.queue.dispatches import DispatchHeartbeat, ExtendedLease
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs

log = structlog.get_logger(__name__)

T = TypeVar("T")
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
    def __init__(self, databases: Databases, decisions: Decisions, *, ttl_seconds: float) -> None:
        self._databases = databases
        self._decisions = decisions
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

    async def with_lease(
        self, call: Callable[[], Awaitable[T]], dispatch_id: int, lease_token: str, *, worker_id: str
    ) -> T:
        """Make a call about a lease, and repeat the call if the lease was lost because of missed heartbeats and can be
        revived."""
        try:
            return await call()
        except LeaseLost:
            if not await self.revive(dispatch_id, lease_token, worker_id=worker_id):
                raise
            return await call()

    async def revive(self, dispatch_id: int, lease_token: str, *, worker_id: str) -> bool:
        """Give a lease that ended because of missed heartbeats back to its worker, if no other worker has started the
        job since then.

        Returns whether the worker now holds the lease.
        """

        async def work(tx: Tx) -> Decided:
            lease = (await leases.by_token(tx, [lease_token])).get(lease_token)
            if lease is None or (lease.dispatch_id, lease.worker_id) != (dispatch_id, worker_id):
                return Decided()
            if lease.ended_at is not None and lease.ended_by != lost_leases.SILENT:
                return Decided()

            def judge(dispatch: Dispatch, now: datetime) -> Transition | None:
                return lost_leases.revive(
                    dispatch,
                    lease_token=lease_token,
                    epoch=lease.epoch,
                    worker_id=worker_id,
                    leased_at=lease.leased_at,
                    ttl=timedelta(seconds=self._ttl_seconds),
                    now=now,
                )

            decided = await self._decisions.decide_in(tx, [dispatch_id], judge, by="revive")
            if decided.transitions:
                await leases.reopen(tx, lease_token)
            return decided

        decided = await self._databases.central.run(TransactionStep.HEARTBEAT, work)
        await self._decisions.announce(decided)
        if decided.transitions:
            log.info("lease.revived", dispatch_id=dispatch_id, worker_id=worker_id)
        # Another call may have revived the lease.
        return bool(decided.transitions) or any(
            holds_lease(dispatch, lease_token) for dispatch in decided.found.values()
        )

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
