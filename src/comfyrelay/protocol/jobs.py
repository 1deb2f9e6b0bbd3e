"""The user API: jobs, batches, files and videos."""

import json
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AnyHttpUrl, Field, model_validator

from comfyrelay.domain.bulk import MOST_IDS, MOST_ITEMS, BulkAction
from comfyrelay.domain.ordering import MoveTo
from comfyrelay.domain.states import (
    TERMINAL_EVENTS,
    TERMINAL_JOB,
    JobEventType,
    JobStatus,
    PauseMode,
    Stage,
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

WebhookUrl = Annotated[AnyHttpUrl, Field(max_length=2000)]


WaitForMissing = Annotated[
    bool, Field(description="accept it though no worker has all that it needs: it waits until one has")
]


class NewUpload(Request):
    model_config = example(mime_type="image/png", size=1048576, original_filename="cat.png")

    mime_type: Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$")]
    size: Annotated[int, Field(ge=1, le=LARGEST_ID)]
    original_filename: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]
    effect_id: RowId | None = None


class File(AnswerBody):
    id: str
    mime_type: str
    size: int | None
    original_filename: str | None
    created_at: datetime


class Upload(AnswerBody):
    """Send the bytes with PUT to `upload_url`, with exactly these headers."""

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
    progress: dict[str, Any] | None
    error: str | None
    effect_id: int | None
    job_id: str | None
    original_file_url: str | None
    processed_file_url: str | None
    created_at: datetime
    updated_at: datetime


class Item(Request):
    """One job's own inputs."""

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
    """What is to be run: an effect, or a workflow of your own."""

    effect_id: RowId | None = None
    workflow_slug: Slug | None = None
    priority: Priority = 0
    webhook_url: WebhookUrl | None = None
    stage: Annotated[Stage | None, Field(description="only for administrators; the server's otherwise")] = None
    max_wait_seconds: MaxWait | None = None
    wait_for_missing: WaitForMissing = False

    @property
    def webhook(self) -> str | None:
        return str(self.webhook_url) if self.webhook_url is not None else None


class NewJob(Submission, Item):
    model_config = example(effect_id=1, idempotency_key="order-4711", input_payload={"prompt": "a cat in the rain"})

    idempotency_key: Key


class NewBatch(Submission):
    model_config = example(
        effect_id=1, label="Cats", items=[{"input_payload": {"prompt": "a cat"}}, {"input_payload": {"prompt": "two"}}]
    )

    items: Annotated[list[Item], Field(min_length=1, max_length=MOST_ITEMS)]
    label: Line | None = None
    idempotency_key: Key | None = None


class Waiting(AnswerBody):
    reason: str
    text: str
    until: datetime | None
    position: int | None
    expected_start_seconds: float | None


class Output(AnswerBody):
    file_id: str
    url: str
    filename: str
    mime_type: str
    size: int | None
    content_hash: str | None


class Job(AnswerBody):
    id: str
    status: OpenEnum[JobStatus]
    effect_id: int | None
    video_id: str | None
    batch_id: str | None
    item_no: int
    label: str | None
    input_file_id: str | None
    seed: int | None
    retry_of: str | None
    priority: int
    progress: dict[str, Any] | None
    attempts: int
    max_attempts: int
    reserved_tokens: int
    max_wait_seconds: int | None = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None
    error: str | None
    waiting: Waiting | None
    outputs: list[Output]
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL_JOB


class JobEvent(AnswerBody):
    """`id` counts the job's events; `progress` has none, because it is not kept."""

    type: OpenEnum[JobEventType]
    data: dict[str, Any]
    id: int | None = None

    @property
    def is_last(self) -> bool:
        return self.type in TERMINAL_EVENTS

    def as_sent(self) -> str:
        """As one server-sent event."""
        number = f"id: {self.id}\n" if self.id is not None else ""
        return f"{number}event: {self.type}\ndata: {json.dumps(self.data)}\n\n"


class Pause(Request):
    """`after` lets what runs finish, `now` interrupts it and puts it back."""

    mode: PauseMode = PauseMode.AFTER


class Retry(Request):
    """`new_seeds` gives every property that is a seed another value."""

    new_seeds: bool = False


class Move(Request):
    model_config = example(to="top")

    to: MoveTo


class LogLine(AnswerBody):
    line: str
    created_at: datetime


class BulkFilter(Request):
    status: JobStatus | None = None
    batch_id: Id | None = None


class BulkRequest(Request):
    """Named jobs, or all that fit the filter; an empty filter fits all."""

    model_config = example(action="cancel", filter={"status": "queued"})

    action: BulkAction
    ids: Annotated[list[Id], Field(min_length=1, max_length=MOST_IDS)] | None = None
    filter: BulkFilter | None = None
    mode: PauseMode = PauseMode.AFTER
    keep_files: Annotated[bool, Field(description="of `delete` on a desk: leave the files in the output folder")] = (
        False
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("Send ids or filter, one of the two.")
        return self


class RefusedJob(AnswerBody):
    id: str
    detail: str


class BulkDone(AnswerBody):
    """`files` is how many were deleted from a desk's output folder; `left` says which could not be, and why."""

    matched: int
    changed: int
    files: int
    left: list[str] = Field(default_factory=list)
    refused: list[RefusedJob]


class Batch(AnswerBody):
    """`counts` has the items by status; a retried item counts as its newest try. `expected_seconds` is how long those
    that are queued or run should take, at the pace of the newest that completed; null when that is not known. `held`
    says why the rest of it is held, if it is: resume it when that is mended."""

    id: str
    label: str | None
    total: int
    done: int
    progress: float
    expected_seconds: float | None
    counts: dict[OpenEnum[JobStatus], int]
    held: str | None = None
    created_at: datetime
