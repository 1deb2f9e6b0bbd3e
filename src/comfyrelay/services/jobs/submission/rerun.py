"""Copy jobs to run them again, in the same batch, in a new batch, or alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comfyrelay.domain.ids import new_id
from comfyrelay.domain.payloads import JobPayload
from comfyrelay.domain.records.jobs import JobRecord, NewJobRecord
from comfyrelay.errors import Conflict
from comfyrelay.pacing import paced
from comfyrelay.services.hooks import VaryValues
from comfyrelay.services.jobs.submission.rerun_offers import RerunOffer
from comfyrelay.services.jobs.submission.seeds import new_seed
from comfyrelay.store.database import Tx
from comfyrelay.store.tenant import clearing, jobs
from comfyrelay.store.tenant.library import media


async def retries(tx: Tx, old: Sequence[JobRecord], *, new_seeds: bool, vary: VaryValues) -> list[NewJobRecord]:
    """Create a retry of each job, and show its batch again. An idempotency key ensures that each job is retried only
    once."""
    payloads = await _payloads(tx, old, vary if new_seeds else None)
    if batch_ids := {job.batch_id for job in old if job.batch_id is not None}:
        await clearing.show_batches(tx, batch_ids)
    return [
        _copy(
            job,
            payloads[job.id],
            new_seeds,
            idempotency_key=f"retry:{job.id}",
            retry_of=job.id,
            # The retry of a free job is free too.
            reserved_tokens=job.reserved_tokens,
            saved_tokens=job.saved_tokens,
        )
        async for job in paced(old)
    ]


async def batch_copies(
    tx: Tx,
    old: Sequence[JobRecord],
    offers: Mapping[str, RerunOffer],
    *,
    batch_id: str,
    new_seeds: bool,
    vary: VaryValues,
) -> list[NewJobRecord]:
    payloads = await _payloads(tx, old, vary if new_seeds else None)
    return [
        _copy(
            job,
            payloads[job.id],
            new_seeds,
            offer=offer_of(offers, job),
            idempotency_key=f"batch:again:{batch_id}:{job.item_no}",
            batch_id=batch_id,
        )
        async for job in paced(old)
    ]


def offer_of(offers: Mapping[str, RerunOffer], job: JobRecord) -> RerunOffer:
    if (offer := offers.get(job.id)) is None:
        raise Conflict("The effect or the job has changed in the meantime. Try again.")
    return offer


async def copy_alone(
    tx: Tx, old: JobRecord, offer: RerunOffer | None, *, new_seeds: bool, vary: VaryValues
) -> NewJobRecord:
    """Copy a job outside any batch. Its video is also copied, so that both results are kept."""
    payload = (await _payloads(tx, [old], vary if new_seeds else None))[old.id]
    key = f"again:{new_id()}"
    video_id = await _copy_video(tx, old)
    return _copy(old, payload, new_seeds, offer=offer, idempotency_key=key, batch_id=None, item_no=0, video_id=video_id)


async def _copy_video(tx: Tx, old: JobRecord) -> str | None:
    video = await media.video(tx, old.tenant_id, old.video_id) if old.video_id is not None else None
    if video is None:
        return None
    copied = {name: getattr(video, name) for name in ("tenant_id", "user_id", "title", "effect_id", "original_file_id")}
    video_id = new_id()
    await media.create_video(tx, id=video_id, **copied)
    return video_id


async def _payloads(tx: Tx, old: Sequence[JobRecord], vary: VaryValues | None) -> Mapping[str, Mapping[str, Any]]:
    """Return the payloads of the old jobs. With `vary`, they have new seeds."""
    payloads = await jobs.payloads(tx, [job.id for job in old])
    async for job in paced(old):
        primary = JobPayload.from_json(payloads[job.id]).primary_input
        # Only files of users have a media type. Files of the catalogue are never deleted, so they need no check.
        if primary is not None and primary.mime_type is not None and job.input_file_id is None:
            raise Conflict("This job cannot run again, because its input was deleted.")
    if vary is None:
        return payloads
    return {
        job_id: _vary_payload(JobPayload.from_json(payload), vary).to_json()
        async for job_id, payload in paced(payloads.items())
    }


def _vary_payload(payload: JobPayload, vary: VaryValues) -> JobPayload:
    if payload.seeds:
        return payload.with_seeds(new_seed)
    values = vary(payload.values)
    if values is None:
        raise Conflict("This workflow has no seed to change: run it again without a new seed.")
    return replace(payload, values=values)


_NOT_COPIED = {"id", "idempotency_key", "input_payload", "delay_seconds", "retry_of", "reused_from", "saved_tokens"}


def _copy(
    old: JobRecord,
    payload: Mapping[str, Any],
    is_varied: bool,
    *,
    idempotency_key: str,
    offer: RerunOffer | None = None,
    **changes: Any,
) -> NewJobRecord:
    """Copy a job. Without an offer, it keeps its price and its maximum run time."""
    copied = {name: getattr(old, name) for name in NewJobRecord.__dataclass_fields__ if name not in _NOT_COPIED}
    if offer is not None:
        copied["reserved_tokens"] = offer.tokens
        copied["millitokens_per_second"] = offer.millitokens_per_second
        payload = {**payload, "max_run_seconds": offer.max_run_seconds}
    if is_varied:
        copied["fingerprint"] = None
    return NewJobRecord(**{**copied, **changes}, id=new_id(), idempotency_key=idempotency_key, input_payload=payload)
