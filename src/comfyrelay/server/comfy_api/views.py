"""Jobs and assets in the format of the Comfy API."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from comfyrelay.clock import utc_now
from comfyrelay.domain.queue.states import JobStatus, shown_status
from comfyrelay.domain.records.accounts import User
from comfyrelay.domain.records.jobs import FailedNode, JobRecord
from comfyrelay.protocol import comfy_api as wire
from comfyrelay.protocol.progress import Progress
from comfyrelay.server.comfy_api import PREFIX
from comfyrelay.server.http.context import Context
from comfyrelay.services.jobs.views.jobs import JobView, OutputView

HASH = "blake3:"
# For jobs that are never deleted: the contract requires a time.
NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_STATUSES: Mapping[JobStatus, wire.ComfyStatus] = {
    JobStatus.QUEUED: "queued",
    JobStatus.PAUSED: "queued",
    JobStatus.PROCESSING: "running",
    JobStatus.COMPLETED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELED: "canceled",
}
_KINDS = ("image", "video", "audio", "text")


def comfy_status(status: str) -> wire.ComfyStatus:
    return _STATUSES[JobStatus(status)]


def status_of(view: JobView) -> wire.ComfyStatus:
    if view.cancel_requested_at is not None and view.job.status == JobStatus.PROCESSING:
        return "canceling"
    return comfy_status(shown_status(view.job.status, is_prefetched=view.is_prefetched))


async def job_body(
    context: Context, user: User, view: JobView, *, labels: Mapping[str, str] | None = None
) -> wire.ComfyJob:
    """Return a job. Its `labels` are read if they are not given."""
    job = view.job
    if labels is None:
        labels = (await context.engine.jobs.views.metadata(user.tenant_id, [job.id])).get(job.id, {})
    days = context.settings.retention_days
    link = f"{PREFIX}/jobs/{job.id}"
    status = status_of(view)
    return wire.ComfyJob.of(
        job,
        status=status,
        expires_at=NEVER if days is None else job.created_at + timedelta(days=days),
        queue_position=view.waiting.position if status == "queued" and view.waiting is not None else None,
        progress=progress_body(view.progress) if status in ("running", "canceling") else None,
        outputs=await output_bodies(context, user, view),
        error=_error(job, await context.engine.jobs.views.failed_node(view)),
        metadata=dict(labels),
        metrics={
            "queue_ms": _milliseconds(job.created_at, job.started_at),
            "execution_ms": _milliseconds(job.started_at, job.completed_at),
        },
        urls=wire.ComfyJobUrls(self=link, events=f"{link}/events", cancel=f"{link}/cancel"),
    )


def progress_body(report: Mapping[str, Any] | None) -> wire.ComfyProgress:
    progress = Progress.from_report(report)
    return wire.ComfyProgress(
        value=progress.fraction or 0.0,
        nodes_done=int(progress.nodes_done or 0),
        nodes_total=int(progress.nodes_total or 0),
        current_node=progress.node_id,
        current_node_class=progress.node_class,
        step=None if progress.step is None else int(progress.step),
        steps=None if progress.steps is None else int(progress.steps),
        message=progress.node or progress.phase,
    )


async def output_bodies(context: Context, user: User, view: JobView) -> list[wire.ComfyOutput]:
    about = await context.engine.jobs.views.output_facts(user.tenant_id, view)
    expires_at = url_expires_at(context)
    return [
        wire.ComfyOutput(
            node_id=str(about[output.file.id].get("node_id") or ""),
            name=str(about[output.file.id].get("filename") or output.filename),
            type=_kind(output.file.mime_type),
            content_type=output.file.mime_type,
            size_bytes=output.file.size or 0,
            id=output.file.id,
            url=output.url,
            url_expires_at=expires_at,
            job_id=view.job.id,
        )
        for output in view.outputs
    ]


def asset_body(
    context: Context, view: OutputView, *, job_id: str | None = None, created_new: bool | None = None
) -> wire.ComfyAsset:
    file = view.file
    unused = timedelta(hours=context.settings.unused_upload_hours)
    return wire.ComfyAsset(
        id=file.id,
        hash=None if file.blake3 is None else f"{HASH}{file.blake3}",
        size_bytes=file.size or 0,
        content_type=file.mime_type,
        file_path=file.original_filename or view.filename,
        created_new=created_new,
        created_at=file.created_at,
        url=view.url,
        url_expires_at=url_expires_at(context),
        expires_at=(file.unused_at or file.created_at) + unused if file.used_at is None else None,
        job_id=job_id,
    )


def item_body(view: JobView, labels: Mapping[str, dict[str, str]]) -> wire.ComfyJobItem:
    job = view.job
    return wire.ComfyJobItem(
        id=job.id,
        status=status_of(view),
        create_time=job.created_at,
        update_time=job.completed_at or job.started_at or job.created_at,
        metadata=labels.get(job.id, {}),
    )


def url_expires_at(context: Context) -> datetime:
    return utc_now() + timedelta(seconds=context.settings.presigned_ttl_seconds)


def _error(job: JobRecord, node: FailedNode | None) -> wire.ComfyJobError | None:
    """Return why a job failed. ComfyUI's traceback is not shown: it contains paths of the worker."""
    if job.status != JobStatus.FAILED:
        return None
    return wire.ComfyJobError(
        code="node_execution_error",
        message=job.error_message or "The job failed.",
        node_id=None if node is None else node.node_id,
        class_type=None if node is None else node.class_type,
    )


def _kind(mime_type: str) -> wire.OutputType:
    kind = mime_type.partition("/")[0]
    return cast(wire.OutputType, kind) if kind in _KINDS else "file"


def _milliseconds(since: datetime | None, until: datetime | None) -> int | None:
    return None if since is None or until is None else round((until - since).total_seconds() * 1000)
