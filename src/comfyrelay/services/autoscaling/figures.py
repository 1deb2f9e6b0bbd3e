"""Fleet metrics: the eight figures for alarms and dashboards."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from comfyrelay.domain.queue.states import DispatchStatus, Outcome
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import cursors, figures, members
from comfyrelay.store.central.autoscaling.figures import EndedLease, WorkerLoad
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.database import Tx

REMEMBER_SECONDS = 5.0
SEEN_SECONDS = 300.0
LATELY = timedelta(minutes=5)
DURATIONS_OF = timedelta(minutes=10)
# Reasons that a worker reports when EC2 takes its machine.
SPOT_REASONS = frozenset({"spot_interruption", "spot_rebalance"})


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetFigures:
    """Metrics of one fleet. `job_processing_p50` is `None` if no job completed in the last ten minutes."""

    fleet: str
    stage: str
    queue_depth: int = 0
    active_workers: int = 0
    available_capacity: int = 0
    job_processing_p50: float | None = None
    error_rate: float = 0.0
    lease_expired_count: int = 0
    spot_interruption_count: int = 0

    @property
    def backlog_per_instance(self) -> float:
        """Without workers it is the whole backlog: it must not be lower than with one."""
        return self.queue_depth / max(1, self.active_workers)


class FiguresOfFleets:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._asked: tuple[float, asyncio.Future[Sequence[FleetFigures]]] | None = None

    async def recent(self) -> Sequence[FleetFigures]:
        """At most a few seconds old; empty while the central database is unreachable."""
        now = asyncio.get_running_loop().time()
        if self._asked is None or self._asked[0] <= now:
            self._asked = (now + REMEMBER_SECONDS, asyncio.ensure_future(self._read_if_up()))
        return await asyncio.shield(self._asked[1])

    async def _read_if_up(self) -> Sequence[FleetFigures]:
        try:
            return await self.read()
        except DatabaseUnavailable:
            return ()

    async def claim_minute(self, name: str) -> bool:
        """Claim the present minute among all processes under this name: one succeeds."""

        async def work(tx: Tx) -> bool:
            minute = int((await dispatches.now(tx)).timestamp() // 60)
            if await cursors.lock(tx, name) >= minute:
                return False
            await cursors.move(tx, name, minute)
            return True

        return await self._databases.central.run(TransactionStep.MINUTE, work)

    async def read(self) -> list[FleetFigures]:
        """Read the figures of every fleet in one transaction."""
        async with self._databases.central.read() as tx:
            now = await dispatches.now(tx)
            fleets = await figures.every_fleet(tx)
            at_hand = await figures.at_hand(tx)
            workers = await figures.seen_workers(tx, [each.id for each in fleets], seconds=SEEN_SECONDS)
            ended = await figures.ended_since(tx, now - DURATIONS_OF)
            of = await members.of_workers(tx, {each.worker_id for each in ended})
        return [
            FleetFigures(
                fleet=fleet.slug,
                stage=fleet.stage,
                queue_depth=sum(at_hand.get((fleet.stage, workflow_id), 0) for workflow_id in fleet.workflow_ids),
                **_of_workers([worker for worker in workers if worker.fleet_id == fleet.id]),
                **_of_leases([lease for lease in ended if _fleet_of(lease, of) == fleet.id], now=now),
            )
            for fleet in fleets
        ]


def _fleet_of(lease: EndedLease, of: Mapping[str, members.FleetMember]) -> int | None:
    member = of.get(lease.worker_id)
    return None if member is None else member.fleet_id


def _of_workers(workers: Sequence[WorkerLoad]) -> dict[str, int]:
    free = sum(max(0, worker.max_concurrency - worker.leases) for worker in workers if not worker.is_draining)
    return {"active_workers": len(workers), "available_capacity": free}


def _of_leases(ended: Sequence[EndedLease], *, now: datetime) -> dict[str, Any]:
    """A failed job counts once, when it fails finally; retries are not ends."""
    lately = [each for each in ended if each.ended_at >= now - LATELY]
    failed = sum(each.status_after == DispatchStatus.FAILED for each in lately)
    completed = sum(each.status_after == DispatchStatus.COMPLETED for each in lately)
    durations = [
        each.duration_seconds
        for each in ended
        if each.outcome == Outcome.COMPLETED and each.duration_seconds is not None
    ]
    return {
        "job_processing_p50": median(durations) if durations else None,
        "error_rate": failed / (failed + completed) if failed else 0.0,
        "lease_expired_count": sum(each.outcome == Outcome.EXPIRED for each in lately),
        "spot_interruption_count": sum(
            each.outcome == Outcome.REQUEUED and each.reason in SPOT_REASONS for each in lately
        ),
    }
