"""The API of a desk: batches from folders, scripts, and the data of its page."""

import shlex
from datetime import datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from comfyrelay.domain.bulk import Mode, SeedMode
from comfyrelay.domain.properties import Role
from comfyrelay.domain.queue.states import JobStatus, WorkerState
from comfyrelay.protocol.base import AnswerBody, Request
from comfyrelay.protocol.fields import LARGEST_NUMBER, Id, Json, Key, Line, OpenEnum, Priority, Slug
from comfyrelay.protocol.jobs import QueueUnit, Reuse, WaitForMissing
from comfyrelay.protocol.records import InputWarning
from comfyrelay.protocol.requirements import Missing

MAX_ATTEMPTS = 1000
# A path on the desk's machine.
Place = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, PurePath) else value)]
Subdir = Annotated[str, Field(max_length=1000)]
Texts = Annotated[list[Annotated[str, Field(max_length=100_000)]], Field(max_length=10_000)]


class Occasion(StrEnum):
    """When notifications are sent."""

    COMPLETED = "completed"
    FAILED = "failed"
    QUEUE_EMPTY = "empty"


class SimulatedJobs(StrEnum):
    """Which new jobs run on the built-in simulator."""

    NOTHING = "nothing"
    EXAMPLES = "examples"
    EVERYTHING = "everything"


class Seeds(Request):
    mode: SeedMode = SeedMode.RANDOM
    start: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] = 0


class NewDeskBatch(Request):
    """All combinations of inputs, prompts and tries of an effect or workflow. `values` and the `preset` apply to all
    items.

    `input_subdir` is one folder, or several: a script runs on each folder, other workflows run on each file.
    """

    effect_slug: Slug | None = None
    workflow_slug: Slug | None = None
    label: Line | None = None
    input_subdir: Subdir | Annotated[list[Subdir], Field(max_length=1000)] | None = None
    input_file_ids: Annotated[list[Id], Field(max_length=10_000)] = Field(default_factory=list)
    prompts: Texts = Field(default_factory=list)
    negative_prompts: Texts = Field(default_factory=list)
    tries: Annotated[int, Field(ge=1, le=1000)] = 1
    seeds: Seeds | None = None
    mode: Mode = Mode.PRODUCT
    values: Json = Field(default_factory=dict)
    preset: Line | None = None
    output_folder: Annotated[str, Field(max_length=200)] | None = None
    priority: Priority = 0
    notify_urls: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=20, repr=False)] = Field(
        default_factory=list,
        description="Apprise URLs to notify when it ends, in addition to the URLs of the settings",
    )
    idempotency_key: Key | None = None
    wait_for_missing: WaitForMissing = False
    reuse: Reuse = False

    @property
    def folders(self) -> list[str]:
        given = self.input_subdir
        return [] if given is None else [given] if isinstance(given, str) else given


class Estimate(AnswerBody):
    """The size, price and expected duration of a batch. Seconds are from now until its end, including jobs ahead of it:
    the expected value, and the range for most such batches; null if unknown. `inputs` are the first of its file names;
    `workers` is how many of its jobs may run at once; `missing` are its missing requirements."""

    jobs: int
    tokens: int
    workers: int
    inputs: list[str]
    input_count: int
    expected_seconds: float | None
    fastest_seconds: float | None
    slowest_seconds: float | None
    done_at: datetime | None
    missing: Missing | None
    warnings: list[InputWarning]
    remark: str


class Script(AnswerBody):
    """The configuration of the script. `environment` has names only: values may be secrets."""

    workflow_slug: str
    python: Place
    script: Place | None
    working_folder: Place
    input_folder: Place
    template_folder: Place
    output_folder: Place | None
    output_extension: str
    profiles: list[str]
    default_profile: str
    templates: list[str]
    arguments: list[str]
    extra_options: dict[str, str]
    environment: list[str]


def _split(value: Any) -> Any:
    """A form sends one text, which is split like a shell command line."""
    try:
        return tuple(shlex.split(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"It cannot be read: {error}.") from None


class ScriptJob(Request):
    """The parameters of a script job."""

    template: str = Field(description="the name of a graph in the template folder")
    input_subdir: str = Field(description="a folder in the input folder")
    positive: str = Field(description="the prompt")
    negative: str | None = Field(None, description="the negative prompt")
    profile: str | None = Field(None, description="one of the configured profiles")
    tries: int | None = Field(None, description=f"runs of each input, 1 to {MAX_ATTEMPTS}")
    randomize_seed: bool = Field(False, description="another seed for each run")
    extra_args: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (), description="further options, as the configuration allows them"
    )


class ScriptCommand(AnswerBody):
    """`argv` is the command line as a list, `command` as text for display."""

    argv: list[str]
    command: str


class NotSent(AnswerBody):
    """A notification that did not arrive. `url` is without its secrets."""

    at: datetime
    url: str
    why: str


class Notifications(AnswerBody):
    """`urls` are without their secrets; `not_sent` has the last failures."""

    urls: list[str]
    on: list[OpenEnum[Occasion]]
    not_sent: list[NotSent]


class DeskInfo(AnswerBody):
    """`comfyui` are the URLs where new jobs run; `simulated_jobs` is which of them run on the simulator."""

    version: str
    comfyui: list[str]
    simulated_jobs: OpenEnum[SimulatedJobs]
    data_dir: Place
    input_folder: Place
    output_folder: Place
    # the workflow of the user's own script, if configured
    script_workflow: str | None
    notifications: Notifications


class CheckVerdict(StrEnum):
    """It works, something is missing, or it cannot work."""

    FINE = "fine"
    WARNING = "warning"
    BROKEN = "broken"


class CheckResult(AnswerBody):
    """The result of one check, with advice."""

    verdict: OpenEnum[CheckVerdict]
    about: str
    text: str


class CheckResults(AnswerBody):
    """`configuration` is the settings file, null if there is none."""

    configuration: Place | None
    items: list[CheckResult]


class ComfyuiProcess(AnswerBody):
    """A managed ComfyUI. `state` is as in `comfyrelay comfyui list`, `reason` why it is not up, `lines` the end of the
    file `log`."""

    name: str
    gpu: str
    url: str
    state: str
    reason: str | None
    restarts: int
    log: Place
    lines: list[str]


class ComfyuiProcesses(AnswerBody):
    items: list[ComfyuiProcess]


class Link(AnswerBody):
    """A link that opens the page in one browser, once, within `seconds`."""

    url: str
    seconds: int


class WorkerNow(AnswerBody):
    state: OpenEnum[WorkerState]
    leases: int
    max_concurrency: int


class Fetched(AnswerBody):
    """A job that the worker has prefetched."""

    id: str
    batch_id: str | None


class Now(AnswerBody):
    """`waiting` is in queue order; `worker` is null until it has registered. Prefetched jobs count as waiting, although
    their status is `processing`. `comfyui_unreachable` has the reason for each ComfyUI that cannot be used."""

    worker: WorkerNow | None
    comfyui_unreachable: list[str]
    counts: dict[OpenEnum[JobStatus], int]
    running: list[QueueUnit]
    waiting: list[QueueUnit]
    fetched: list[Fetched]


class Away(AnswerBody):
    """The reason for each ComfyUI that cannot be used."""

    comfyui_unreachable: list[str]


class InputValue(AnswerBody):
    """The value of an input. `value` of a file is its name, `url` a temporary URL, and `file_id` its id while it can be
    used again. `is_default`: it was not changed for this job."""

    key: str
    label: str
    type: str
    value: Any
    url: str | None
    file_id: str | None = None
    is_default: bool
    role: OpenEnum[Role] | None


class RunFile(AnswerBody):
    """A file of the run on this machine. `size` and `url` are null if it no longer exists. `is_output` marks the one
    that is also the job's output."""

    name: str
    path: Place
    mime_type: str
    size: int | None
    url: str | None
    is_output: bool


class JobAttempt(AnswerBody):
    """`started_at` is the start of the run; until the run has ended, the time of the lease. `about` has details of the
    run: for a script `argv`, `exit_code`, `outputs`, `seed` and `log`."""

    number: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    fault: str | None
    error: str | None
    seed: int | None
    about: dict[str, Any] | None


class AboutJob(AnswerBody):
    """`error_detail` is the error output of the program, `output_metadata` the worker's report of the output, `files`
    all files of the run, and `deleted_with_it` the files that are deleted with the job."""

    workflow_slug: str
    workflow_name: str
    inputs: list[InputValue]
    error_detail: str | None
    attempts: list[JobAttempt]
    output_metadata: dict[str, Any] | None
    files: list[RunFile]
    deleted_with_it: list[Place]
