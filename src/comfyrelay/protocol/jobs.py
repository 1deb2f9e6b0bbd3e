"""The user API: jobs, batches and the queue."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AnyHttpUrl, Field, model_validator

from comfyrelay.domain.bulk import MAX_IDS, MAX_ITEMS, BulkAction
from comfyrelay.domain.queue.ordering import MoveTo
from comfyrelay.domain.queue.queue_pause import pause_text
from comfyrelay.domain.queue.states import (
    TERMINAL_EVENTS,
    TERMINAL_JOB,
    CanceledBy,
    JobEventType,
    JobStatus,
    PauseMode,
    Stage,
    UnitStatus,
)
from comfyrelay.protocol.base import AnswerBody, Request, example
from comfyrelay.protocol.fields import (
    MAX_ID,
    MAX_LINE_LENGTH,
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
from comfyrelay.protocol.progress import ReportedProgress

WebhookUrl = Annotated[AnyHttpUrl, Field(max_length=2000)]
WaitForMissing = Annotated[
    bool, Field(description="accept the job although no worker meets its requirements; it waits for such a worker")
]
ExpectedTokens = Annotated[
    int, Field(ge=0, le=MAX_ID, description="the price that you expect; if the price differs, the response is 409")
]
Reuse = Annotated[
    bool,
    Field(
        description="if you have a completed job with equal inputs, complete at once with free copies of its outputs"
    ),
]


class Item(Request):
    """The inputs of one job. `input_payload` contains values by property key. The primary input is `input_file_id` or
    `video_id`."""

    input_payload: Json = Field(default_factory=dict)
    input_file_id: Id | None = None
    video_id: Id | None = None
    label: Line | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.input_file_id is not None and self.video_id is not None:
            raise ValueError("Send `input_file_id` or `video_id`, not both.")
        return self


class Submission(Request):
    """An effect or one of your workflows, and options for its jobs."""

    effect_id: RowId | None = None
    workflow_slug: Slug | None = None
    priority: Priority = 0
    webhook_url: WebhookUrl | None = None
    stage: Annotated[Stage | None, Field(description="only for administrators; by default the stage of the server")] = (
        None
    )
    max_wait_seconds: MaxWait | None = None
    wait_for_missing: WaitForMissing = False
    reuse: Reuse = False


class NewJob(Submission, Item):
    model_config = example(effect_id=1, idempotency_key="order-4711", input_payload={"prompt": "a cat in the rain"})

    idempotency_key: Key
    expected_tokens: ExpectedTokens | None = None


class NewBatchAxis(Request):
    """A list that the items of a batch combine, for display: the name of a field, and the text of each value."""

    key: Line
    name: Line
    values: Annotated[list[Annotated[str, Field(max_length=MAX_LINE_LENGTH, pattern=STORABLE)]], Field(min_length=1)]


class NewBatch(Submission):
    """A batch. `axes` are the lists that were combined into `items`; the last axis varies fastest. They form the grid
    of the outputs."""

    model_config = example(
        effect_id=1, label="Cats", items=[{"input_payload": {"prompt": "a cat"}}, {"input_payload": {"prompt": "two"}}]
    )

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]
    axes: Annotated[list[NewBatchAxis], Field(max_length=12)] = Field(default_factory=list)
    label: Line | None = None
    idempotency_key: Key | None = None
    # The price of all items together.
    expected_tokens: ExpectedTokens | None = None


class JobWaiting(AnswerBody):
    """Why a job waits: `reason` is a code, `text` a sentence for the user. `position` is its place in the queue."""

    reason: str
    text: str
    until: datetime | None
    position: int | None
    expected_start_seconds: float | None


class Output(AnswerBody):
    """An output file of a job. `number` is its number within the job, starting at 1. `poster_url` is a thumbnail,
    `preview_url` a short silent clip of a video; both are null if there is none. `size` is in bytes, `seconds` is the
    duration of a video."""

    file_id: str
    number: int = 1
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
    """A job.

    `item_no` is its position in its batch. `retry_of` and `retried_as` are the jobs before and after a retry, and
    `reused_from` is the job whose output it copied. `is_prefetched`: it is queued, but a worker has fetched its inputs,
    and starts it after its current job. `is_expired`: its outputs were deleted at the end of their retention. `outputs`
    are all its output files, or only the first one in a list of jobs; `output_count` is their number. The first output
    is the main result of the job, or the next output if the main result was deleted. `charged_tokens` is the price that
    was charged: a job that is charged by the second costs less than the reserved price. `again_tokens` is the price of
    a retry of a failed or canceled job, or of another run of a completed job: the current price of its effect; in a
    list of jobs, the price that the job had. Costs in `micros` are millionths of the operator's currency.
    """

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
    progress: ReportedProgress | None
    is_prefetched: bool = False
    cancel_requested_at: datetime | None = None
    canceled_by: OpenEnum[CanceledBy] | None = None
    is_expired: bool = False
    attempts: int
    max_attempts: int
    reserved_tokens: int
    refunded_tokens: int = 0
    again_tokens: int = 0
    charged_tokens: int | None = None
    max_wait_seconds: int | None = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    error: str | None
    waiting: JobWaiting | None
    outputs: list[Output]
    output_count: int = 0
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


class QueueCounts(AnswerBody):
    """Job counts by status. `paused_at` is the time when the queue was paused; null if it is not paused. A paused queue
    holds its `queued` jobs, including jobs that are added later, until it is resumed."""

    counts: dict[OpenEnum[JobStatus], int]
    paused_at: datetime | None = None

    @property
    def held(self) -> int:
        """The number of jobs that a paused queue holds."""
        return 0 if self.paused_at is None else self.counts.get(JobStatus.QUEUED, 0)

    @property
    def pause_text(self) -> str | None:
        """A sentence about the paused queue and the jobs that it holds; `None` if the queue is not paused."""
        return None if self.paused_at is None else pause_text(self.held)


class LiveQueue(QueueCounts):
    """Job counts by status, the running jobs and batches, and the first waiting ones in queue order."""

    running: list[QueueUnit]
    waiting: list[QueueUnit]


class LiveProgress(AnswerBody):
    """The progress of a running job. `expected_seconds` is the expected remaining time, null if unknown."""

    id: str
    progress: ReportedProgress | None
    expected_seconds: float | None


class LiveProgresses(AnswerBody):
    jobs: list[LiveProgress]


class JobEvent(AnswerBody):
    """An event of a job. `id` numbers the events of the job; `progress` events are not stored and have no id."""

    type: OpenEnum[JobEventType]
    data: dict[str, Any]
    id: int | None = None

    @property
    def is_last(self) -> bool:
        return self.type in TERMINAL_EVENTS


class Pause(Request):
    """Pause a job, a batch or the queue. With `after`, running jobs finish; with `now`, they are interrupted and
    requeued."""

    mode: PauseMode = PauseMode.AFTER


class Retry(Request):
    """Run a job again. `new_seeds` draws new values for all seeds."""

    new_seeds: bool = False


class JobRetry(Retry):
    expected_tokens: ExpectedTokens | None = None


class MoveRequest(Request):
    """Move a waiting job or batch: to an end of the queue, by one place, or before or after another job or batch."""

    model_config = example(to="top")

    to: MoveTo | None = None
    before: Id | None = None
    after: Id | None = None

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if (self.to, self.before, self.after).count(None) != 2:
            raise ValueError("Send exactly one of `to`, `before` and `after`.")
        return self


class LogLine(AnswerBody):
    line: str
    created_at: datetime


class BulkFilter(Request):
    """Filters of the job list."""

    status: JobStatus | Literal[UnitStatus.RUNNING, UnitStatus.WAITING] | None = None
    batch_id: Id | None = None
    workflow: Slug | None = None
    q: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    in_queue: Annotated[bool, Field(description="omit jobs that were cleared from the queue")] = False


class ClearQueue(Request):
    model_config = example(status=["completed", "canceled"])

    status: Annotated[
        list[Literal[UnitStatus.COMPLETED, UnitStatus.FAILED, UnitStatus.CANCELED]], Field(min_length=1, max_length=3)
    ]
    dry_run: Annotated[bool, Field(description="only count, change nothing")] = False


class QueueCleared(AnswerBody):
    """`found` counts the ended jobs of the queue page by status. A batch is cleared only if all statuses of its jobs
    are chosen. `cleared` is the number of jobs that were removed from the page, or would be removed without
    `dry_run`."""

    found: dict[OpenEnum[UnitStatus], int]
    cleared: int


class BulkRequest(Request):
    """An action on the jobs with these ids, or on all jobs that match the filter. An empty filter matches all jobs."""

    model_config = example(action="cancel", filter={"status": "queued"})

    action: BulkAction
    ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_IDS)] | None = None
    filter: BulkFilter | None = None
    mode: PauseMode = PauseMode.AFTER
    priority: Annotated[Priority | None, Field(description="only for the action `priority`: the new priority")] = None
    to: Annotated[
        Literal["top", "bottom"] | None, Field(description="only for the action `move`: the end of the queue")
    ] = None
    keep_files: Annotated[
        bool, Field(description="only for the action `delete` on a desk: keep the files in the output folder")
    ] = False
    dry_run: Annotated[bool, Field(description="change nothing; `matched` is the number of jobs")] = False
    as_of: Annotated[str, Field(max_length=40, pattern=r"^[0-9]+-[0-9]+$")] | None = Field(
        default=None, description="`as_of` of a dry run: omit jobs that began to match the filter after that time"
    )

    @model_validator(mode="after")
    def _check_selection(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("Send either `ids` or `filter`.")
        if (self.action is BulkAction.PRIORITY) != (self.priority is not None):
            raise ValueError("Send `priority` with the action `priority`, and with no other action.")
        if (self.action is BulkAction.MOVE) != (self.to is not None):
            raise ValueError("Send `to` with the action `move`, and with no other action.")
        return self


class Batch(AnswerBody):
    """A batch of jobs. `counts` are its items by status; a retried item counts as its newest job, and a prefetched item
    as queued. `expected_seconds` is the expected time until all items have ended, including the jobs ahead of them;
    null if unknown, or while the queue is paused. `held` is the reason why the rest of the batch is paused, or null;
    resume the batch when the cause is fixed."""

    id: str
    label: str | None
    total: int
    done: int
    progress: float
    expected_seconds: float | None
    counts: dict[OpenEnum[JobStatus], int]
    held: str | None = None
    created_at: datetime


class GridAxis(AnswerBody):
    """A list that the items of a batch combine. `key` is the key of a field, or `input`, `tries` or `pairs`."""

    key: str
    name: str
    values: list[str]


class SweepGrid(AnswerBody):
    """The outputs of a batch by its axes. `cells` contains the id of an output, or null, for each item in item order:
    the last axis varies fastest. Both lists are empty if the batch combines no lists."""

    axes: list[GridAxis]
    cells: list[str | None]


class LiveChanges(AnswerBody):
    """Changed jobs and batches, and the ids of deleted jobs and batches."""

    jobs: list[Job]
    batches: list[Batch]
    removed: list[str]


class LiveGallery(AnswerBody):
    """`outputs` are the ids of the outputs whose star, rejection, note or collections changed. With `is_all`, any
    output may have changed. If `outputs` is empty and `is_all` false, only the list of collections changed."""

    outputs: list[str]
    is_all: bool


class QueueItem(AnswerBody):
    """An item of a batch. A retried item is shown as its newest job."""

    id: str
    item_no: int
    status: OpenEnum[JobStatus]
    error: str | None = None
    poster_url: str | None
    preview_url: str | None
    input_poster_url: str | None


class QueueEntry(AnswerBody):
    """A batch, or a job without a batch.

    The `status` of a batch that has ended is the worst status of its items. `first_label` is the label of the first
    item, which distinguishes batches with the same label. `kind` is the media type of the outputs, `matched` the number
    of jobs that match the filter. `fetched` is the number of waiting jobs that a worker has prefetched; they can no
    longer be moved. `items` are the first items of a batch, and `next_cursor` returns more. The `error` of a batch is
    the error of its last failed item. `took_seconds` is the time between the first start and the end. `retried_as` is
    the retry of a job.
    """

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
    took_seconds: float | None = None
    error: str | None
    retried_as: str | None
    items: list[QueueItem]
    next_cursor: str | None
