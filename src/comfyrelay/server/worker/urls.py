"""A lease as it goes over the wire."""

from comfyrelay.server.worker.models import FreshUrls, InputPayload, JobAsset, LeasedJobBody
from comfyrelay.services.queue.building import LeasedJob
from comfyrelay.services.queue.handover import Urls

__all__ = ["fresh_urls", "leased_job"]


def leased_job(job: LeasedJob, urls: Urls) -> LeasedJobBody:
    dispatch, snapshot, primary = job.dispatch, job.snapshot, job.snapshot.primary_input
    assert dispatch.lease_expires_at is not None
    return LeasedJobBody(
        dispatch_id=dispatch.id,
        lease_token=job.lease_token,
        lease_expires_at=dispatch.lease_expires_at,
        attempt=dispatch.attempts,
        provider=dispatch.provider,
        tenant_id=dispatch.tenant_id,
        job_id=dispatch.tenant_job_id,
        effect_id=dispatch.effect_id,
        workflow_hash=dispatch.workflow_hash,
        input_url=urls.input_url,
        output_url=urls.output_url,
        output_headers=dict(urls.output_headers),
        input_payload=InputPayload(
            workflow=job.graph,
            assets=[
                JobAsset(
                    key=each.key,
                    placeholder=each.placeholder,
                    download_url=urls.assets[each.key],
                    content_hash=each.content_hash,
                    type=each.type,
                    is_primary_input=each.is_primary_input,
                )
                for each in snapshot.assets
            ],
            output_node_id=snapshot.output_node_id,
            output_extension=snapshot.output_extension,
            output_mime_type=snapshot.output_mime_type,
            input_path_placeholder=primary.placeholder if primary else None,
            input_name=primary.name if primary else None,
            input_mime_type=primary.mime_type if primary else None,
            extra_data={},
        ),
    )


def fresh_urls(urls: Urls | None) -> FreshUrls | None:
    if urls is None:
        return None
    return FreshUrls(
        input_url=urls.input_url,
        output_url=urls.output_url,
        output_headers=dict(urls.output_headers),
        assets=dict(urls.assets),
    )
