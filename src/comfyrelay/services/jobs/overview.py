"""What a page shows of a queue beside lists of jobs: the queue at a glance, and all that is known of one job."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comfyrelay.domain.payloads import Snapshot
from comfyrelay.domain.properties import Property, Role
from comfyrelay.domain.records.jobs import Unit
from comfyrelay.domain.settlement import Attempt
from comfyrelay.domain.states import JobStatus
from comfyrelay.domain.waiting import is_only_fetched
from comfyrelay.errors import NotFound
from comfyrelay.services.databases import Databases
from comfyrelay.storage.headers import servable_content_type
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central import catalogue
from comfyrelay.store.tenant import jobs, media, overview
from comfyrelay.store.tenant.overview import Leased


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """`waiting` is in the order in which it will run, and only its beginning. What a worker has only fetched, to run
    it next, is `fetched`, and counts as waiting."""

    counts: Mapping[str, int]
    running: Sequence[Unit]
    waiting: Sequence[Unit]
    fetched: Sequence[Leased]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputValue:
    """A value, or a file with a URL that works for a while."""

    key: str
    label: str
    type: str
    value: Any = None
    url: str | None = None
    # nobody changed it: it is what the workflow has
    is_default: bool = False
    role: Role | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AboutJob:
    workflow_slug: str
    workflow_name: str
    inputs: Sequence[InputValue]
    error_detail: str | None
    attempts: Sequence[Attempt]
    # what the worker told of the output: of a script, its command and all that it saved
    output_metadata: Mapping[str, Any] | None


class Overview:
    def __init__(self, databases: Databases, objects: ObjectStore, *, ttl_seconds: float) -> None:
        self._databases = databases
        self._objects = objects
        self._ttl_seconds = ttl_seconds

    async def glance(self, tenant_id: str, *, limit: int) -> Glance:
        counts, (leased, waiting) = await asyncio.gather(self._counts(tenant_id), self._in_line(tenant_id, limit))
        fetched = [each for each in leased if is_only_fetched(is_prefetch=each.is_prefetch, progress=each.progress)]
        running = [each for each in leased if each not in fetched]
        known: dict[str, int] = {each: counts.get(each, 0) for each in JobStatus}
        # the two databases are not asked in the same moment
        moved = min(len(fetched), known[JobStatus.PROCESSING])
        known[JobStatus.PROCESSING] -= moved
        known[JobStatus.QUEUED] += moved
        return Glance(
            counts=known,
            # several items of a batch may run at once
            running=list(dict.fromkeys(each.unit for each in running)),
            waiting=list(dict.fromkeys([*(each.unit for each in fetched), *waiting])),
            fetched=fetched,
        )

    async def _counts(self, tenant_id: str) -> dict[str, int]:
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            return await overview.count_by_status(tx, tenant_id)

    async def _in_line(self, tenant_id: str, limit: int) -> tuple[Sequence[Leased], Sequence[Unit]]:
        async with self._databases.central.read() as tx:
            return await overview.leased(tx, tenant_id), await overview.waiting(tx, tenant_id, limit=limit)

    async def about(self, tenant_id: str, job_id: str) -> AboutJob:
        async with (await self._databases.pool_of(tenant_id)).read() as tx:
            job = await jobs.get(tx, tenant_id, job_id)
            if job is None:
                raise NotFound(f"There is no job {job_id!r}.")
            payload = (await jobs.payloads(tx, [job_id]))[job_id]
            attempts = await jobs.attempts_of(tx, job_id)
            output = job.output_file_id
            metadata = await media.metadata_of(tx, tenant_id, output) if output is not None else None
        async with self._databases.central.read() as tx:
            workflow = await catalogue.workflow_ever(tx, job.workflow_id)
        snapshot = Snapshot.from_json(payload)
        properties = [Property.from_json(each) for each in workflow.properties] if workflow else []
        return AboutJob(
            workflow_slug=workflow.slug if workflow else "",
            workflow_name=workflow.name if workflow else "",
            inputs=await self._inputs(snapshot, properties),
            error_detail=job.error_detail,
            # what the job was given is known for certain; a worker may see several in the graph
            attempts=attempts if snapshot.seed is None else [replace(each, seed=snapshot.seed) for each in attempts],
            output_metadata=metadata,
        )

    async def _inputs(self, snapshot: Snapshot, properties: Sequence[Property]) -> list[InputValue]:
        """In the order of the workflow's properties; those that were removed since then come by their placeholders."""
        by_key = {each.key: each for each in properties}
        found = [
            InputValue(
                key=each.key,
                label=by_key[each.key].words if each.key in by_key else each.key,
                role=Role.INPUT,
                type=each.type,
                value=each.name,
                url=await self._objects.sign_download(
                    each.path,
                    ttl_seconds=self._ttl_seconds,
                    filename=each.name,
                    content_type=servable_content_type(each.mime_type),
                ),
            )
            for each in snapshot.assets
        ]
        by_placeholder = {each.placeholder: each for each in properties}
        for placeholder, value in snapshot.values.items():
            prop = by_placeholder.get(placeholder)
            if prop is not None and not prop.user_configurable and prop.default_value is None:
                # what was added to it here, and means nothing to anybody
                continue
            found.append(
                InputValue(
                    key=prop.key if prop else placeholder,
                    label=prop.words if prop else placeholder,
                    type=prop.type if prop else "",
                    value=value,
                    is_default=prop is not None and value == prop.default_value,
                    role=prop.role if prop else None,
                )
            )
        order = {each.key: number for number, each in enumerate(properties)}
        return sorted(found, key=lambda each: order.get(each.key, len(order)))
