"""Sign the download and upload URLs of a lease, and renew them before they expire."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from comfyrelay.domain.ids import more_upload_path, upload_path
from comfyrelay.domain.outputs import type_of_extension
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.errors import InvalidInput, LeaseLost
from comfyrelay.services.databases import Databases
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.settings import Settings
from comfyrelay.storage.objects import ObjectStore, SignedUpload
from comfyrelay.store.central.queue import dispatches
from comfyrelay.store.tenant import jobs

T = TypeVar("T")
# Number of leases that this process caches. Other leases are looked up.
MAX_CACHED = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedUrls:
    """URLs for the inputs and the output of a lease, with the upload headers and limits."""

    output_url: str
    output_headers: Mapping[str, str]
    assets: Mapping[str, str] = field(default_factory=dict)
    input_url: str | None = None
    max_output_bytes: int
    max_output_files: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasePayload:
    """The job payload of a lease and the path of its upload."""

    tenant_id: str
    job_id: str
    lease_token: str
    payload: JobPayload
    upload_path: str

    def upload_of(self, number: int) -> str:
        """Return the path of an additional upload. Numbers start at 2."""
        return more_upload_path(number, tenant_id=self.tenant_id, job_id=self.job_id, lease_token=self.lease_token)


class LeasePayloads:
    def __init__(self, databases: Databases, objects: ObjectStore, settings: Settings) -> None:
        self._databases = databases
        self._objects = objects
        self._settings = settings
        self._known: OrderedDict[str, LeasePayload] = OrderedDict()
        self._signed_at: OrderedDict[str, float] = OrderedDict()

    async def urls(self, job: LeasedDispatch) -> SignedUrls:
        """Sign URLs for a new lease."""
        lease = LeasePayload(
            tenant_id=job.dispatch.tenant_id,
            job_id=job.dispatch.tenant_job_id,
            lease_token=job.lease_token,
            payload=job.payload,
            upload_path=job.output_path,
        )
        _cache(self._known, job.lease_token, lease)
        return await self._sign(job.lease_token, lease)

    async def fresh_urls(self, dispatch_id: int, lease_token: str, *, at_once: bool = False) -> SignedUrls | None:
        """Sign new URLs if half of their lifetime is over, if another process signed them, or with `at_once`."""
        signed_at = self._signed_at.get(lease_token)
        now = asyncio.get_running_loop().time()
        if not at_once and signed_at is not None and now - signed_at < self._settings.lease_url_ttl_seconds / 2:
            return None
        return await self._sign(lease_token, await self.of_lease(dispatch_id, lease_token))

    def known_job(self, lease_token: str) -> str | None:
        """Return the job of a lease that this process has seen."""
        lease = self._known.get(lease_token)
        return None if lease is None else lease.job_id

    async def of_lease(self, dispatch_id: int, lease_token: str) -> LeasePayload:
        """Return the payload of a lease. Raises `LeaseLost` if the lease does not exist."""
        if (lease := self._known.get(lease_token)) is not None:
            return lease
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, dispatch_id, lease_token)
        if dispatch is None:
            raise LeaseLost
        async with self._databases.shard(dispatch.shard).read() as tx:
            payloads = await jobs.payloads(tx, [dispatch.tenant_job_id])
        if dispatch.tenant_job_id not in payloads:
            raise LeaseLost
        tenant_id, job_id = dispatch.tenant_id, dispatch.tenant_job_id
        payload = JobPayload.from_json(payloads[job_id])
        path = upload_path(
            tenant_id=tenant_id, job_id=job_id, lease_token=lease_token, extension=payload.output_extension
        )
        lease = LeasePayload(
            tenant_id=tenant_id, job_id=job_id, lease_token=lease_token, payload=payload, upload_path=path
        )
        _cache(self._known, lease_token, lease)
        return lease

    async def sign_more(
        self, dispatch_id: int, lease_token: str, *, worker_id: str, number: int, extension: str
    ) -> SignedUpload:
        """Sign the upload of another output. Raises `LeaseLost` if the worker does not hold the lease."""
        settings = self._settings
        if number > settings.max_output_files:
            problem = f"A job keeps at most {settings.max_output_files} outputs (COMFYRELAY_MAX_OUTPUT_FILES)."
            raise InvalidInput(problem, errors={"number": problem})
        async with self._databases.central.read() as tx:
            dispatch = await dispatches.of_lease(tx, dispatch_id, lease_token)
        if dispatch is None or dispatch.worker_id != worker_id:
            raise LeaseLost
        lease = await self.of_lease(dispatch_id, lease_token)
        return await self._objects.sign_upload(
            lease.upload_of(number),
            content_type=type_of_extension(extension),
            max_size=settings.max_output_bytes,
            ttl_seconds=settings.lease_url_ttl_seconds,
            for_worker=True,
        )

    async def _sign(self, lease_token: str, lease: LeasePayload) -> SignedUrls:
        settings = self._settings
        ttl_seconds = settings.lease_url_ttl_seconds
        upload = await self._objects.sign_upload(
            lease.upload_path,
            content_type=lease.payload.output_mime_type,
            max_size=settings.max_output_bytes,
            ttl_seconds=ttl_seconds,
            for_worker=True,
        )
        assets = {
            asset.key: await self._objects.sign_download(asset.path, ttl_seconds=ttl_seconds, for_worker=True)
            for asset in lease.payload.assets
        }
        primary = lease.payload.primary_input
        _cache(self._signed_at, lease_token, asyncio.get_running_loop().time())
        return SignedUrls(
            output_url=upload.url,
            output_headers=upload.headers,
            assets=assets,
            input_url=assets[primary.key] if primary else None,
            max_output_bytes=settings.max_output_bytes,
            max_output_files=settings.max_output_files,
        )


def _cache(cache: OrderedDict[str, T], key: str, value: T) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > MAX_CACHED:
        cache.popitem(last=False)
