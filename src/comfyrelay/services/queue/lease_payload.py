"""What a worker gets with a lease besides the graph: pre-signed URLs, made again when they grow old."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from comfyrelay.domain.ids import upload_path
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.queue.lifecycle import Dispatch
from comfyrelay.errors import LeaseLost
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.storage.objects import ObjectStore
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.tenant import jobs

T = TypeVar("T")
# Leases that this process remembers having handed over; one that it does not is looked up.
MOST_REMEMBERED = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedUrls:
    """Where to fetch the inputs, and where to put the output, with which headers and of what size at most."""

    output_url: str
    output_headers: Mapping[str, str]
    assets: Mapping[str, str] = field(default_factory=dict)
    input_url: str | None = None
    max_output_bytes: int
    max_output_files: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Handed:
    """A lease as far as its files are concerned."""

    tenant_id: str
    job_id: str
    snapshot: JobPayload
    upload_path: str


class Handover:
    def __init__(
        self,
        databases: Databases,
        objects: ObjectStore,
        *,
        ttl_seconds: float,
        max_output_bytes: int,
        max_output_files: int,
    ) -> None:
        self._databases = databases
        self._objects = objects
        self._ttl_seconds = ttl_seconds
        self._max_output_bytes = max_output_bytes
        self._max_output_files = max_output_files
        self._handed: OrderedDict[str, Handed] = OrderedDict()
        self._signed_at: OrderedDict[str, float] = OrderedDict()

    async def urls(self, job: LeasedDispatch) -> SignedUrls:
        """URLs for a lease that is being handed over."""
        handed = _handed(job.dispatch, job.snapshot, job.lease_token)
        _remember(self._handed, job.lease_token, handed)
        return await self._sign(job.lease_token, handed)

    async def fresh_urls(self, dispatch_id: int, lease_token: str, *, at_once: bool = False) -> SignedUrls | None:
        """New URLs when the old ones have lived half of their time, or are not known here, or are asked for."""
        signed_at = self._signed_at.get(lease_token)
        now = asyncio.get_running_loop().time()
        if not at_once and signed_at is not None and now - signed_at < self._ttl_seconds / 2:
            return None
        return await self._sign(lease_token, await self.of_lease(dispatch_id, lease_token))

    async def of_lease(self, dispatch_id: int, lease_token: str) -> Handed:
        """What was handed over with a lease, here or by another process; `LeaseLost` when there is no such lease."""
        if (handed := self._handed.get(lease_token)) is not None:
            return handed
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, dispatch_id, lease_token)
        if dispatch is None:
            raise LeaseLost
        async with self._databases.shard(dispatch.shard).read() as tx:
            payloads = await jobs.payloads(tx, [dispatch.tenant_job_id])
        if dispatch.tenant_job_id not in payloads:
            raise LeaseLost
        snapshot = JobPayload.from_json(payloads[dispatch.tenant_job_id])
        handed = _handed(dispatch, snapshot, lease_token)
        _remember(self._handed, lease_token, handed)
        return handed

    async def _sign(self, lease_token: str, handed: Handed) -> SignedUrls:
        ttl = self._ttl_seconds
        upload = await self._objects.sign_upload(
            handed.upload_path,
            content_type=handed.snapshot.output_mime_type,
            max_size=self._max_output_bytes,
            ttl_seconds=ttl,
        )
        assets = {
            each.key: await self._objects.sign_download(each.path, ttl_seconds=ttl) for each in handed.snapshot.assets
        }
        primary = handed.snapshot.primary_input
        _remember(self._signed_at, lease_token, asyncio.get_running_loop().time())
        return SignedUrls(
            output_url=upload.url,
            output_headers=upload.headers,
            assets=assets,
            input_url=assets[primary.key] if primary else None,
            max_output_bytes=self._max_output_bytes,
            max_output_files=self._max_output_files,
        )


def _handed(dispatch: Dispatch, snapshot: JobPayload, lease_token: str) -> Handed:
    path = upload_path(
        tenant_id=dispatch.tenant_id,
        job_id=dispatch.tenant_job_id,
        lease_token=lease_token,
        extension=snapshot.output_extension,
    )
    return Handed(tenant_id=dispatch.tenant_id, job_id=dispatch.tenant_job_id, snapshot=snapshot, upload_path=path)


def _remember(kept: OrderedDict[str, T], key: str, value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MOST_REMEMBERED:
        kept.popitem(last=False)
