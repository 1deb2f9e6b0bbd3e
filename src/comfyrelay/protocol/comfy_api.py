"""Bodies of the Comfy API v2, which the SDKs of Comfy Org speak. Comfy Org defines the contract and the names of
fields."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from comfyrelay.protocol.base import DEFERRED, GRAPH_EXAMPLE, AnswerBody, SentBody, example
from comfyrelay.protocol.fields import Json, Priority
from comfyrelay.protocol.jobs import WebhookUrl

__all__ = [
    "MAX_LABELS",
    "MAX_LABEL_KEY_LENGTH",
    "MAX_LABEL_LENGTH",
    "ComfyAsset",
    "ComfyHealth",
    "ComfyJob",
    "ComfyJobError",
    "ComfyJobItem",
    "ComfyJobPage",
    "ComfyJobUrls",
    "ComfyOutput",
    "ComfyPreviewEvent",
    "ComfyProblem",
    "ComfyProblemDetail",
    "ComfyProgress",
    "ComfyStatus",
    "ComfyStatusEvent",
    "ComfyWorkflow",
    "NewComfyAssetFromHash",
    "NewComfyJob",
    "OutputType",
]

MAX_LABELS = 16
MAX_LABEL_KEY_LENGTH, MAX_LABEL_LENGTH = 64, 512
ComfyStatus = Literal["queued", "running", "succeeded", "canceling", "canceled", "failed", "expired"]
OutputType = Literal["image", "video", "audio", "text", "file", "latent"]


class NewComfyJob(SentBody):
    """A graph to run. `workflow` is in ComfyUI's API format, or a file of its editor.

    Extensions of ComfyRelay: `priority` and `webhook_url` as in its own API, and `inputs`, which sets values by
    property (`prompt`) or by node and input (`6.text`).
    """

    model_config = ConfigDict(**DEFERRED, **example(workflow=GRAPH_EXAMPLE), extra="ignore", frozen=True)

    workflow: Json
    extra_data: Json | None = None
    metadata: Annotated[
        Json | None,
        Field(
            default=None,
            description=f"labels: at most {MAX_LABELS} texts, by which lists of jobs can be filtered",
        ),
    ]
    priority: Priority = 0
    webhook_url: WebhookUrl | None = None
    inputs: Json | None = None


class NewComfyAssetFromHash(SentBody):
    """The hash of a file that you have already uploaded."""

    model_config = ConfigDict(**DEFERRED, **example(hash=f"blake3:{'0' * 64}"), extra="ignore", frozen=True)

    hash: Annotated[str, Field(max_length=200)]


class ComfyAsset(AnswerBody):
    """An upload, or an output of a job. `url` works until `url_expires_at`. `expires_at` is the time at which an upload
    that no job has used is deleted."""

    id: str
    hash: str | None
    size_bytes: int
    content_type: str
    file_path: str | None = None
    created_new: bool | None = None
    created_at: datetime
    url: str
    url_expires_at: datetime
    expires_at: datetime | None = None
    job_id: str | None = None

    @model_serializer(mode="wrap")
    def _without_unknown(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The contract allows no null for a file that was not just created."""
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name != "created_new" or value is not None}


class ComfyOutput(AnswerBody):
    """An output of a job. `id` is the id of its asset."""

    node_id: str
    name: str
    type: OutputType
    content_type: str
    size_bytes: int
    id: str
    hash: str | None = None
    url: str
    url_expires_at: datetime
    job_id: str | None = None


class ComfyProgress(AnswerBody):
    value: Annotated[float, Field(ge=0, le=1)]
    nodes_done: int = 0
    nodes_total: int = 0
    current_node: str | None = None
    current_node_class: str | None = None
    step: int | None = None
    steps: int | None = None
    message: str | None = None


class ComfyJobError(AnswerBody):
    code: str
    message: str
    node_id: str | None = None
    class_type: str | None = None
    traceback: str | None = None


class ComfyJobUrls(AnswerBody):
    """Links of a job, relative to the host."""

    self: str
    events: str
    cancel: str


class ComfyJob(AnswerBody):
    """A job. `metadata` are its labels."""

    id: str
    status: ComfyStatus
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    expires_at: datetime
    queue_position: int | None
    progress: ComfyProgress | None
    outputs: list[ComfyOutput]
    error: ComfyJobError | None
    metadata: dict[str, str]
    metrics: dict[str, int | None]
    urls: ComfyJobUrls


class ComfyJobItem(AnswerBody):
    """A job in a list."""

    id: str
    status: ComfyStatus
    create_time: datetime
    update_time: datetime
    metadata: dict[str, str]


class ComfyJobPage(AnswerBody):
    """A page of jobs. The last page has no `next_cursor`."""

    jobs: list[ComfyJobItem]
    next_cursor: str | None = None


class ComfyWorkflow(AnswerBody):
    """The graph that a job runs."""

    workflow: dict[str, Any]
    format: Literal["api"] = "api"


class ComfyStatusEvent(AnswerBody):
    """The data of a `status` event."""

    status: ComfyStatus
    queue_position: int | None = None


class ComfyPreviewEvent(AnswerBody):
    """The data of a `preview` event."""

    node_id: str
    content_type: str
    data_base64: str


class ComfyHealth(AnswerBody):
    status: Literal["healthy"] = "healthy"


class ComfyProblemDetail(AnswerBody):
    code: str
    message: str
    details: dict[str, Any] | None = None


class ComfyProblem(AnswerBody):
    """The body of every error of this API."""

    error: ComfyProblemDetail
