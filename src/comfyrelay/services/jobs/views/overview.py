"""Summary of a tenant's queue, and details of one job."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.properties import Property, Role
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.protocol.desk import InputValue
from comfyrelay.services.context import ServiceContext
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.control import require_job
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.store.central import catalogue
from comfyrelay.store.central.queue import pauses
from comfyrelay.store.tenant import jobs, overview
from comfyrelay.store.tenant.job_list import StatusFilter
from comfyrelay.store.tenant.library import gallery, media
from comfyrelay.store.tenant.overview import LeasedItem

# Job statuses by the queue view's own statuses.
JOB_STATUS: Mapping[str, JobStatus] = {
    UnitStatus.RUNNING: JobStatus.PROCESSING,
    UnitStatus.WAITING: JobStatus.QUEUED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSummary:
    """A tenant's queue. `waiting` is the beginning of the queue, in run order.

    `fetched` are jobs that a worker has leased to run next. They count as waiting. If `paused_at` is set, the queue has
    been paused since then and holds all waiting jobs.
    """

    counts: Mapping[str, int]
    running: Sequence[Unit]
    waiting: Sequence[Unit]
    fetched: Sequence[LeasedItem]
    paused_at: datetime | None


class QueueRows(NamedTuple):
    """Leased jobs, the beginning of the waiting queue, and the time since which the queue has been paused."""

    leased: Sequence[LeasedItem]
    waiting: Sequence[Unit]
    paused_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDetails:
    workflow_slug: str
    workflow_name: str
    inputs: Sequence[InputValue]
    error_detail: str | None
    attempts: Sequence[Attempt]
    # Reported by the worker, by the number of the output, in order. For a script, it contains the command and all saved
    # files.
    outputs_metadata: Mapping[int, Mapping[str, Any] | None]

    @property
    def output_metadata(self) -> Mapping[str, Any] | None:
        return next(iter(self.outputs_metadata.values()), None)


def summarize_queue(counts: Mapping[str, int], rows: QueueRows) -> QueueSummary:
    fetched = [item for item in rows.leased if item.is_prefetched]
    running = [item for item in rows.leased if not item.is_prefetched]
    known: dict[str, int] = {status: counts.get(status, 0) for status in JobStatus}
    # The minimum is needed because the two databases are not read at the same moment.
    moved = min(len(fetched), known[JobStatus.PROCESSING])
    known[JobStatus.PROCESSING] -= moved
    known[JobStatus.QUEUED] += moved
    return QueueSummary(
        counts=known,
        # Several jobs of a batch may run at the same time.
        running=list(dict.fromkeys(item.unit for item in running)),
        waiting=list(dict.fromkeys([*(item.unit for item in fetched), *rows.waiting])),
        fetched=fetched,
        paused_at=rows.paused_at,
    )


async def status_filter(databases: Databases, tenant_id: str, status: JobStatus | UnitStatus) -> StatusFilter:
    """Build a filter for a status of jobs or of the queue view, in which prefetched jobs count as waiting."""
    wanted = JOB_STATUS.get(status, status)
    if wanted not in JOB_STATUS.values():
        return StatusFilter(wanted)
    async with databases.central.read() as tx:
        leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
    return StatusFilter(wanted, [item.job_id for item in leased if item.is_prefetched])


class QueueOverview:
    def __init__(self, context: ServiceContext) -> None:
        self._databases = context.databases
        self._objects = context.objects
        self._ttl_seconds = context.settings.presigned_ttl_seconds

    async def summary(self, tenant_id: str, *, limit: int) -> QueueSummary:
        counts, rows = await asyncio.gather(self.counts(tenant_id), self.rows_of([tenant_id], limit=limit))
        return summarize_queue(counts, rows[tenant_id])

    async def counts(self, tenant_id: str) -> dict[str, int]:
        shard = await self._databases.shard_name_of(tenant_id)
        return (await self.counts_of(shard, [tenant_id]))[tenant_id]

    async def counts_of(self, shard: str, tenant_ids: Collection[str]) -> dict[str, dict[str, int]]:
        """Count the jobs of several tenants of one shard by status."""
        async with self._databases.shard(shard).read() as tx:
            return await overview.count_by_status(tx, tenant_ids)

    async def rows_of(self, tenant_ids: Collection[str], *, limit: int) -> dict[str, QueueRows]:
        """Return the queue of each tenant, with at most `limit` waiting units."""
        async with self._databases.central.read() as tx:
            leased = await overview.leased(tx, tenant_ids)
            waiting = await overview.waiting(tx, tenant_ids, limit=limit)
            paused = await pauses.paused_at(tx, tenant_ids)
        return {id_: QueueRows(leased[id_], waiting[id_], paused.get(id_)) for id_ in tenant_ids}

    async def job_details(self, tenant_id: str, job_id: str) -> JobDetails:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            job = await require_job(tx, tenant_id, job_id)
            payload = JobPayload.from_json((await jobs.payloads(tx, [job_id]))[job_id])
            attempts = await jobs.attempts_of(tx, [job_id])
            outputs = (await gallery.of_jobs(tx, tenant_id, [job_id])).get(job_id, {})
            metadata = await media.metadata_of(tx, tenant_id, outputs)
            own = await media.ids_at(tx, tenant_id, [asset.path for asset in payload.assets])
        async with self._databases.central.read() as tx:
            workflow = (await catalogue.workflows_by_id(tx, [job.workflow_id])).get(job.workflow_id)
        properties = workflow.parsed_properties if workflow else []
        return JobDetails(
            workflow_slug=workflow.slug if workflow else "",
            workflow_name=workflow.name if workflow else "",
            inputs=await self._inputs(payload, properties, own),
            error_detail=job.error_detail,
            # The job's own seed is certain, whereas a worker may find several seeds in the graph.
            attempts=attempts
            if payload.seed is None
            else [replace(attempt, seed=payload.seed) for attempt in attempts],
            outputs_metadata={number: metadata.get(id_) for id_, number in outputs.items()},
        )

    async def _inputs(
        self, payload: JobPayload, properties: Sequence[Property], own: Mapping[str, str]
    ) -> list[InputValue]:
        """Return the inputs in the order of the workflow's properties. Removed properties appear as placeholders."""
        by_key = {property_.key: property_ for property_ in properties}
        found = [
            InputValue(
                key=asset.key,
                label=by_key[asset.key].display_name if asset.key in by_key else asset.key,
                role=Role.INPUT,
                type=asset.type,
                value=asset.name,
                is_default=False,
                file_id=own.get(asset.path),
                url=await self._objects.sign_download(
                    asset.path,
                    ttl_seconds=self._ttl_seconds,
                    filename=asset.name,
                    content_type=servable_content_type(asset.mime_type),
                ),
            )
            for asset in payload.assets
        ]
        by_placeholder = {property_.placeholder: property_ for property_ in properties}
        for placeholder, value in payload.values.items():
            prop = by_placeholder.get(placeholder)
            if prop is not None and not (prop.user_configurable or prop.is_seed) and prop.default_value is None:
                # A check has added this internal value.
                continue
            found.append(
                InputValue(
                    key=prop.key if prop else placeholder,
                    label=prop.display_name if prop else placeholder,
                    type=prop.type if prop else "",
                    value=value,
                    url=None,
                    is_default=prop is not None and value == prop.default_value,
                    role=prop.role if prop else None,
                )
            )
        order = {property_.key: number for number, property_ in enumerate(properties)}
        return sorted(found, key=lambda value: order.get(value.key, len(order)))
