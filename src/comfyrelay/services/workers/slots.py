"""Live slots: each GPU with its state and current job.

Workers report their slots with heartbeats and polls. Reports are stored in memory, and written to the database in
batches for other processes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.slots import SlotLease, SlotState, slots_of
from comfyrelay.domain.queue.states import RegistrationSource, WorkerState
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol.user import SlotJob
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.paging import ResultPage
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import positions
from comfyrelay.store.central.workers import slots, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs

# The size of a batch is counted again after this time.
COUNT_SECONDS = 60.0
MAX_WARM = 20_000
DeviceReports = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotView:
    slot: SlotState
    job: SlotJob | None


class SlotViews:
    def __init__(self, context: ServiceContext) -> None:
        self._databases = context.databases
        self._offline_seconds = context.settings.worker_offline_seconds
        self._comfyui_unreachable = context.hooks.comfyui_unreachable
        # Reports and changed warm workflows by worker that are not written yet.
        self._devices: dict[str, DeviceReports] = {}
        self._warm: dict[str, Sequence[str]] = {}
        self._written_warm: dict[str, Sequence[str]] = {}
        # Number of items by batch, and when they were counted. There may be thousands of items.
        self._sizes: dict[str, tuple[int, float]] = {}

    def note(self, worker_id: str, devices: DeviceReports) -> None:
        """Record a worker's GPUs."""
        self._devices[worker_id] = devices

    def note_warm(self, worker_id: str, hashes: Sequence[str]) -> None:
        """Record a worker's warm workflows."""
        if self._written_warm.get(worker_id) != hashes:
            self._warm[worker_id] = hashes

    async def write_noted(self) -> Set[str]:
        """Write the pending reports, and return the workers whose devices were written."""
        devices, self._devices = self._devices, {}
        if devices:
            await self._databases.central.run(TransactionStep.WORKER, lambda tx: workers.record_devices(tx, devices))
        warm, self._warm = self._warm, {}
        if warm:
            await self._databases.central.run(TransactionStep.WORKER, lambda tx: workers.record_warm(tx, warm))
            self._written_warm = {**self._written_warm, **warm} if len(self._written_warm) < MAX_WARM else warm
        return devices.keys()

    async def page(self, *, cursor: str | None = None, limit: int) -> ResultPage[SlotView]:
        """Return the slots of a page of workers."""
        async with self._databases.central.read() as tx:
            found, after = await slots.page(tx, offline_seconds=self._offline_seconds, after_id=cursor, limit=limit)
            held, now = await slots.held_by(tx, [worker.worker_id for worker in found])
            usual = await positions.mean_durations(tx, (job.workflow_id for job in held))
        by_worker: defaultdict[str, list[SlotLease]] = defaultdict(list)
        for lease in held:
            by_worker[lease.worker_id].append(lease)
        states = [
            slot
            for worker in found
            for slot in slots_of(
                worker_id=worker.worker_id,
                name=worker.display_name or worker.worker_id,
                state=WorkerState(worker.state),
                max_concurrency=worker.max_concurrency,
                devices=self._devices.get(worker.worker_id, worker.devices),
                comfyui=worker.comfyui,
                held=by_worker[worker.worker_id],
            )
        ]
        # A desk worker without a usable ComfyUI does not poll.
        unreachable = {
            worker.worker_id: " ".join(self._comfyui_unreachable(worker.stage))
            for worker in found
            if worker.registration_source == RegistrationSource.DESK
        }
        states = [
            replace(state, unavailable_reason=reason)
            if state.unavailable_reason is None and (reason := unreachable.get(state.worker_id))
            else state
            for state in states
        ]
        known, totals = await self._jobs([state.held for state in states if state.held is not None])
        views = [
            SlotView(
                slot=state, job=_slot_job(state.held, known, totals, usual, now) if state.held is not None else None
            )
            for state in states
        ]
        return ResultPage(items=views, next_cursor=after)

    async def _jobs(self, held: Sequence[SlotLease]) -> tuple[dict[str, JobRecord], dict[str, int]]:
        """Return jobs and batch sizes by id. Unreachable shards are skipped."""
        found: dict[str, JobRecord] = {}
        totals: dict[str, int] = {}
        for shard in {job.shard for job in held}:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        ids = [job.job_id for job in held if job.shard == shard]
                        found |= {job.id: job for job in await jobs.by_ids(tx, ids)}
                        batches = {job.batch_id for job in found.values() if job.id in ids and job.batch_id}
                        totals |= await self._batch_sizes(tx, batches)
            except DatabaseUnavailable:
                continue
        return found, totals

    async def _batch_sizes(self, tx: Tx, batches: Set[str]) -> dict[str, int]:
        now = asyncio.get_running_loop().time()
        self._sizes = {id_: size for id_, size in self._sizes.items() if now - size[1] < COUNT_SECONDS}
        counted = await jobs.batch_sizes(tx, batches - self._sizes.keys())
        self._sizes |= {id_: (size, now) for id_, size in counted.items()}
        return {id_: self._sizes[id_][0] for id_ in batches & self._sizes.keys()}


def _slot_job(
    held: SlotLease,
    known: Mapping[str, JobRecord],
    totals: Mapping[str, int],
    usual: Mapping[int, float | None],
    now: datetime,
) -> SlotJob:
    job = known.get(held.job_id)
    batch_id = job.batch_id if job is not None else None
    progress, mean_seconds = held.progress, usual.get(held.workflow_id)
    # A worker that reports no progress does not report the start of the run either.
    started_at = progress.began_at or (held.leased_at if progress.is_estimated else None)
    elapsed = max((now - started_at).total_seconds(), 0.0) if started_at is not None else 0.0
    return SlotJob(
        id=held.job_id,
        batch_id=batch_id,
        label=job.label if job is not None else None,
        item_no=job.item_no if job is not None else 0,
        total=totals.get(batch_id or "", 1),
        node=progress.node_id,
        node_title=progress.node,
        step=progress.step or None,
        steps=progress.steps or None,
        progress=progress.value,
        is_estimated=progress.is_estimated or False,
        started_at=started_at,
        expected_seconds=max(mean_seconds - elapsed, 0.0) if mean_seconds is not None else None,
    )
