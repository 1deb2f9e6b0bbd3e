"""The user API: jobs, batches, files and videos."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AnyHttpUrl, Field, model_validator

from comfyrelay.domain.bulk import MAX_IDS, MAX_ITEMS, BulkAction
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.states import (
    TERMINAL_EVENTS,
    TERMINAL_JOB,
    CanceledBy,
    JobEventType,
    JobStatus,
    PauseMode,
    Stage,
    UnitStatus,
    VideoStatus,
)
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import (
    LARGEST_ID,
    STORABLE,
    Id,
    Json,
    Key,
    Line,
    MaxWait,
    OpenEnum,
    Priority,
    RowId,
    Slug,
)
from comfyrelay.protocol.progress import ToldProgress
from comfyrelay.text import one_line

WebhookUrl = Annotated[AnyHttpUrl, Field(max_length=2000)]


WaitForMissing = Annotated[
    bool, Field(description="accept it although no worker meets its requirements: it waits until one does")
]


ExpectedTokens = Annotated[
    int, Field(ge=0, le=LARGEST_ID, description="the price that you expect; 409 if it is different")
]


Reuse = Annotated[
    bool,
    Field(
        description="if an equal job of yours has completed, complete this one at once with a copy of its output, "
        "at no cost"
    ),
]


class NewUpload(Request):
    model_config = example(mime_type="image/png", size=1048576, original_filename="cat.png")

    mime_type: Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$")]
    size: Annotated[int, Field(ge=1, le=LARGEST_ID)]
    original_filename: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE), AfterValidator(one_line)]
    effect_id: RowId | None = None


class File(AnswerBody):
    id: str
    mime_type: str
    size: int | None
    original_filename: str | None
    created_at: datetime


class FileDetails(File):
    """With a temporary URL, and its dimensions and duration."""

    url: str
    poster_url: str | None
    width: int | None
    height: int | None
    seconds: float | None


class Upload(AnswerBody):
    """PUT the bytes to `upload_url` with exactly these headers."""

    file: File
    upload_url: str
    upload_headers: dict[str, str]
    expires_at: datetime


class NewVideo(Request):
    model_config = example(original_file_id="01JA2B3C4D5E6F7G8H9J0KMNPQ", title="My cat")

    original_file_id: Id
    effect_id: RowId | None = None
    title: Line | None = None


class Video(AnswerBody):
    id: str
    title: str | None
    status: OpenEnum[VideoStatus]
    progress: ToldProgress | None
    error: str | None
    effect_id: int | None
    job_id: str | None
    original_file_url: str | None
    processed_file_url: str | None
    created_at: datetime
    updated_at: datetime


class Item(Request):
    """The inputs of one job."""

    input_payload: Json = Field(default_factory=dict)
    input_file_id: Id | None = None
    video_id: Id | None = None
    label: Line | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.input_file_id is not None and self.video_id is not None:
            raise ValueError("Send input_file_id or video_id, not both.")
        return self


class Submission(Request):
    """An effect, or your own workflow, and how to run it."""

    effect_id: RowId | None = None
    workflow_slug: Slug | None = None
    priority: Priority = 0
    webhook_url: WebhookUrl | None = None
    stage: Annotated[Stage | None, Field(description="for administrators; otherwise the server's stage")] = None
    max_wait_seconds: MaxWait | None = None
    wait_for_missing: WaitForMissing = False
    reuse: Reuse = False


class NewJob(Submission, Item):
    model_config = example(effect_id=1, idempotency_key="order-4711", input_payload={"prompt": "a cat in the rain"})

    idempotency_key: Key
    expected_tokens: ExpectedTokens | None = None


class NewBatch(Submission):
    model_config = example(
        effect_id=1, label="Cats", items=[{"input_payload": {"prompt": "a cat"}}, {"input_payload": {"prompt": "two"}}]
    )

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]
    label: Line | None = None
    idempotency_key: Key | None = None


class JobWaiting(AnswerBody):
    reason: str
    text: str
    until: datetime | None
    position: int | None
    expected_start_seconds: float | None


class Output(AnswerBody):
    """`poster_url` is a thumbnail, `preview_url` a short silent clip of a video; null if there is none."""

    file_id: str
    url: str
    filename: str
    mime_type: str
    size: int | None
    content_hash: str | None
    poster_url: str | None = None
    preview_url: str | None = None
    width: int | None = None
    height: int | None = None
    seconds: float | None = None


class JobInput(AnswerBody):
    """The input file of a job."""

    url: str
    mime_type: str | None
    name: str | None
    poster_url: str | None = None


class Job(AnswerBody):
    """`is_prefetched`: a worker has prefetched it, and starts it after its current job. `is_expired`: the retention of
    its outputs has ended. `again_tokens` is the price of running it again."""

    id: str
    status: OpenEnum[JobStatus]
    effect_id: int | None
    workflow_slug: str | None = None
    workflow_name: str | None = None
    prompt: str | None = None
    input: JobInput | None = None
    video_id: str | None
    batch_id: str | None
    item_no: int
    label: str | None
    input_file_id: str | None
    seed: int | None
    retry_of: str | None
    retried_as: str | None = None
    reused_from: str | None = None
    priority: int
    progress: ToldProgress | None
    is_prefetched: bool = False
    cancel_requested_at: datetime | None = None
    canceled_by: OpenEnum[CanceledBy] | None = None
    is_expired: bool = False
    attempts: int
    max_attempts: int
    reserved_tokens: int
    refunded_tokens: int = 0
    again_tokens: int = 0
    max_wait_seconds: int | None = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    error: str | None
    waiting: JobWaiting | None
    outputs: list[Output]
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL_JOB


class QueueUnit(AnswerBody):
    """A batch, or a job without a batch."""

    id: str
    is_batch: bool


class LiveQueue(AnswerBody):
    """Job counts by status, the running units, and the first waiting units in queue order."""

    counts: dict[OpenEnum[JobStatus], int]
    running: list[QueueUnit]
    waiting: list[QueueUnit]


class QueueCounts(AnswerBody):
    """Job counts by status."""

    counts: dict[OpenEnum[JobStatus], int]


class LiveProgress(AnswerBody):
    """The progress of a running job, and its expected remaining seconds, null if unknown."""

    id: str
    progress: ToldProgress | None
    expected_seconds: float | None


class LiveProgresses(AnswerBody):
    jobs: list[LiveProgress]


class JobEvent(AnswerBody):
    """`id` numbers the events of the job; `progress` events are not stored and have none."""

    type: OpenEnum[JobEventType]
    data: dict[str, Any]
    id: int | None = None

    @property
    def is_last(self) -> bool:
        return self.type in TERMINAL_EVENTS


class Pause(Request):
    """`after` lets a running job finish, `now` interrupts and requeues it."""

    mode: PauseMode = PauseMode.AFTER


class Retry(Request):
    """`new_seeds` draws new values for all seed properties."""

    new_seeds: bool = False


class JobRetry(Retry):
    expected_tokens: ExpectedTokens | None = None


class MoveRequest(Request):
    """Move to an end, by one place, or before or after another waiting job or batch."""

    model_config = example(to="top")

    to: MoveTo | None = None
    before: Id | None = None
    after: Id | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(each is not None for each in (self.to, self.before, self.after)) != 1:
            raise ValueError("Send to, before or after, one of the three.")
        return self


class LogLine(AnswerBody):
    line: str
    created_at: datetime


class BulkFilter(Request):
    """The filters of the job list. `waiting` means queued, or prefetched by a worker."""

    status: JobStatus | Literal[UnitStatus.RUNNING, UnitStatus.WAITING] | None = None
    batch_id: Id | None = None
    workflow: Slug | None = None
    q: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    in_queue: Annotated[bool, Field(description="without jobs that were cleared from the queue")] = False


class ClearQueue(Request):
    model_config = example(status=["completed", "canceled"])

    status: Annotated[
        list[Literal[UnitStatus.COMPLETED, UnitStatus.FAILED, UnitStatus.CANCELED]], Field(min_length=1, max_length=3)
    ]
    dry_run: Annotated[bool, Field(description="change nothing, only count")] = False


class QueueCleared(AnswerBody):
    """`found` counts jobs by the outcome of their unit; `cleared` is how many were hidden."""

    found: dict[OpenEnum[UnitStatus], int]
    cleared: int


class BulkRequest(Request):
    """Jobs by id, or all that match the filter; an empty filter matches all."""

    model_config = example(action="cancel", filter={"status": "queued"})

    action: BulkAction
    ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_IDS)] | None = None
    filter: BulkFilter | None = None
    mode: PauseMode = PauseMode.AFTER
    priority: Annotated[Priority | None, Field(description="for `priority`: the new one")] = None
    to: Annotated[Literal["top", "bottom"] | None, Field(description="for `move`: where to")] = None
    keep_files: Annotated[
        bool, Field(description="for the action `delete` on a desk: leave the files in the output folder")
    ] = False

    dry_run: Annotated[bool, Field(description="change nothing; `matched` is the number of jobs")] = False
    as_of: Annotated[str, Field(max_length=40, pattern=r"^[0-9]+-[0-9]+$")] | None = Field(
        default=None, description="from a dry run: jobs that match the filter only since then are left out"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("Send ids or filter, one of the two.")
        if (self.action is BulkAction.PRIORITY) != (self.priority is not None):
            raise ValueError("Send priority with the action priority, and with no other.")
        if (self.action is BulkAction.MOVE) != (self.to is not None):
            raise ValueError("Send to with the action move, and with no other.")
        return self


class Batch(AnswerBody):
    """`counts` has the items by status; a retried item counts as its newest attempt. `expected_seconds` is the expected
    time for queued and running items, at the pace of the newest completed ones; null if unknown. `held` is why the rest
    of the batch is held, if it is: resume it when the cause is fixed."""

    id: str
    label: str | None
    total: int
    done: int
    progress: float
    expected_seconds: float | None
    counts: dict[OpenEnum[JobStatus], int]
    held: str | None = None
    created_at: datetime


class LiveChanges(AnswerBody):
    """Changed jobs and batches, and the ids of deleted ones."""

    jobs: list[Job]
    batches: list[Batch]
    removed: list[str]


class LiveGallery(AnswerBody):
    """The outputs whose stars, rejects, notes or collections changed. With `is_all`, any of them may have; with
    neither, only the list of collections changed."""

    outputs: list[str]
    is_all: bool


class QueueItem(AnswerBody):
    """An item of a batch, as its newest attempt."""

    id: str
    item_no: int
    status: OpenEnum[JobStatus]
    poster_url: str | None
    preview_url: str | None
    input_poster_url: str | None


class QueueEntry(AnswerBody):
    """A batch, or a job without a batch. `status` is that of the unit: for a batch that has ended, the worst of its
    items. `first_label` distinguishes batches with the same label, `kind` is the media type of the outputs, `matched`
    the number of jobs that match the filter. `fetched` jobs are waiting but prefetched by a worker, and can no longer
    be moved. `items` are the first items of a batch; `next_cursor` returns the others. `retried_as` is the retry of a
    job."""

    id: str
    is_batch: bool
    label: str | None
    first_label: str | None
    workflow_slug: str | None
    workflow_name: str | None
    kind: str | None
    status: OpenEnum[UnitStatus]
    total: int
    matched: int
    counts: dict[OpenEnum[JobStatus], int]
    fetched: int
    held: str | None
    expected_seconds: float | None
    starts_in_seconds: float | None
    waiting_text: str | None
    waiting_reason: str | None
    priority: int
    created_at: datetime
    ended_at: datetime | None
    error: str | None
    retried_as: str | None
    items: list[QueueItem]
    next_cursor: str | None
