"""Summary of a tenant's queue, and details of one job."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.properties import Property, Role
from comfyrelay.domain.queue.settlement import Attempt
from comfyrelay.domain.queue.states import JobStatus, UnitStatus
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.errors import NotFound
from comfyrelay.protocol.desk import InputValue
from comfyrelay.services.databases import Databases
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import catalogue
from comfyrelay.store.tenant import jobs, overview
from comfyrelay.store.tenant.jobs import StatusFilter
from comfyrelay.store.tenant.library import media
from comfyrelay.store.tenant.overview import LeasedItem

# Job statuses of the queue view's own statuses.
JOB_STATUS: Mapping[str, JobStatus] = {
    UnitStatus.RUNNING: JobStatus.PROCESSING,
    UnitStatus.WAITING: JobStatus.QUEUED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSummary:
    """`waiting` is the start of the queue, in run order. `fetched` are jobs that a worker has leased to run next; they
    count as waiting."""

    counts: Mapping[str, int]
    running: Sequence[Unit]
    waiting: Sequence[Unit]
    fetched: Sequence[LeasedItem]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDetails:
    workflow_slug: str
    workflow_name: str
    inputs: Sequence[InputValue]
    error_detail: str | None
    attempts: Sequence[Attempt]
    # reported by the worker; for a script, its command and all saved files
    output_metadata: Mapping[str, Any] | None


def summarize_queue(counts: Mapping[str, int], leased: Sequence[LeasedItem], waiting: Sequence[Unit]) -> QueueSummary:
    fetched = [each for each in leased if each.is_prefetched]
    running = [each for each in leased if not each.is_prefetched]
    known: dict[str, int] = {each: counts.get(each, 0) for each in JobStatus}
    # the two databases are not read at the same moment
    moved = min(len(fetched), known[JobStatus.PROCESSING])
    known[JobStatus.PROCESSING] -= moved
    known[JobStatus.QUEUED] += moved
    return QueueSummary(
        counts=known,
        # several jobs of a batch may run at the same time
        running=list(dict.fromkeys(each.unit for each in running)),
        waiting=list(dict.fromkeys([*(each.unit for each in fetched), *waiting])),
        fetched=fetched,
    )


async def status_filter(databases: Databases, tenant_id: str, status: JobStatus | UnitStatus) -> StatusFilter:
    """Filter for a status of jobs or of the queue view."""
    if status not in JOB_STATUS:
        return StatusFilter(status)
    async with databases.central.read() as tx:
        leased = (await overview.leased(tx, [tenant_id]))[tenant_id]
    return StatusFilter(JOB_STATUS[status], [each.job_id for each in leased if each.is_prefetched])


class QueueOverview:
    def __init__(self, databases: Databases, objects: ObjectStore, *, ttl_seconds: float) -> None:
        self._databases = databases
        self._objects = objects
        self._ttl_seconds = ttl_seconds

    async def summary(self, tenant_id: str, *, limit: int) -> QueueSummary:
        counts, leased_and_waiting = await asyncio.gather(
            self.counts(tenant_id), self.leased_and_waiting([tenant_id], limit=limit)
        )
        return summarize_queue(counts, *leased_and_waiting[tenant_id])

    async def counts(self, tenant_id: str) -> dict[str, int]:
        shard = await self._databases.shard_name_of(tenant_id)
        return (await self.counts_of(shard, [tenant_id]))[tenant_id]

    async def counts_of(self, shard: str, tenant_ids: Collection[str]) -> dict[str, dict[str, int]]:
        """Counts for several tenants of one shard."""
        async with self._databases.shard(shard).read() as tx:
            return await overview.count_by_status(tx, tenant_ids)

    async def leased_and_waiting(
        self, tenant_ids: Collection[str], *, limit: int
    ) -> dict[str, tuple[Sequence[LeasedItem], Sequence[Unit]]]:
        """Leased jobs and the start of the waiting queue, by tenant."""
        async with self._databases.central.read() as tx:
            leased = await overview.leased(tx, tenant_ids)
            waiting = await overview.waiting(tx, tenant_ids, limit=limit)
        return {tenant_id_: (leased[tenant_id_], waiting[tenant_id_]) for tenant_id_ in tenant_ids}

    async def job_details(self, tenant_id: str, job_id: str) -> JobDetails:
        async with (await self._databases.shard_of(tenant_id)).read() as tx:
            job = await jobs.get(tx, tenant_id, job_id)
            if job is None:
                raise NotFound(f"There is no job {job_id!r}.")
            payload = JobPayload.from_json((await jobs.payloads(tx, [job_id]))[job_id])
            attempts = await jobs.attempts_of(tx, [job_id])
            output = job.output_file_id
            metadata = await media.metadata_of(tx, tenant_id, output) if output is not None else None
            own = await media.ids_at(tx, tenant_id, [asset.path for asset in payload.assets])
        async with self._databases.central.read() as tx:
            workflow = await catalogue.workflow_ever(tx, job.workflow_id)
        properties = workflow.parsed_properties if workflow else []
        return JobDetails(
            workflow_slug=workflow.slug if workflow else "",
            workflow_name=workflow.name if workflow else "",
            inputs=await self._inputs(payload, properties, own),
            error_detail=job.error_detail,
            # the job's own seed is certain; a worker may find several in the graph
            attempts=attempts
            if payload.seed is None
            else [replace(attempt, seed=payload.seed) for attempt in attempts],
            output_metadata=metadata,
        )

    async def _inputs(
        self, payload: JobPayload, properties: Sequence[Property], own: Mapping[str, str]
    ) -> list[InputValue]:
        """Inputs in the order of the workflow's properties. Properties removed since appear as placeholders."""
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
            if prop is not None and not prop.user_configurable and prop.default_value is None:
                # an internal value added by a check
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
        order = {each.key: number for number, each in enumerate(properties)}
        return sorted(found, key=lambda each: order.get(each.key, len(order)))
