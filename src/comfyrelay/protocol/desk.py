"""What only a desk serves: batches from folders, graphs, scripts, and what its page shows."""

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
from comfyrelay.protocol.jobs import Reuse, WaitForMissing
from comfyrelay.protocol.requirements import Missing

MOST_TRIES = 1000
# A place on the desk's machine.
Place = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, PurePath) else value)]
Subdir = Annotated[str, Field(max_length=1000)]
Texts = Annotated[list[Annotated[str, Field(max_length=100_000)]], Field(max_length=10_000)]


class Occasion(StrEnum):
    """When somebody is notified."""

    COMPLETED = "completed"
    FAILED = "failed"
    QUEUE_EMPTY = "empty"


class TryingOut(StrEnum):
    """Which of the jobs that are added now run on the built-in simulator."""

    NOTHING = "nothing"
    EXAMPLES = "examples"
    EVERYTHING = "everything"


class Seeds(Request):
    mode: SeedMode = SeedMode.RANDOM
    start: Annotated[int, Field(ge=0, le=LARGEST_NUMBER)] = 0


class NewDeskBatch(Request):
    """What to run, on what, and how often. `values` and those of the `preset` are the same for all items.

    `input_subdir` is one folder, or several: a script is run on each, of other workflows each file is an input.
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
        description="who is notified of its end beside those of the settings, as apprise writes it",
    )
    idempotency_key: Key | None = None
    wait_for_missing: WaitForMissing = False
    reuse: Reuse = False

    @property
    def folders(self) -> list[str]:
        given = self.input_subdir
        return [] if given is None else [given] if isinstance(given, str) else given


class Odd(AnswerBody):
    """Something about the inputs that may not be meant, as a sentence; `name` is the file that it is about."""

    name: str
    text: str


class Estimate(AnswerBody):
    """What a batch would be. Seconds are from now until its end, with what waits before it: usually, and within which
    most such batches stay; null while nobody knows how long its jobs take. `inputs` are the names of its files, the
    first of them; `workers`, how many jobs may run at once; `missing`, what no worker has of what it needs."""

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
    odd: list[Odd]
    remark: str


class Script(AnswerBody):
    """What the configuration says. Of `environment` only the names: values may be secrets."""

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
    """In a form they are one text, read as a shell reads quotes."""
    try:
        return tuple(shlex.split(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"It cannot be read: {error}.") from None


class ScriptJob(Request):
    """What a request may say of a script job."""

    template: str = Field(description="the name of a graph in the template folder")
    input_subdir: str = Field(description="a folder in the input folder")
    positive: str = Field(description="the prompt")
    negative: str | None = Field(None, description="the negative prompt")
    profile: str | None = Field(None, description="one of the configured profiles")
    tries: int | None = Field(None, description=f"runs of each input, 1 to {MOST_TRIES}")
    randomize_seed: bool = Field(False, description="another seed for each run")
    extra_args: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (), description="further options, as the configuration allows them"
    )


class ScriptCommand(AnswerBody):
    """`argv` is what is run; `command` is the same as one would type it, to be read."""

    argv: list[str]
    command: str


class NotSent(AnswerBody):
    """A notification that did not arrive."""

    at: datetime
    url: str
    why: str


class Notifications(AnswerBody):
    """`urls` are without their secrets; `not_sent` has the last that did not arrive."""

    urls: list[str]
    on: list[OpenEnum[Occasion]]
    not_sent: list[NotSent]


class DeskInfo(AnswerBody):
    """`comfyui` is where the jobs that are added now run; `trying_out` says which of them run on the simulator."""

    version: str
    comfyui: list[str]
    trying_out: OpenEnum[TryingOut]
    data_dir: Place
    input_folder: Place
    output_folder: Place
    # the workflow that runs the user's own script, where one is configured
    script_workflow: str | None
    notifications: Notifications


class Verdict(StrEnum):
    """Of a finding: all is well, something is missing, or something cannot work."""

    FINE = "fine"
    LACKING = "lacking"
    BROKEN = "broken"


class MachineFinding(AnswerBody):
    """Something about the machine, in a sentence that says what to do."""

    verdict: OpenEnum[Verdict]
    about: str
    text: str


class MachineFindings(AnswerBody):
    """`configuration` is the file that settings are read from; null where there is none."""

    configuration: Place | None
    items: list[MachineFinding]


class ComfyuiProcess(AnswerBody):
    """A ComfyUI that the desk has started. `state` is as `comfyrelay comfyui list` says it, `reason` why it is not up,
    `lines` what it said last; all of that is in the file `log`."""

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
    """A link that opens the page in one browser, once, for so many seconds from now."""

    url: str
    seconds: int


class WorkerNow(AnswerBody):
    state: OpenEnum[WorkerState]
    leases: int
    max_concurrency: int


class Unit(AnswerBody):
    """A batch, or a job that belongs to none."""

    id: str
    is_batch: bool


class Fetched(AnswerBody):
    """A job whose inputs the worker has fetched, to run it next."""

    id: str
    batch_id: str | None


class Now(AnswerBody):
    """`waiting` is in the order in which it will run; `worker` is null until it has registered. What is only fetched
    counts as waiting, although the job's own status is `processing`. `comfyui_away` says of each ComfyUI
    server that cannot be used why."""

    worker: WorkerNow | None
    comfyui_away: list[str]
    counts: dict[OpenEnum[JobStatus], int]
    running: list[Unit]
    waiting: list[Unit]
    fetched: list[Fetched]


class Away(AnswerBody):
    """Of each ComfyUI server that cannot be used, why."""

    comfyui_away: list[str]


class InputValue(AnswerBody):
    """A value; of a file, its name, a URL that works for a while, and its id while it can be used again.
    `is_default`: nobody changed it for this job."""

    key: str
    label: str
    type: str
    value: Any
    url: str | None
    file_id: str | None = None
    is_default: bool
    role: OpenEnum[Role] | None


class RunFile(AnswerBody):
    """A file that the run made, where it is on this machine. `size` and `url` are null once it is gone from there.
    `is_output` is the one that is also the job's output."""

    name: str
    path: Place
    mime_type: str
    size: int | None
    url: str | None
    is_output: bool


class JobAttempt(AnswerBody):
    """`started_at` is when its run began; while that is not over, when the worker took it. `about` is what is kept of
    the run: of a script `argv`, `exit_code`, `outputs`, `seed` and `log`."""

    number: int
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    fault: str | None
    error: str | None
    seed: int | None
    about: dict[str, Any] | None


class AboutJob(AnswerBody):
    """`error_detail` is what the program itself printed; `output_metadata`, what was reported of the output; `files`,
    all that the run made; `deleted_with_it`, the files that go when the job is deleted."""

    workflow_slug: str
    workflow_name: str
    inputs: list[InputValue]
    error_detail: str | None
    attempts: list[JobAttempt]
    output_metadata: dict[str, Any] | None
    files: list[RunFile]
    deleted_with_it: list[Place]
