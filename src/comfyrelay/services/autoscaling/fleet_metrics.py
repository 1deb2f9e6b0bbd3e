"""Eight metrics per fleet for alarms and dashboards."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from comfyrelay.domain.queue.states import DispatchStatus, Outcome
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.services.databases import Databases
from comfyrelay.services.timed_cache import TimedCache
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.autoscaling import cursors, figures, members
from comfyrelay.store.central.autoscaling.figures import EndedLease, WorkerLoad
from comfyrelay.store.database import Tx

CACHE_SECONDS = 5.0
SEEN_SECONDS = 300.0
COUNT_WINDOW = timedelta(minutes=5)
DURATION_WINDOW = timedelta(minutes=10)
# Reasons that a worker reports when EC2 reclaims its machine.
SPOT_REASONS = frozenset({"spot_interruption", "spot_rebalance"})


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetMetrics:
    """The metrics of one fleet. `job_processing_p50` is `None` if no job completed in the last ten minutes."""

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
        """The queue depth per worker. Without workers, it is the whole queue, as with one worker."""
        return self.queue_depth / max(1, self.active_workers)


class FleetMetricsService:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._cache = TimedCache(self._read_if_up)

    async def recent(self) -> Sequence[FleetMetrics]:
        """Return metrics that are at most a few seconds old, or none while the central database is unreachable."""
        return await self._cache.get(seconds=CACHE_SECONDS)

    async def _read_if_up(self) -> Sequence[FleetMetrics]:
        try:
            return await self.read()
        except DatabaseUnavailable:
            return ()

    async def claim_minute(self, name: str) -> bool:
        """Claim the current minute under this name. Only one process succeeds."""

        async def work(tx: Tx) -> bool:
            minute = int((await tx.now()).timestamp() // 60)
            if await cursors.lock(tx, name) >= minute:
                return False
            await cursors.move(tx, name, minute)
            return True

        return await self._databases.central.run(TransactionStep.MINUTE, work)

    async def read(self) -> list[FleetMetrics]:
        """Read the metrics of every fleet in one transaction."""
        async with self._databases.central.read() as tx:
            now = await tx.now()
            fleets = await figures.fleets_with_workflows(tx)
            queued = await figures.count_active_jobs(tx)
            workers = await figures.online_workers(tx, [fleet.id for fleet in fleets], seconds=SEEN_SECONDS)
            ended = await figures.ended_since(tx, now - DURATION_WINDOW)
            fleet_members = await members.of_workers(tx, {lease.worker_id for lease in ended})
        leases = defaultdict(list)
        for lease in ended:
            if lease.worker_id in fleet_members:
                leases[fleet_members[lease.worker_id].fleet_id].append(lease)
        return [
            FleetMetrics(
                fleet=fleet.slug,
                stage=fleet.stage,
                queue_depth=sum(queued.get((fleet.stage, workflow_id), 0) for workflow_id in fleet.workflow_ids),
                **_worker_metrics([worker for worker in workers if worker.fleet_id == fleet.id]),
                **_lease_metrics(leases[fleet.id], now=now),
            )
            for fleet in fleets
        ]


def _worker_metrics(workers: Sequence[WorkerLoad]) -> dict[str, int]:
    free = sum(max(0, worker.max_concurrency - worker.leases) for worker in workers if not worker.is_draining)
    return {"active_workers": len(workers), "available_capacity": free}


def _lease_metrics(ended: Sequence[EndedLease], *, now: datetime) -> dict[str, Any]:
    """Return the metrics of ended leases. A failed job counts once, when it is not retried."""
    recent = [lease for lease in ended if lease.ended_at >= now - COUNT_WINDOW]
    failed = sum(lease.status_after == DispatchStatus.FAILED for lease in recent)
    completed = sum(lease.status_after == DispatchStatus.COMPLETED for lease in recent)
    durations = [
        lease.duration_seconds
        for lease in ended
        if lease.outcome == Outcome.COMPLETED and lease.duration_seconds is not None
    ]
    return {
        "job_processing_p50": median(durations) if durations else None,
        "error_rate": failed / (failed + completed) if failed else 0.0,
        "lease_expired_count": sum(lease.outcome == Outcome.EXPIRED for lease in recent),
        "spot_interruption_count": sum(
            lease.outcome == Outcome.REQUEUED and lease.reason in SPOT_REASONS for lease in recent
        ),
    }
