"""Job states of Comfy Cloud. Its API uses two vocabularies and some undocumented values."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from comfyrelay.comfyui.failures import explain_execution_error
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import ComfyError, Fault, NodeFailed, RunInterrupted, RunLost


class CloudPhase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


_PHASES = {
    **dict.fromkeys(
        (
            *("submitted", "queued_limited", "queued_waiting", "allocated", "preparing", "pending_execution"),
            *("pending", "waiting_to_dispatch", "cancel_requested", "cancel_pending", "cancelling_preparing"),
        ),
        CloudPhase.WAITING,
    ),
    "executing": CloudPhase.RUNNING,
    "executed": CloudPhase.RUNNING,
    "in_progress": CloudPhase.RUNNING,
    "success": CloudPhase.DONE,
    "completed": CloudPhase.DONE,
    "error": CloudPhase.FAILED,
    "non_retryable_error": CloudPhase.FAILED,
    "failed": CloudPhase.FAILED,
    "lost": CloudPhase.FAILED,
    "cancelled": CloudPhase.FAILED,
}


def phase_of(job: Mapping[str, Any]) -> CloudPhase:
    """Treat unknown states as waiting."""
    return _PHASES.get(str(job.get("status")), CloudPhase.WAITING)


def has_known_state(job: Mapping[str, Any]) -> bool:
    return str(job.get("status")) in _PHASES


def failure_of_job(job: Mapping[str, Any], details: Mapping[str, Any]) -> ComfyError:
    status, message = str(job.get("status")), str(job.get("error_message") or "")
    if status == "cancelled":
        return RunInterrupted("The job was canceled on Comfy Cloud.")
    if status == "lost":
        return RunLost("Comfy Cloud lost the job.", raw=message)
    error = details.get("execution_error")
    if isinstance(error, dict) and error.get("exception_message"):
        failure = explain_execution_error(error)
    else:
        failure = NodeFailed(user_sentence(message), raw=message)
    if status == "non_retryable_error":
        failure.fault = Fault.JOB
    return failure
