"""Heartbeats: a lease is extended, progress rides along, and the answer says whether to stop."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from comfyrelay.domain.lifecycle import stop_word
from comfyrelay.errors import LeaseLost, PoolUnavailable
from comfyrelay.services.coalesce import Coalescer
from comfyrelay.services.databases import Databases
from comfyrelay.services.steps import Step
from comfyrelay.store import dispatches, jobs
from comfyrelay.store.database import Tx
from comfyrelay.store.dispatches import Beat, BeatAnswer

log = structlog.get_logger(__name__)

LONGEST_LINE = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    dispatch_id: int
    lease_token: str
    progress: Mapping[str, Any] | None = None
    logs: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatAnswer:
    lease_expires_at: datetime
    stop: str | None


class Heartbeats:
    def __init__(self, databases: Databases, *, ttl: timedelta) -> None:
        self._databases = databases
        self._ttl = ttl
        self._coalescer: Coalescer[Heartbeat, HeartbeatAnswer] = Coalescer(self.beat_many)

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        return await self._coalescer.call(heartbeat)

    async def beat_many(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatAnswer | Exception]:
        """Extend many leases in one statement. Of two heartbeats of one lease, the later one's progress counts."""
        newest = {each.lease_token: each for each in heartbeats}
        beats = [
            Beat(dispatch_id=each.dispatch_id, lease_token=each.lease_token, progress=each.progress)
            for each in newest.values()
        ]

        async def work(tx: Tx) -> list[BeatAnswer]:
            return await dispatches.heartbeat(tx, beats, ttl_seconds=self._ttl.total_seconds())

        held = {
            (each.dispatch_id, each.lease_token): each
            for each in await self._databases.central.run(Step.HEARTBEAT, work)
        }
        await self._keep_logs(heartbeats, held)
        return [_answer(held.get((each.dispatch_id, each.lease_token))) for each in heartbeats]

    async def _keep_logs(self, heartbeats: Sequence[Heartbeat], held: Mapping[tuple[int, str], BeatAnswer]) -> None:
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for each in heartbeats:
            answer = held.get((each.dispatch_id, each.lease_token))
            if answer is not None:
                lines[answer.db_pool].extend(
                    {
                        "job_id": answer.tenant_job_id,
                        "epoch": answer.epoch,
                        "tenant_id": answer.tenant_id,
                        "line": line[:LONGEST_LINE].replace("\x00", ""),
                    }
                    for line in each.logs
                )
        for pool, found in lines.items():
            if found:
                await self._write_logs(pool, found)

    async def _write_logs(self, pool: str, lines: Sequence[Mapping[str, Any]]) -> None:
        try:
            with self._databases.watched(pool):
                await self._databases.pool(pool).run(Step.HEARTBEAT_LOGS, lambda tx: jobs.add_logs(tx, lines))
        except PoolUnavailable:
            # A lease must not be lost for the sake of its log lines.
            log.warning("heartbeat.logs_lost", pool=pool, lines=len(lines))


def _answer(held: BeatAnswer | None) -> HeartbeatAnswer | Exception:
    if held is None:
        return LeaseLost()
    return HeartbeatAnswer(
        lease_expires_at=held.lease_expires_at,
        stop=stop_word(
            cancel_requested_at=held.cancel_requested_at,
            pause_mode=held.pause_mode,
            release_requested_at=held.release_requested_at,
        ),
    )
