"""The desk API: batches from folders, scripts, and data for the page of the desk."""

import shlex
from datetime import datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from comfyrelay.domain.bulk import Mode, SeedMode, WildcardMode
from comfyrelay.domain.properties import Role
from comfyrelay.domain.queue.states import WorkerState
from comfyrelay.protocol.base import AnswerBody, Request
from comfyrelay.protocol.fields import MAX_INTEGER, Id, Json, Key, Line, OpenEnum, Priority, Slug
from comfyrelay.protocol.jobs import LiveQueue, Reuse, WaitForMissing
from comfyrelay.protocol.records import InputWarning
from comfyrelay.protocol.requirements import Missing

MAX_ATTEMPTS = 1000
# A path on the desk's machine.
LocalPath = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, PurePath) else value)]
Subdir = Annotated[str, Field(max_length=1000)]
# Values by key: a list, or a text.
Sweep = Annotated[Json, Field(max_length=8)]
Prompts = Annotated[list[Annotated[str, Field(max_length=100_000)]], Field(max_length=10_000)]


class NotificationEvent(StrEnum):
    """Events that notifications are sent for."""

    COMPLETED = "completed"
    FAILED = "failed"
    QUEUE_EMPTY = "empty"


class SimulatedJobs(StrEnum):
    """Which new jobs run on the built-in simulator."""

    NOTHING = "nothing"
    EXAMPLES = "examples"
    EVERYTHING = "everything"


class Seeds(Request):
    """How the seeds of a batch are chosen. `start` is the first seed of a fixed or increasing sequence."""

    mode: SeedMode = SeedMode.RANDOM
    start: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0


class NewDeskBatch(Request):
    """A batch with all combinations of inputs, prompts, sweep axes and tries of an effect or workflow. `values` and
    `preset` apply to all items.

    `input_subdir` is one folder or several: a script runs once per folder, other workflows run once per file. `sweep`
    contains the values of further fields by key: a list, or a text such as `10,20,30`, `1..8:0.5` (a range), `5 of
    1..8` (random values) or `*` (all choices), and for a text one value per line. With `wildcards`, prompts contain
    `{a|b}` and `__name__`: `random` chooses options for each job, `all` creates a job for each combination.
    """

    effect_slug: Slug | None = None
    workflow_slug: Slug | None = None
    label: Line | None = None
    input_subdir: Subdir | Annotated[list[Subdir], Field(max_length=1000)] | None = None
    input_file_ids: Annotated[list[Id], Field(max_length=10_000)] = Field(default_factory=list)
    prompts: Prompts = Field(default_factory=list)
    negative_prompts: Prompts = Field(default_factory=list)
    tries: Annotated[int, Field(ge=1, le=1000)] = 1
    seeds: Seeds | None = None
    mode: Mode = Mode.PRODUCT
    sweep: Sweep = Field(default_factory=dict)
    wildcards: WildcardMode = WildcardMode.OFF
    values: Json = Field(default_factory=dict)
    preset: Line | None = None
    output_folder: Annotated[str, Field(max_length=200)] | None = None
    priority: Priority = 0
    notify_urls: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=20, repr=False)] = Field(
        default_factory=list,
        description="Apprise URLs to notify when the batch ends, in addition to the configured URLs",
    )
    idempotency_key: Key | None = None
    wait_for_missing: WaitForMissing = False
    reuse: Reuse = False

    @property
    def folders(self) -> list[str]:
        given = self.input_subdir
        return [] if given is None else [given] if isinstance(given, str) else given


class CountedAxis(AnswerBody):
    """A list that a batch combines: the name of its field, and the number of its values."""

    key: str
    name: str
    count: int


class Estimate(AnswerBody):
    """The size, price and expected duration of a batch.

    The seconds are from now until the end of the batch, including the jobs ahead of it, and null if unknown. Most
    batches end between `fastest_seconds` and `slowest_seconds`. `workers` is the number of jobs that can run at once.
    `inputs` are the first file names, `labels` the first names of jobs, `axes` the lists that the batch combines.
    `missing` are the missing requirements, and `warnings` are probable mistakes in the inputs.
    """

    jobs: int
    tokens: int
    workers: int
    inputs: list[str]
    input_count: int
    labels: list[str]
    axes: list[CountedAxis]
    expected_seconds: float | None
    fastest_seconds: float | None
    slowest_seconds: float | None
    done_at: datetime | None
    missing: Missing | None
    warnings: list[InputWarning]
    remark: str


class Script(AnswerBody):
    """The configuration of the script. `environment` lists only the names of variables: values may be secrets."""

    workflow_slug: str
    python: LocalPath
    script: LocalPath | None
    working_folder: LocalPath
    input_folder: LocalPath
    template_folder: LocalPath
    output_folder: LocalPath | None
    output_extension: str
    profiles: list[str]
    default_profile: str
    templates: list[str]
    arguments: list[str]
    extra_options: dict[str, str]
    environment: list[str]


def _split(value: Any) -> Any:
    """Split the text of a form like a shell command line."""
    try:
        return tuple(shlex.split(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"This is not a valid command line: {error}.") from None


class ScriptJob(Request):
    """The parameters of a script job."""

    template: str = Field(description="the name of a graph in the template folder")
    input_subdir: str = Field(description="a folder in the input folder")
    positive: str = Field(description="the prompt")
    negative: str | None = Field(None, description="the negative prompt")
    profile: str | None = Field(None, description="one of the configured profiles")
    tries: int | None = Field(None, description=f"number of runs of each input, 1 to {MAX_ATTEMPTS}")
    randomize_seed: bool = Field(False, description="use a new seed for each run")
    extra_args: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (), description="further options that the configuration allows"
    )


class ScriptCommand(AnswerBody):
    """The command line: `argv` as a list, `command` as text for display."""

    argv: list[str]
    command: str


class FailedNotification(AnswerBody):
    """A notification that could not be sent. `why` is the reason, and `url` contains no secrets."""

    at: datetime
    url: str
    why: str


class Notifications(AnswerBody):
    """The configured notifications. `urls` contain no secrets. `not_sent` are the last failures."""

    urls: list[str]
    on: list[OpenEnum[NotificationEvent]]
    not_sent: list[FailedNotification]


class DeskInfo(AnswerBody):
    """The configuration of the desk. `comfyui` are the URLs of the ComfyUI servers. `simulated_jobs` are the new jobs
    that run on the built-in simulator. `script_workflow` is the slug of the workflow of the configured script.
    `is_guest`: the session was created with the password, and may only watch, add and manage jobs."""

    version: str
    comfyui: list[str]
    simulated_jobs: OpenEnum[SimulatedJobs]
    data_dir: LocalPath
    input_folder: LocalPath
    output_folder: LocalPath
    script_workflow: str | None
    notifications: Notifications
    is_guest: bool


class CheckVerdict(StrEnum):
    """`fine`: it works; `warning`: it works with limitations; `broken`: it does not work."""

    FINE = "fine"
    WARNING = "warning"
    BROKEN = "broken"


class CheckResult(AnswerBody):
    """The result of one check. `about` is the subject of the check, `text` the result and advice."""

    verdict: OpenEnum[CheckVerdict]
    about: str
    text: str


class CheckResults(AnswerBody):
    """The results of all checks. `configuration` is the path of the settings file, null if there is none."""

    configuration: LocalPath | None
    items: list[CheckResult]


class ComfyuiProcess(AnswerBody):
    """A ComfyUI process that the desk manages. `state` is a state of `comfyrelay comfyui list`, `reason` is the reason
    why the process is not up, `log` is the path of its log file, and `lines` are the last lines of that file."""

    name: str
    gpu: str
    url: str
    state: str
    reason: str | None
    restarts: int
    log: LocalPath
    lines: list[str]


class Link(AnswerBody):
    """A link that signs one browser in. It works once, and expires after `seconds`."""

    url: str
    seconds: int


class PhoneLink(Link):
    """A link for a phone. `rows` are the rows of its QR code: `1` is a dark square."""

    rows: list[str]


class DeskWorkerStatus(AnswerBody):
    """The worker of the desk. `leases` is the number of its leased jobs."""

    state: OpenEnum[WorkerState]
    leases: int
    max_concurrency: int


class PrefetchedJob(AnswerBody):
    """A job that the worker has prefetched."""

    id: str
    batch_id: str | None


class DeskStatus(LiveQueue):
    """The queue and the worker. `waiting` is in queue order. `worker` is null until the worker has registered.
    Prefetched jobs count as waiting. `comfyui_unreachable` contains the reason for each ComfyUI that cannot be used."""

    worker: DeskWorkerStatus | None
    comfyui_unreachable: list[str]
    fetched: list[PrefetchedJob]


class UnreachableComfyui(AnswerBody):
    """The reason for each ComfyUI that cannot be used."""

    comfyui_unreachable: list[str]


class InputValue(AnswerBody):
    """The value of an input. The `value` of a file is its name, `url` is a temporary URL, and `file_id` is the id of
    the file while it can be used again. `is_default`: the job uses the default value."""

    key: str
    label: str
    type: str
    value: Any
    url: str | None
    file_id: str | None = None
    is_default: bool
    role: OpenEnum[Role] | None


class RunFile(AnswerBody):
    """A file of the run on the machine of the desk. `size` and `url` are null if the file no longer exists.
    `output_number` is the number of the output that the file is, if any."""

    name: str
    path: LocalPath
    mime_type: str
    size: int | None
    url: str | None
    output_number: int | None


class JobAttempt(AnswerBody):
    """An attempt to run a job. `started_at` is the time of the lease, and after the run the start of the run. `about`
    are details of the run: for a script `argv`, `exit_code`, `outputs`, `seed` and `log`."""

    number: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    fault: str | None
    error: str | None
    seed: int | None
    about: dict[str, Any] | None


class AboutJob(AnswerBody):
    """Details of a job. `error_detail` is the error output of the program, `output_metadata` the worker's report about
    the first output. `files` are all files of the run, `deleted_with_it` the files that are deleted with the job, and
    `copies` the file that is deleted with each output, by number. `comfyui_url` is the address of the ComfyUI that ran
    it, if this browser can reach it."""

    workflow_slug: str
    workflow_name: str
    inputs: list[InputValue]
    error_detail: str | None
    attempts: list[JobAttempt]
    output_metadata: dict[str, Any] | None
    files: list[RunFile]
    deleted_with_it: list[LocalPath]
    copies: dict[int, LocalPath]
    comfyui_url: str | None = None
