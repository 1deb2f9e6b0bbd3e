"""Extension points for the application that runs the engine, such as the desk."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comfyrelay.domain.queue.settlement import Attempt, JobState
from comfyrelay.domain.queue.states import Stage, WorkflowKind
from comfyrelay.domain.queue.updates import UploadedOutput
from comfyrelay.domain.records.jobs import NewJobRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedFiles:
    """Files removed with a job, and files that could not be deleted, each with the reason."""

    removed: Sequence[str] = ()
    not_deleted: Sequence[str] = ()


# Raises `InvalidInput` for invalid values; returns additional values by key.
ValueCheck = Callable[[Mapping[str, Any]], Mapping[str, Any]]
# Changes the values of a workflow without a seed property so that the run differs; `None` if that is not possible.
VaryValues = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]

OnReused = Callable[[NewJobRecord, str | None, Sequence[UploadedOutput]], Awaitable[dict[str, Any] | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    # Called with finished jobs. It must return quickly and not raise.
    on_ended: Callable[[Sequence[JobState]], None] = lambda _ended: None
    # Checks of submitted values on this machine, by workflow kind.
    checks: Mapping[WorkflowKind, ValueCheck] = field(default_factory=dict)
    # Workers in this process. Only they may run scripts.
    desk_workers: Collection[str] = ()
    # Whether every user is the owner of this machine. In that case, batches may name notification URLs, and errors of
    # effects keep ComfyUI's wording.
    users_are_owners: bool = False
    # If all workers of a stage are in this process: why none of their ComfyUI servers is available.
    comfyui_unreachable: Callable[[str], Sequence[str]] = lambda _stage: ()
    # Whether a worker of this process has not registered yet.
    is_worker_starting: Callable[[str], bool] = lambda _stage: False
    # Returns the stage of a workflow's jobs, including reruns. By default, it is the requested stage or else the
    # server's.
    stage_of: Callable[[int], Stage] | None = None
    # Called in the transaction that deletes jobs or outputs, with their attempts and whether to keep files that only
    # the application knows. After a crash, the application removes the files that no attempt names.
    on_removing: Callable[[Sequence[Attempt], bool], Awaitable[None]] | None = None
    # Removes files of deleted jobs and outputs that only the application knows, such as copies of outputs.
    on_removed: Callable[[Sequence[Attempt]], Awaitable[RemovedFiles]] | None = None
    # Called with a job, its batch label and the outputs that it reuses. Returns details to store with the attempt. It
    # must not raise.
    on_reused: OnReused | None = None
    # Varies the values of a rerun, for workflows whose seed is not a property.
    vary: VaryValues = lambda _values: None
    # Fleets that get each new workflow in addition to the default fleet.
    more_fleets: Sequence[tuple[Stage, str]] = ()
    # Loads node definitions from a ComfyUI that this process can reach.
    live_definitions: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    # Called when a submission needs nodes or models that no worker is known to have.
    on_missing: Callable[[], None] = lambda: None
