"""The response model of a leased job, and calls about a lease."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from comfyrelay.domain.records.workers import Worker
from comfyrelay.protocol import worker as wire
from comfyrelay.server.http.context import Context
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.lease_payload import SignedUrls

T = TypeVar("T")


def leased_job(job: LeasedDispatch, urls: SignedUrls, *, server_id: str) -> wire.LeasedJob:
    dispatch, payload, primary = job.dispatch, job.payload, job.payload.primary_input
    input_payload = wire.InputPayload.of(
        payload,
        workflow=job.graph,
        assets=[wire.AssetDownload.of(asset, download_url=urls.assets[asset.key]) for asset in payload.assets],
        input_path_placeholder=primary.placeholder if primary else None,
        input_name=primary.name if primary else None,
        input_mime_type=primary.mime_type if primary else None,
        # ComfyUI writes this into its files, next to the graph.
        extra_data={"extra_pnginfo": {"workflow": job.editor}} if job.editor is not None else {},
    )
    return wire.LeasedJob.of(
        dispatch,
        urls,
        dispatch_id=dispatch.id,
        attempt=dispatch.attempts,
        job_id=dispatch.tenant_job_id,
        input_payload=input_payload,
        max_run_seconds=payload.max_run_seconds,
        keep_loaded=job.keep_loaded,
        ran_out_bytes=job.ran_out_bytes,
        via=[*payload.via, server_id],
    )


async def with_lease(context: Context, worker: Worker, body: wire.LeaseMessage, call: Callable[[], Awaitable[T]]) -> T:
    """Run a call that needs a lease. A worker that was unreachable gets its lease back, if no other worker has started
    the job."""
    structlog.contextvars.bind_contextvars(dispatch_id=body.dispatch_id)
    if (job_id := context.engine.queue.lease_payloads.known_job(body.lease_token)) is not None:
        structlog.contextvars.bind_contextvars(job_id=job_id)
    heartbeats, worker_id = context.engine.queue.heartbeats, worker.worker_id
    return await heartbeats.with_lease(call, body.dispatch_id, body.lease_token, worker_id=worker_id)
