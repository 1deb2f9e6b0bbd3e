"""The public API for programs that embed the engine; see `docs/howto/library.md`."""

from comfyrelay.extras import require

require("server")

from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import JobStatus, PauseMode, Provider, Stage
from comfyrelay.services.catalogue.graph_import import WorkflowImport
from comfyrelay.services.engine import Engine
from comfyrelay.services.hooks import Hooks
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import ItemRequest, JobRequest
from comfyrelay.services.queue.graph_building import LeasedDispatch
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Report, SettledOutput
from comfyrelay.settings import Settings, load_settings

__all__ = [
    "BatchRequest",
    "Engine",
    "Heartbeat",
    "Hooks",
    "ItemRequest",
    "JobRequest",
    "JobStatus",
    "LeaseRequest",
    "LeasedDispatch",
    "MoveTo",
    "PauseMode",
    "Provider",
    "Report",
    "Settings",
    "SettledOutput",
    "Stage",
    "WorkflowImport",
    "load_settings",
]
