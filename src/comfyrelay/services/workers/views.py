"""Fleets and workers for operators."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from comfyrelay.comfyui.versions import version_note
from comfyrelay.domain.capabilities import CapabilitySummary
from comfyrelay.domain.queue.slots import gpus_of
from comfyrelay.domain.queue.states import RegistrationSource, Stage, WorkerState
from comfyrelay.domain.queue.worker_order import WorkerSort, count_states, page_after, sort_ids
from comfyrelay.domain.records.workers import (
    BlockedHash,
    FleetRecord,
    ListedWorker,
    Registration,
    UnmetHash,
    WorkerBlock,
    WorkerJobRecord,
    WorkerMachine,
)
from comfyrelay.errors import NotFound
from comfyrelay.protocol.admin.fleets import FleetMetrics, WorkflowMetrics
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.paging import ResultPage
from comfyrelay.store.central import audit, catalogue, tenants
from comfyrelay.store.central.workers import fleets, worker_list
from comfyrelay.store.database import Tx

# Workers may report arbitrary text.
MAX_VERSION_LENGTH = 40
# The period covered by a fleet's metrics.
METRICS_PERIOD = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetView:
    fleet: FleetRecord
    workflow_slugs: Sequence[str]
    workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLine:
    """A worker in a list, with its jobs."""

    worker: ListedWorker
    jobs: Sequence[WorkerJobRecord]

    @property
    def gpus(self) -> list[dict[str, Any]]:
        return gpus_of(self.worker.devices, self.worker.comfyui)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedWorkers(ResultPage[WorkerLine]):
    """`counts` is the number of workers by state, regardless of the filter."""

    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerView:
    """A worker with details. `slugs` are the workflow slugs of its recent jobs, by workflow hash."""

    line: WorkerLine
    workflow_slugs: Sequence[str]
    blocks: Sequence[BlockedHash]
    missing_requirements: Sequence[UnmetHash]
    slugs: Mapping[str, str]
    registration: Registration
    machine: WorkerMachine | None
    summary: CapabilitySummary

    @property
    def worker(self) -> ListedWorker:
        return self.line.worker

    @property
    def comfyui_versions(self) -> list[str]:
        servers = self.worker.comfyui if isinstance(self.worker.comfyui, list) else []
        versions = (server.get("version") for server in servers if isinstance(server, dict))
        return list(dict.fromkeys(version[:MAX_VERSION_LENGTH] for version in versions if isinstance(version, str)))

    @property
    def comfyui_note(self) -> str | None:
        return " ".join(filter(None, map(version_note, self.comfyui_versions))) or None


class FleetViews:
    def __init__(self, context: ServiceContext) -> None:
        self._databases = context.databases
        self._offline_seconds = context.settings.worker_offline_seconds

    async def page(self, *, stage: Stage | None = None, cursor: int | None = None, limit: int) -> ResultPage[FleetView]:
        async with self._databases.central.read() as tx:
            found, after = await fleets.page(tx, stage=stage, after_id=cursor, limit=limit)
            views = await _views(tx, found)
        return ResultPage(items=views, next_cursor=None if after is None else str(after))

    async def get(self, stage: Stage, slug: str) -> FleetView:
        async with self._databases.central.read() as tx:
            return (await _views(tx, [await _fleet(tx, stage, slug)]))[0]

    async def metrics(self, stage: Stage, slug: str) -> FleetMetrics:
        async with self._databases.central.read() as tx:
            fleet = await _fleet(tx, stage, slug)
            states = await worker_list.count_by_state(tx, fleet.id, offline_seconds=self._offline_seconds)
            leases = await fleets.leases_of(tx, fleet.id)
            workflows = await _workflow_metrics(tx, fleet)
        ages = [workflow.oldest_age_seconds for workflow in workflows if workflow.oldest_age_seconds is not None]
        return FleetMetrics(
            workers={state: states.get(state, 0) for state in WorkerState},
            leases=leases,
            workflows=workflows,
            queued=sum(workflow.queued for workflow in workflows),
            oldest_age_seconds=max(ages, default=None),
            completed=sum(workflow.completed for workflow in workflows),
            failed=sum(workflow.failed for workflow in workflows),
            mean_duration_seconds=_mean_duration(workflows),
        )

    async def workers(
        self,
        *,
        fleet_slug: str | None = None,
        stage: Stage | None = None,
        state: WorkerState | None = None,
        search: str | None = None,
        sort: WorkerSort = WorkerSort.NAME,
        is_descending: bool = False,
        cursor: str | None = None,
        limit: int,
    ) -> ListedWorkers:
        """Count and sort all matching workers, and read the details of one page."""
        offline_seconds = self._offline_seconds
        async with self._databases.central.read() as tx:
            found = await worker_list.places(
                tx, offline_seconds=offline_seconds, sort=sort, fleet_slug=fleet_slug, stage=stage, search=search
            )
            wanted = [place for place in found if state in (None, place.state)]
            ids, next_cursor = page_after(sort_ids(wanted, sort, is_descending=is_descending), cursor, limit=limit)
            shown = await worker_list.listed(tx, ids, offline_seconds=offline_seconds)
            jobs = await worker_list.jobs_of(tx, [worker.worker_id for worker in shown if worker.leases])
        lines = [WorkerLine(worker=worker, jobs=jobs.get(worker.worker_id, ())) for worker in shown]
        return ListedWorkers(items=lines, next_cursor=next_cursor, counts=count_states(found))

    async def blocks(self) -> list[WorkerBlock]:
        """Return all current blocks."""
        async with self._databases.central.read() as tx:
            found = await worker_list.current_blocks(tx)
            slugs = {worker_id: await worker_list.recent_hashes(tx, worker_id) for worker_id, _ in found}
        return [
            WorkerBlock(worker_id=worker_id, workflow_slug=slugs[worker_id].get(block.workflow_hash), **asdict(block))
            for worker_id, block in found
        ]

    async def worker(self, worker_id: str) -> WorkerView:
        async with self._databases.central.read() as tx:
            found = await worker_list.get(tx, worker_id, offline_seconds=self._offline_seconds)
            if found is None:
                raise NotFound(f"There is no worker {worker_id!r}.")
            jobs = await worker_list.jobs_of(tx, [worker_id])
            return WorkerView(
                line=WorkerLine(worker=found[0], jobs=jobs.get(worker_id, ())),
                workflow_slugs=await worker_list.assigned_workflows(tx, worker_id),
                blocks=await worker_list.blocks_of(tx, worker_id),
                missing_requirements=await worker_list.unmet_hashes(tx, worker_id),
                slugs=await worker_list.recent_hashes(tx, worker_id),
                registration=await _registration(tx, found[0]),
                machine=await worker_list.machine_of(tx, worker_id),
                summary=found[1],
            )


async def _registration(tx: Tx, worker: ListedWorker) -> Registration:
    if worker.registration_source == RegistrationSource.DESK:
        return Registration(proof="desk")
    proof = "identity_document" if await worker_list.has_identity(tx, worker.worker_id) else "secret"
    decided = await audit.newest_decision(tx, worker.worker_id)
    if decided is None:
        return Registration(proof=proof)
    by = await tenants.user(tx, str((decided.data or {}).get("by")))
    return Registration(
        proof=proof,
        decision=decided.event,
        decided_by=by.email if by is not None else None,
        decided_at=decided.created_at,
    )


async def _fleet(tx: Tx, stage: Stage, slug: str) -> FleetRecord:
    fleet = await catalogue.fleet(tx, stage=stage, slug=slug)
    if fleet is None:
        raise NotFound(f"There is no {stage} fleet {slug!r}.")
    return fleet


async def _views(tx: Tx, found: Sequence[FleetRecord]) -> list[FleetView]:
    ids = [fleet.id for fleet in found]
    counts = await fleets.worker_counts(tx, ids)
    mapped = await fleets.workflows_of(tx, ids)
    return [
        FleetView(fleet=fleet, workflow_slugs=list(mapped.get(fleet.id, {}).values()), workers=counts.get(fleet.id, 0))
        for fleet in found
    ]


def _mean_duration(workflows: Sequence[WorkflowMetrics]) -> float | None:
    timed = [workflow for workflow in workflows if workflow.mean_duration_seconds is not None]
    jobs = sum(workflow.completed for workflow in timed)
    total_seconds = sum((workflow.mean_duration_seconds or 0.0) * workflow.completed for workflow in timed)
    return total_seconds / jobs if jobs else None


async def _workflow_metrics(tx: Tx, fleet: FleetRecord) -> list[WorkflowMetrics]:
    mapped = (await fleets.workflows_of(tx, [fleet.id])).get(fleet.id, {})
    now = await tx.now()
    ids = list(mapped)
    queues = await fleets.queues(tx, stage=fleet.stage, workflow_ids=ids)
    done = await fleets.completed_since(tx, now - METRICS_PERIOD, stage=fleet.stage, workflow_ids=ids)
    failed = await fleets.failed_since(tx, now - METRICS_PERIOD, stage=fleet.stage, workflow_ids=ids)
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
