"""Dependencies shared by all jobs of a worker."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from comfyrelay.comfyui.graphs.policy import GraphPolicy
from comfyrelay.worker.comfyui.orphaned_files import OrphanedFiles
from comfyrelay.worker.comfyui.servers import Servers
from comfyrelay.worker.control import ControlPlane
from comfyrelay.worker.estimate import TypicalDurations
from comfyrelay.worker.files.inputs import Inputs
from comfyrelay.worker.files.outputs import CollectedOutput
from comfyrelay.worker.files.run_folders import ComfyFolders
from comfyrelay.worker.files.transfers import Transfers
from comfyrelay.worker.lease import Lease
from comfyrelay.worker.metrics import WorkerMetrics
from comfyrelay.worker.poller import NextPoll
from comfyrelay.worker.settings import WorkerSettings
from comfyrelay.worker.state import StateFolder

# Called with a function that saves the lease to disk. Returns a line for the job's log, if any.
OutputListener = Callable[[Lease, CollectedOutput, Callable[[], None]], Awaitable[str | None]]


@dataclass(frozen=True, kw_only=True)
class JobTools:
    control: ControlPlane
    servers: Servers
    state: StateFolder
    transfers: Transfers
    inputs: Inputs
    folders: ComfyFolders
    orphaned_files: OrphanedFiles
    durations: TypicalDurations
    metrics: WorkerMetrics
    settings: WorkerSettings
    policy: GraphPolicy
    # These node classes are never sent to ComfyUI. The code that runs them checks the files that they name.
    own_nodes: frozenset[str]
    # Returns a poll to send with the completion of a lease, if the worker would poll right after it.
    next_poll: Callable[[Lease], NextPoll | None]
    # Called when a job enters another phase.
    on_change: Callable[[], None]
    on_progress: Callable[[], None]
    # Called when a write to this machine's disk fails.
    on_disk_error: Callable[[], None]
    # Called when an output has been stored and is about to be reported.
    on_output: OutputListener | None = None
