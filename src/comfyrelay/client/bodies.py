"""What the API tells, in its own words. Plain dictionaries, so that what a newer server adds is passed on."""

from typing import Any, TypedDict

__all__ = [
    "ENDED",
    "About",
    "Attempt",
    "Batch",
    "Effect",
    "Fetched",
    "InputValue",
    "Job",
    "LogLine",
    "Now",
    "Output",
    "Preset",
    "RunFile",
    "Unit",
    "Waiting",
    "Worker",
    "WorkerNow",
    "Workflow",
]

ENDED = frozenset({"completed", "failed", "canceled"})


class Waiting(TypedDict):
    reason: str
    text: str
    until: str | None
    position: int | None
    expected_start_seconds: float | None


class Output(TypedDict):
    file_id: str
    url: str
    filename: str
    mime_type: str
    size: int | None
    content_hash: str | None


class Job(TypedDict):
    id: str
    status: str
    effect_id: int | None
    video_id: str | None
    batch_id: str | None
    item_no: int
    label: str | None
    input_file_id: str | None
    retry_of: str | None
    priority: int
    progress: dict[str, Any] | None
    attempts: int
    max_attempts: int
    reserved_tokens: int
    error: str | None
    waiting: Waiting | None
    outputs: list[Output]
    created_at: str
    started_at: str | None
    completed_at: str | None


class Batch(TypedDict):
    id: str
    label: str | None
    total: int
    done: int
    progress: float
    expected_seconds: float | None
    counts: dict[str, int]
    created_at: str


class LogLine(TypedDict):
    line: str
    created_at: str


class Preset(TypedDict):
    id: str
    name: str
    values: dict[str, Any]
    created_at: str


class Workflow(TypedDict):
    slug: str
    name: str
    properties: list[dict[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool


class Effect(TypedDict):
    id: int
    slug: str
    name: str
    credits_cost: int
    properties: list[dict[str, Any]]
    output_mime_type: str
    output_extension: str
    last_processing_time_seconds: float | None


class Worker(TypedDict):
    worker_id: str
    display_name: str | None
    fleet_slug: str
    state: str
    leases: int
    max_concurrency: int
    last_seen_at: str


class Unit(TypedDict):
    """A batch, or a job that belongs to none."""

    id: str
    is_batch: bool


class WorkerNow(TypedDict):
    state: str
    leases: int
    max_concurrency: int


class Fetched(TypedDict):
    """A job that a worker has fetched, to run it next."""

    id: str
    batch_id: str | None


class Now(TypedDict):
    """The queue of a desk at a glance; `waiting` in the order in which it will run, with what is only fetched."""

    worker: WorkerNow | None
    comfyui_away: list[str]
    counts: dict[str, int]
    running: list[Unit]
    waiting: list[Unit]
    fetched: list[Fetched]


class InputValue(TypedDict):
    key: str
    type: str
    value: Any
    url: str | None
    is_default: bool


class RunFile(TypedDict):
    """A file that a run made, where it is on the desk's machine; `url` begins at the desk's own address."""

    name: str
    path: str
    mime_type: str
    size: int | None
    url: str | None
    is_output: bool


class Attempt(TypedDict):
    number: int
    started_at: str | None
    ended_at: str | None
    outcome: str | None
    error: str | None
    seed: int | None
    about: dict[str, Any] | None


class About(TypedDict):
    """What a desk knows of a job beside its state."""

    workflow_slug: str
    workflow_name: str
    inputs: list[InputValue]
    error_detail: str | None
    attempts: list[Attempt]
    output_metadata: dict[str, Any] | None
    files: list[RunFile]
