"""Live slots: each GPU with its state and current job.

Reports come with heartbeats and polls and are kept in memory; they are written to the database in batches for other
processes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.slots import SlotLease, SlotState, slots_of
from comfyrelay.domain.queue.states import RegistrationSource, WorkerState
from comfyrelay.domain.records.jobs import JobRecord
from comfyrelay.errors import DatabaseUnavailable
from comfyrelay.protocol.user import SlotJob
from comfyrelay.services.databases import Databases
from comfyrelay.services.paging import Listed
from comfyrelay.services.transactions import TransactionStep
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.central.workers import slots, workers
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import jobs

COUNT_SECONDS = 60.0
MAX_WARM = 20_000
DeviceReports = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotView:
    slot: SlotState
    job: SlotJob | None


class SlotViews:
    def __init__(
        self,
        databases: Databases,
        *,
        worker_stale_seconds: float,
        comfyui_unreachable: Callable[[str], Sequence[str]] = lambda _stage: (),
    ) -> None:
        """`comfyui_unreachable` returns why no server of this process's workers is usable at a stage:

        such a worker does not poll.
        """
        self._comfyui_unreachable = comfyui_unreachable
        self._databases = databases
        self._stale_seconds = worker_stale_seconds
        # by worker: reports not written yet
        self._told: dict[str, DeviceReports] = {}
        # by worker: changed warm workflows
        self._warm: dict[str, Sequence[str]] = {}
        self._written_warm: dict[str, Sequence[str]] = {}
        # by batch: number of items and when counted; there may be thousands
        self._sizes: dict[str, tuple[int, float]] = {}

    def note(self, worker_id: str, devices: DeviceReports) -> None:
        """Record a worker's GPUs."""
        self._told[worker_id] = devices

    def note_warm(self, worker_id: str, hashes: Sequence[str]) -> None:
        """Record a worker's warm workflows."""
        if self._written_warm.get(worker_id) != hashes:
            self._warm[worker_id] = hashes

    async def write_noted(self) -> Set[str]:
        """Write pending reports. Returns their workers."""
        told, self._told = self._told, {}
        if told:
            await self._databases.central.run(TransactionStep.WORKER, lambda tx: workers.record_devices(tx, told))
        warm, self._warm = self._warm, {}
        if warm:
            await self._databases.central.run(TransactionStep.WORKER, lambda tx: workers.record_warm(tx, warm))
            self._written_warm = {**self._written_warm, **warm} if len(self._written_warm) < MAX_WARM else warm
        return told.keys()

    async def page(self, *, cursor: str | None = None, limit: int) -> Listed[SlotView]:
        """The slots of a page of workers."""
        async with self._databases.central.read() as tx:
            found, after = await slots.page(tx, stale_seconds=self._stale_seconds, after_id=cursor, limit=limit)
            held, now = await slots.held_by(tx, [each.worker_id for each in found])
            usual = {id_: await dispatches.mean_duration(tx, [id_]) for id_ in {job.workflow_id for job in held}}
        theirs: defaultdict[str, list[SlotLease]] = defaultdict(list)
        for each in held:
            theirs[each.worker_id].append(each)
        placed = [
            slot
            for worker in found
            for slot in slots_of(
                worker_id=worker.worker_id,
                name=worker.display_name or worker.worker_id,
                state=WorkerState(worker.state),
                max_concurrency=worker.max_concurrency,
                devices=self._told.get(worker.worker_id, worker.devices),
                comfyui=worker.comfyui,
                held=theirs[worker.worker_id],
            )
        ]
        away = {each.worker_id: list(self._comfyui_unreachable(each.stage)) for each in found if _is_here(each)}
        placed = [_with_reason(each, away.get(each.worker_id)) for each in placed]
        known, totals = await self._jobs([each.held for each in placed if each.held is not None])
        views = [
            SlotView(slot=each, job=_on_slot(each.held, known, totals, usual, now) if each.held is not None else None)
            for each in placed
        ]
        return Listed(items=views, next_cursor=after)

    async def _jobs(self, held: Sequence[SlotLease]) -> tuple[dict[str, JobRecord], dict[str, int]]:
        """Jobs by id, and batch sizes; unreachable shards are skipped."""
        found: dict[str, JobRecord] = {}
        totals: dict[str, int] = {}
        for shard in {job.shard for job in held}:
            try:
                with self._databases.watched(shard):
                    async with self._databases.shard(shard).read() as tx:
                        ids = [job.job_id for job in held if job.shard == shard]
                        found |= {job.id: job for job in await jobs.by_ids(tx, ids)}
                        batches = {job.batch_id for job in found.values() if job.id in ids and job.batch_id}
                        totals |= await self._sizes_of(tx, batches)
            except DatabaseUnavailable:
                continue
        return found, totals

    async def _sizes_of(self, tx: Tx, batches: Set[str]) -> dict[str, int]:
        now = asyncio.get_running_loop().time()
        self._sizes = {id_: each for id_, each in self._sizes.items() if now - each[1] < COUNT_SECONDS}
        counted = await jobs.batch_sizes(tx, batches - self._sizes.keys())
        self._sizes |= {id_: (size, now) for id_, size in counted.items()}
        return {id_: self._sizes[id_][0] for id_ in batches & self._sizes.keys()}


def _is_here(worker: slots.SlotWorker) -> bool:
    return worker.registration_source == RegistrationSource.DESK


def _with_reason(slot: SlotState, away: Sequence[str] | None) -> SlotState:
    return replace(slot, away=" ".join(away)) if away and slot.away is None else slot


def _on_slot(
    held: SlotLease,
    known: Mapping[str, JobRecord],
    totals: Mapping[str, int],
    usual: Mapping[int, float | None],
    now: datetime,
) -> SlotJob:
    job = known.get(held.job_id)
    batch_id = job.batch_id if job is not None else None
    told, takes = held.progress, usual.get(held.workflow_id)
    so_far = max((now - told.began_at).total_seconds(), 0.0) if told.began_at is not None else 0.0
    return SlotJob(
        id=held.job_id,
        batch_id=batch_id,
        label=job.label if job is not None else None,
        item_no=job.item_no if job is not None else 0,
        total=totals.get(batch_id or "", 1),
        node=told.node_id,
        node_title=told.node,
        step=told.step or None,
        steps=told.steps or None,
        progress=told.value,
        started_at=told.began_at,
        expected_seconds=max(takes - so_far, 0.0) if takes is not None else None,
    )
