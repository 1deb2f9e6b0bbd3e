"""Jobs of the Comfy API: their states, outputs and failures."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from comfyrelay.comfyui.failures import explain_service_error
from comfyrelay.comfyui.outputs import OutputFile
from comfyrelay.errors import ComfyError, RunInterrupted, RunLost

ASSET = "core/ASSET"


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


_PHASES = {
    "queued": Phase.WAITING,
    "running": Phase.RUNNING,
    "canceling": Phase.RUNNING,
    "succeeded": Phase.DONE,
    "failed": Phase.FAILED,
    "canceled": Phase.FAILED,
    "expired": Phase.FAILED,
}
_KEYS = {"video": "videos", "audio": "audio", "text": "text", "latent": "latents", "file": "files"}


def phase_of(job: Mapping[str, Any]) -> Phase:
    """Return the phase of a job. Unknown states count as waiting."""
    return _PHASES.get(str(job.get("status")), Phase.WAITING)


def has_known_state(job: Mapping[str, Any]) -> bool:
    return str(job.get("status")) in _PHASES


def failure_of_job(job: Mapping[str, Any]) -> ComfyError:
    status = job.get("status")
    if status == "canceled":
        return RunInterrupted("The job was canceled on the cloud service.")
    if status == "expired":
        return RunLost("The cloud service did not finish the job in time.")
    found = job.get("error")
    error: Mapping[str, Any] = found if isinstance(found, dict) else {}
    message = str(error.get("message") or "")
    node_id, class_type = _text(error.get("node_id")), _text(error.get("class_type"))
    return explain_service_error(message, node_id=node_id, class_type=class_type)


def outputs_of(job: Mapping[str, Any]) -> Iterator[OutputFile]:
    """Yield the outputs of a job in the service's order."""
    outputs = job.get("outputs")
    for item in outputs if isinstance(outputs, list) else []:
        match item:
            case {"id": str() as id_, "name": str() as name, "node_id": str() as node_id}:
                yield OutputFile(
                    node_id=node_id, filename=name, key=_KEYS.get(str(item.get("type")), "images"), asset_id=id_
                )


def asset_reference(asset_id: str) -> dict[str, Any]:
    """Return the input value that refers to an asset in a graph."""
    return {"__type": ASSET, "info": {"id": asset_id}}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
