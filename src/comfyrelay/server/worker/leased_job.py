"""The response model of a leased job."""

from comfyrelay.protocol import worker as wire
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.lease_payload import SignedUrls


def leased_job(job: LeasedDispatch, urls: SignedUrls) -> wire.LeasedJob:
    dispatch, payload, primary = job.dispatch, job.payload, job.payload.primary_input
    input_payload = wire.InputPayload.of(
        payload,
        workflow=job.graph,
        assets=[wire.AssetDownload.of(asset, download_url=urls.assets[asset.key]) for asset in payload.assets],
        input_path_placeholder=primary.placeholder if primary else None,
        input_name=primary.name if primary else None,
        input_mime_type=primary.mime_type if primary else None,
        # ComfyUI writes it into its files, next to the graph.
        extra_data={"extra_pnginfo": {"workflow": job.editor}} if job.editor is not None else {},
    )
    return wire.LeasedJob.of(
        dispatch,
        urls,
        dispatch_id=dispatch.id,
        attempt=dispatch.attempts,
        job_id=dispatch.tenant_job_id,
        input_payload=input_payload,
        keep_loaded=job.keep_loaded,
        ran_out_bytes=job.ran_out_bytes,
    )
