"""The engine for programs that have one of their own: what `docs/howto/library.md` describes, and nothing else."""

from comfyrelay.extras import require

require("server")

from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import JobStatus, PauseMode, Provider, Stage
from comfyrelay.services.catalogue.graph_import import NewWorkflow
from comfyrelay.services.engine import Engine, Hooks
from comfyrelay.services.jobs.batches import BatchRequest
from comfyrelay.services.jobs.submission.requests import Item, JobRequest
from comfyrelay.services.queue.graph_building import LeasedJob
from comfyrelay.services.queue.heartbeats import Heartbeat
from comfyrelay.services.queue.leasing import LeaseRequest
from comfyrelay.services.queue.settle import Output, Report
from comfyrelay.settings import Settings, load_settings

__all__ = [
    "BatchRequest",
    "Engine",
    "Heartbeat",
    "Hooks",
    "Item",
    "JobRequest",
    "JobStatus",
    "LeaseRequest",
    "LeasedJob",
    "MoveTo",
    "NewWorkflow",
    "Output",
    "PauseMode",
    "Provider",
    "Report",
    "Settings",
    "Stage",
    "load_settings",
]
