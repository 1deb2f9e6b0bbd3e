"""Represent pending, running and finished prompts as jobs."""

from typing import Any

_PREVIEWABLE = frozenset({"images", "video", "audio", "gifs", "3d"})
_ENDS = frozenset({"execution_success", "execution_error", "execution_interrupted"})


def job_of_item(item: list[Any], status: str) -> dict[str, Any]:
    """Return a pending or running job."""
    return {**_head(item, status), "outputs_count": 0, **_workflow_id(item)}


def job_of_entry(entry: dict[str, Any], *, names_canceled: bool) -> dict[str, Any]:
    """Return a finished job from its history entry. In older versions, an interrupted prompt counts as failed."""
    status = entry["status"]
    is_canceled = names_canceled and any(kind == "execution_interrupted" for kind, _ in status["messages"])
    failed = "cancelled" if is_canceled else "failed"
    head = _head(entry["prompt"], "completed" if status["status_str"] == "success" else failed)
    count, preview = _outputs_summary(entry["outputs"])
    times = {kind: data["timestamp"] for kind, data in status["messages"]}
    error = next((data for kind, data in status["messages"] if kind == "execution_error"), None)
    optional = {
        "execution_start_time": times.get("execution_start"),
        "execution_end_time": next((at for kind, at in times.items() if kind in _ENDS), None),
        "execution_error": error,
        "outputs_count": count,
        "preview_output": preview,
    }
    return {
        **head,
        **{name: value for name, value in optional.items() if value is not None},
        **_workflow_id(entry["prompt"]),
    }


def with_details(job: dict[str, Any], item: list[Any], entry: dict[str, Any] | None) -> dict[str, Any]:
    """Add the graph and the outputs of a job."""
    workflow = {"prompt": item[2], "extra_data": item[3]}
    if entry is None:
        return {**job, "workflow": workflow}
    return {**job, "outputs": entry["outputs"], "execution_status": entry["status"], "workflow": workflow}


def _head(item: list[Any], status: str) -> dict[str, Any]:
    return {"id": item[1], "status": status, "priority": item[0], "create_time": item[3].get("create_time")}


def _workflow_id(item: list[Any]) -> dict[str, Any]:
    found = ((item[3].get("extra_pnginfo") or {}).get("workflow") or {}).get("id")
    return {} if found is None else {"workflow_id": found}


def _outputs_summary(outputs: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    found = [
        {**item, "nodeId": node_id, "mediaType": kind}
        for node_id, ui in outputs.items()
        for kind, items in ui.items()
        if isinstance(items, list)
        for item in items
        if isinstance(item, dict)
    ]
    previewable = [item for item in found if item["mediaType"] in _PREVIEWABLE]
    saved = [item for item in previewable if item.get("type") == "output"]
    return len(found), next(iter(saved or previewable), None)
