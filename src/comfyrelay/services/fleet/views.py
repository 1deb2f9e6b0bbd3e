"""Fleets and workers as an operator looks at them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from comfyrelay.domain.records.fleet import BlockedHash, Fleet, ListedWorker
from comfyrelay.domain.states import Stage, WorkerState
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.store.central import catalogue, dispatches, fleets, worker_list
from comfyrelay.store.database import Tx

LATELY = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetView:
    fleet: Fleet
    workflow_slugs: Sequence[str]
    workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowMetrics:
    """One workflow at the fleet's stage. Another fleet of the stage may have done part of the work."""

    workflow_slug: str
    queued: int
    oldest_age_seconds: float | None
    completed: int
    failed: int
    mean_duration_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetMetrics:
    workers: Mapping[str, int]
    leases: int
    workflows: Sequence[WorkflowMetrics]

    @property
    def queued(self) -> int:
        return sum(each.queued for each in self.workflows)

    @property
    def oldest_age_seconds(self) -> float | None:
        return max(
            (each.oldest_age_seconds for each in self.workflows if each.oldest_age_seconds is not None), default=None
        )

    @property
    def completed(self) -> int:
        return sum(each.completed for each in self.workflows)

    @property
    def failed(self) -> int:
        return sum(each.failed for each in self.workflows)

    @property
    def mean_duration_seconds(self) -> float | None:
        timed = [each for each in self.workflows if each.mean_duration_seconds is not None]
        jobs = sum(each.completed for each in timed)
        return sum((each.mean_duration_seconds or 0.0) * each.completed for each in timed) / jobs if jobs else None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerView:
    worker: ListedWorker
    workflow_slugs: Sequence[str]
    blocks: Sequence[BlockedHash]
    capabilities: Mapping[str, Any]


class FleetViews:
    def __init__(self, databases: Databases, *, worker_stale_seconds: float) -> None:
        self._databases = databases
        self._stale_seconds = worker_stale_seconds

    async def page(self, *, stage: Stage | None = None, cursor: int | None = None, limit: int) -> Listed[FleetView]:
        async with self._databases.central.read() as tx:
            found, after = await fleets.page(tx, stage=stage, after_id=cursor, limit=limit)
            views = await _views(tx, found)
        return Listed(items=views, next_cursor=None if after is None else str(after))

    async def get(self, stage: Stage, slug: str) -> FleetView:
        async with self._databases.central.read() as tx:
            return (await _views(tx, [await _fleet(tx, stage, slug)]))[0]

    async def metrics(self, stage: Stage, slug: str) -> FleetMetrics:
        async with self._databases.central.read() as tx:
            fleet = await _fleet(tx, stage, slug)
            states = await worker_list.count_by_state(tx, fleet.id, stale_seconds=self._stale_seconds)
            return FleetMetrics(
                workers={each.value: states.get(each, 0) for each in WorkerState},
                leases=await fleets.leases_of(tx, fleet.id),
                workflows=await _workflow_metrics(tx, fleet),
            )

    async def workers(
        self,
        *,
        fleet_slug: str | None = None,
        stage: Stage | None = None,
        state: WorkerState | None = None,
        cursor: str | None = None,
        limit: int,
    ) -> Listed[ListedWorker]:
        async with self._databases.central.read() as tx:
            found, after = await worker_list.page(
                tx,
                stale_seconds=self._stale_seconds,
                fleet_slug=fleet_slug,
                stage=stage,
                state=state,
                after_id=cursor,
                limit=limit,
            )
        return Listed(items=found, next_cursor=after)

    async def worker(self, worker_id: str) -> WorkerView:
        async with self._databases.central.read() as tx:
            found = await worker_list.get(tx, worker_id, stale_seconds=self._stale_seconds)
            if found is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            return WorkerView(
                worker=found[0],
                workflow_slugs=await worker_list.assigned_workflows(tx, worker_id),
                blocks=await worker_list.blocks_of(tx, worker_id),
                capabilities=found[1],
            )


async def _fleet(tx: Tx, stage: Stage, slug: str) -> Fleet:
    fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
    if fleet is None:
        raise NotFound(f"There is no {stage} fleet {slug!r}.")
    return fleet


async def _views(tx: Tx, found: Sequence[Fleet]) -> list[FleetView]:
    ids = [each.id for each in found]
    counts = await fleets.worker_counts(tx, ids)
    mapped = await fleets.workflows_of(tx, ids)
    return [
        FleetView(fleet=each, workflow_slugs=list(mapped.get(each.id, {}).values()), workers=counts.get(each.id, 0))
        for each in found
    ]


async def _workflow_metrics(tx: Tx, fleet: Fleet) -> list[WorkflowMetrics]:
    mapped = (await fleets.workflows_of(tx, [fleet.id])).get(fleet.id, {})
    now = await dispatches.now(tx)
    ids = list(mapped)
    queues = await fleets.queues(tx, stage=fleet.stage, workflow_ids=ids)
    done = await fleets.completed_since(tx, now - LATELY, stage=fleet.stage, workflow_ids=ids)
    failed = await fleets.failed_since(tx, now - LATELY, stage=fleet.stage, workflow_ids=ids)
    return [
        WorkflowMetrics(
            workflow_slug=slug,
            queued=queues[id_].queued if id_ in queues else 0,
            oldest_age_seconds=(now - queues[id_].oldest_at).total_seconds() if id_ in queues else None,
            completed=done[id_].jobs if id_ in done else 0,
            failed=failed.get(id_, 0),
            mean_duration_seconds=done[id_].mean_seconds if id_ in done else None,
        )
        for id_, slug in mapped.items()
    ]
