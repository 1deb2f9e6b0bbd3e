"""Prompts in the formats of `/queue`, `/history` and `/api/jobs`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from comfyrelay.domain.queue.states import JobStatus
from comfyrelay.domain.records.jobs import JobRecord, PromptRecord
from comfyrelay.services.comfyui_api.prompts import Prompt, PromptOutput
from comfyrelay.services.jobs.views.overview import QueueSummary

_STATUSES: Mapping[JobStatus, str] = {
    JobStatus.QUEUED: "pending",
    JobStatus.PAUSED: "pending",
    JobStatus.PROCESSING: "in_progress",
    JobStatus.COMPLETED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELED: "cancelled",
}
# Media types that the editor can preview in its list.
_PREVIEWABLE = ("image/", "video/", "audio/")
_UNFINISHED = (JobStatus.QUEUED, JobStatus.PAUSED, JobStatus.PROCESSING)
FAILED = "The job failed."


def queue_status(summary: QueueSummary) -> dict[str, Any]:
    """Return the number of the user's waiting and running jobs, including those submitted through other APIs."""
    return {"exec_info": {"queue_remaining": sum(summary.counts.get(status, 0) for status in _UNFINISHED)}}


def queue_number(job: JobRecord) -> int:
    """Return the queue number. Prompts run in this order."""
    return milliseconds(job.created_at)


def milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def queue_item(prompt: Prompt) -> list[Any]:
    """Return an item of `/queue`: number, id, graph, extra data and the output nodes."""
    record, job = prompt.record, prompt.job
    return [queue_number(job), prompt.id, record.graph, _extra_data(record, job), list(record.outputs)]


def history_entry(prompt: Prompt) -> dict[str, Any]:
    messages = history_messages(prompt)
    is_success = prompt.job.status == JobStatus.COMPLETED
    outputs = outputs_by_node(prompt)
    return {
        "prompt": queue_item(prompt),
        "outputs": outputs,
        "status": {
            "status_str": "success" if is_success else "error",
            "completed": is_success,
            "messages": [[name, data] for name, data in messages],
        },
        "meta": {
            node_id: {"node_id": node_id, "display_node": node_id, "parent_node": None, "real_node_id": node_id}
            for node_id in outputs
        },
    }


def cloud_history_entry(prompt: Prompt) -> dict[str, Any]:
    """Return a history entry in Comfy Cloud's format, where `prompt` is an object."""
    entry = history_entry(prompt)
    names = ("priority", "prompt_id", "prompt", "extra_data", "outputs_to_execute")
    return {**entry, "prompt": dict(zip(names, entry["prompt"], strict=True))}


def history_messages(prompt: Prompt) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of an ended prompt."""
    job = prompt.job
    started = milliseconds(job.started_at or job.created_at)
    return [
        ("execution_start", {"prompt_id": prompt.id, "timestamp": started}),
        ("execution_cached", {"nodes": [], "prompt_id": prompt.id, "timestamp": started}),
        end_message(prompt),
    ]


def end_message(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    """Return the last event of an ended prompt."""
    job = prompt.job
    ended = milliseconds(job.completed_at or job.created_at)
    about = {"prompt_id": prompt.id, "timestamp": ended}
    if job.status == JobStatus.COMPLETED:
        return "execution_success", about
    if job.status == JobStatus.CANCELED:
        return "execution_interrupted", {**about, "node_id": "", "node_type": "", "executed": []}
    return "execution_error", {**about, **execution_error(prompt)}


def execution_error(prompt: Prompt) -> dict[str, Any]:
    """Return why a prompt failed. ComfyUI's traceback is not shown: it contains paths of the worker."""
    job, node = prompt.job, prompt.failed_node
    return {
        "node_id": "" if node is None else node.node_id,
        "node_type": "" if node is None else node.class_type,
        "executed": [],
        "exception_message": job.error_message or FAILED,
        "exception_type": "JobFailed",
        "traceback": [],
        "current_inputs": {},
        "current_outputs": [],
    }


def outputs_by_node(prompt: Prompt) -> dict[str, dict[str, Any]]:
    """Return the output files and texts of each node."""
    found: dict[str, dict[str, Any]] = {}
    for output in prompt.outputs:
        found.setdefault(output.node_id, {}).setdefault(output.key, []).append(file_item(prompt, output))
    for node_id, texts in prompt.texts.items():
        found.setdefault(node_id, {})["text"] = list(texts)
    return found


def file_item(prompt: Prompt, output: PromptOutput) -> dict[str, Any]:
    """Return the reference that `/view` accepts for a file. All runs use the same filenames, so the subfolder is the
    prompt id."""
    return {"filename": output.name, "subfolder": prompt.id, "type": "output"}


def job_body(prompt: Prompt) -> dict[str, Any]:
    """Return an item of `/api/jobs`. Absent times are left out, as in ComfyUI."""
    job = prompt.job
    previewable = [output for output in prompt.outputs if output.file.mime_type.startswith(_PREVIEWABLE)]
    times = {"execution_start_time": job.started_at, "execution_end_time": job.completed_at}
    body: dict[str, Any] = {
        "id": prompt.id,
        "status": _STATUSES[prompt.status],
        "priority": queue_number(job),
        "create_time": milliseconds(job.created_at),
        "outputs_count": len(prompt.outputs),
        "previewable_outputs_count": len(previewable),
        **{name: milliseconds(at) for name, at in times.items() if at is not None},
    }
    if prompt.record.workflow_id is not None:
        body["workflow_id"] = prompt.record.workflow_id
    if previewable:
        body["preview_output"] = _preview(prompt, previewable[0])
    if job.status == JobStatus.FAILED:
        body["execution_error"] = {
            **execution_error(prompt),
            "prompt_id": prompt.id,
            "timestamp": milliseconds(job.completed_at or job.created_at),
        }
    return body


def job_detail(prompt: Prompt) -> dict[str, Any]:
    job, record = prompt.job, prompt.record
    is_ended = job.completed_at is not None
    return {
        **job_body(prompt),
        "update_time": milliseconds(job.completed_at or job.started_at or job.created_at),
        "outputs": outputs_by_node(prompt),
        "execution_status": history_entry(prompt)["status"] if is_ended else None,
        "workflow": {"prompt": record.graph, "extra_data": _extra_data(record, job)},
    }


def _preview(prompt: Prompt, output: PromptOutput) -> dict[str, Any]:
    kind = output.file.mime_type.partition("/")[0]
    media_type = {"image": "images"}.get(kind, kind)
    return {**file_item(prompt, output), "nodeId": output.node_id, "mediaType": media_type}


def _extra_data(record: PromptRecord, job: JobRecord) -> dict[str, Any]:
    client = {} if record.client_id is None else {"client_id": record.client_id}
    return {**record.extra_data, **client, "create_time": milliseconds(job.created_at)}
