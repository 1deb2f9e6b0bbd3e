"""A client of the user API, for the command line and your own scripts.

async with Client() as client:
    job = await client.submit(workflow_slug="clip-3f2a", input_payload={"prompt": "a lighthouse"})
    async for event in client.events(job.id):
        print(event.type)
    await client.download_outputs(job.id, Path("."))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comfyrelay.client.calls import DEFAULT_URL, ActionResult
from comfyrelay.client.client import Client
from comfyrelay.client.find import Found, find
from comfyrelay.protocol.jobs import Batch, Job, JobEvent, LogLine, Output

if TYPE_CHECKING:
    from comfyrelay.protocol.admin.workers import WorkerSummary
    from comfyrelay.protocol.desk import AboutJob, DeskStatus
    from comfyrelay.protocol.user import AddedWorkflow, Effect, OwnWorkflowVersion, Preset, Workflow

__all__ = [
    "DEFAULT_URL",
    "AboutJob",
    "ActionResult",
    "AddedWorkflow",
    "Batch",
    "Client",
    "DeskStatus",
    "Effect",
    "Found",
    "Job",
    "JobEvent",
    "LogLine",
    "Output",
    "OwnWorkflowVersion",
    "Preset",
    "WorkerSummary",
    "Workflow",
    "find",
]
# Imported on first use: building these models takes time, and most callers do not use them.
_LAZY = {
    "WorkerSummary": "admin.workers",
    **dict.fromkeys(("AboutJob", "DeskStatus"), "desk"),
    **dict.fromkeys(("AddedWorkflow", "Effect", "OwnWorkflowVersion", "Preset", "Workflow"), "user"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"comfyrelay.protocol.{_LAZY[name]}"), name)
