"""The admin API: workflows, effects and their files."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from comfyrelay.domain.capabilities import Fit
from comfyrelay.domain.prices.limits import DEFAULT_RUN_SECONDS
from comfyrelay.domain.queue.states import Stage, WorkflowProvider
from comfyrelay.protocol.admin.fields import Immutable, MediaType, Micros, Patch, Slug
from comfyrelay.protocol.base import GRAPH_EXAMPLE, PROPERTY_EXAMPLE, AnswerBody, Page, Request, example
from comfyrelay.protocol.fields import (
    MAX_ID,
    STORABLE,
    Id,
    Json,
    JsonValue,
    Line,
    MaxWait,
    NotEmpty,
    OpenEnum,
    StrictInt,
)
from comfyrelay.protocol.user import PropertyFields
from comfyrelay.text import one_line

Extension = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9]{1,10}$", examples=["mp4"])]
Cost = Annotated[StrictInt, Field(ge=0, le=1_000_000_000)]
PriceFormula = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=STORABLE,
        description="a formula of seconds, frames, megapixels, steps and the keys of number properties",
        examples=["2 + 3 * seconds"],
    ),
]
Price = Annotated[StrictInt, Field(ge=1, le=1_000_000_000_000)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
AssetPath = Annotated[str, Field(min_length=1, max_length=300, pattern=STORABLE)]
Description = Annotated[
    str, Field(min_length=1, max_length=1000, pattern=STORABLE, description="description of the effect for customers")
]
Category = Annotated[
    str,
    Field(min_length=1, max_length=60, pattern=STORABLE, description="the catalogue heading that lists the effect"),
    AfterValidator(one_line),
]
Position = Annotated[StrictInt, Field(ge=0, le=1_000_000, description="effects are listed by position, lowest first")]
MaxRun = Annotated[
    StrictInt, Field(ge=1, le=86_400, description="seconds after which a worker stops a run; the job then fails")
]
PRICES = ("self_hosted_micros_per_second", "cloud_micros_per_second", "burst_micros_per_hour")


class WorkflowProperty(PropertyFields):
    """An input of the workflow. Its value replaces the placeholder in the graph."""

    placeholder: Line
    default_value: JsonValue = None
    default_value_hash: Sha256 | None = None
    user_configurable: bool = False


Properties = Annotated[list[WorkflowProperty], Field(max_length=200)]
KeepLoaded = Annotated[
    bool, Field(description="a ComfyUI that has run this workflow keeps its models loaded and runs no other workflow")
]


class NewCatalogueWorkflow(Request):
    model_config = example(slug="text-to-image", graph=GRAPH_EXAMPLE, properties=[PROPERTY_EXAMPLE], output_node_id="9")

    slug: Slug
    name: Line | None = None
    graph: Annotated[Json, Field(description="in ComfyUI's API format, or a workflow file of ComfyUI's editor")]
    properties: Annotated[Properties | None, Field(description="derived from the graph if absent")] = None
    output_node_id: Line | None = None
    output_extension: Extension | None = None
    output_mime_type: MediaType | None = None
    provider: WorkflowProvider = WorkflowProvider.SELF_HOSTED
    self_hosted_micros_per_second: Micros | None = None
    cloud_micros_per_second: Price | None = None
    burst_micros_per_hour: Micros | None = None
    is_active: bool = True
    keep_loaded: KeepLoaded = False


class WorkflowPatch(Patch):
    model_config = example(is_active=False)

    may_be_null: ClassVar[frozenset[str]] = frozenset({"output_node_id", *PRICES})

    slug: Immutable = None
    name: Line | None = None
    graph: Json | None = None
    properties: Properties | None = None
    output_node_id: Line | None = None
    output_extension: Extension | None = None
    output_mime_type: MediaType | None = None
    provider: WorkflowProvider | None = None
    self_hosted_micros_per_second: Micros | None = None
    cloud_micros_per_second: Price | None = None
    burst_micros_per_hour: Micros | None = None
    is_active: bool | None = None
    keep_loaded: KeepLoaded | None = None


class WorkflowSummary(AnswerBody):
    id: int
    slug: str
    name: str
    tenant_id: str | None
    provider: OpenEnum[WorkflowProvider]
    self_hosted_micros_per_second: int | None = None
    cloud_micros_per_second: int | None = None
    burst_micros_per_hour: int | None = None
    properties: list[dict[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool
    keep_loaded: bool = False
    created_at: datetime
    updated_at: datetime


class WorkflowDetails(WorkflowSummary):
    """A workflow with its graph. `warnings` are probable mistakes that do not prevent jobs."""

    graph: dict[str, Any]
    warnings: list[str]


class WorkflowVersion(AnswerBody):
    """A version of a workflow. Jobs use it from `created_at` until the next version."""

    number: int
    properties: list[dict[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    created_at: datetime


class WorkflowVersionDetails(WorkflowVersion):
    graph: dict[str, Any]


class WorkerCheck(AnswerBody):
    """Whether a worker meets the requirements of a workflow."""

    worker_id: str
    fleet_slug: str
    stage: OpenEnum[Stage]
    fit: OpenEnum[Fit]
    text: str
    missing_node_types: list[str]
    missing_models: list[str]


class WorkflowValidation(AnswerBody):
    """The requirements of a workflow, compared with the reports of its workers."""

    text: str
    node_types: list[str]
    models: list[str]
    assigned_workers: int
    workers: Page[WorkerCheck]


class TestRun(Request):
    """A test run of a workflow. `values` are by property key. With `worker_id`, only this worker gets the job."""

    model_config = example(worker_id="gpu-1", values={"prompt": "a cat in the rain"})

    worker_id: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)] | None = None
    values: Json = Field(default_factory=dict)
    input_file_id: Id | None = None


class StartedTestRun(AnswerBody):
    """The job of a test run, which belongs to the administrator."""

    job_id: str
    only_worker: str | None


class NewAsset(Request):
    model_config = example(mime_type="image/png", size=1048576, original_filename="logo.png")

    mime_type: MediaType
    size: Annotated[StrictInt, Field(ge=1, le=MAX_ID), NotEmpty]
    original_filename: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]


class AssetUpload(AnswerBody):
    """Send the bytes with PUT to `upload_url`, with exactly the headers `upload_headers`. Then use `path` as a default
    value, an override or a preview: saving copies the file to its final path."""

    path: str
    upload_url: str
    upload_headers: dict[str, str]
    expires_at: datetime


class NewEffect(Request):
    model_config = example(slug="rainy-cat", name="Rainy cat", workflow_slug="text-to-image", credits_cost=5)

    slug: Slug
    name: Line | None = None
    workflow_slug: Slug
    property_overrides: Json = Field(default_factory=dict)
    credits_cost: Cost
    price_formula: PriceFormula | None = None
    max_credits_cost: Cost | None = None
    max_wait_seconds: MaxWait | None = None
    max_run_seconds: MaxRun = DEFAULT_RUN_SECONDS
    description: Description | None = None
    category: Category | None = None
    position: Position = 0
    preview_path: AssetPath | None = None
    before_path: AssetPath | None = None
    is_active: bool = True


class EffectPatch(Patch):
    model_config = example(credits_cost=7)

    may_be_null: ClassVar[frozenset[str]] = frozenset(
        {"max_wait_seconds", "price_formula", "max_credits_cost"}
        | {"description", "category", "preview_path", "before_path"}
    )

    slug: Immutable = None
    name: Line | None = None
    workflow_slug: Slug | None = None
    property_overrides: Json | None = None
    credits_cost: Cost | None = None
    price_formula: PriceFormula | None = None
    max_credits_cost: Cost | None = None
    max_wait_seconds: MaxWait | None = None
    max_run_seconds: MaxRun | None = None
    description: Description | None = None
    category: Category | None = None
    position: Position | None = None
    preview_path: AssetPath | None = None
    before_path: AssetPath | None = None
    is_active: bool | None = None


class EffectDetails(AnswerBody):
    """An effect. `preview_path` is an example output, and `before_path` the input from which it was made. `preview_url`
    and `before_url` are temporary URLs of these files. With a `price_formula`, `credits_cost` is the minimum and
    `max_credits_cost` the maximum. Workers stop a run after `max_run_seconds`."""

    id: int
    slug: str
    name: str
    workflow_slug: str
    property_overrides: dict[str, Any]
    credits_cost: int
    price_formula: str | None = None
    max_credits_cost: int | None = None
    max_wait_seconds: int | None = None
    max_run_seconds: int = DEFAULT_RUN_SECONDS
    description: str | None = None
    category: str | None = None
    position: int = 0
    preview_path: str | None = None
    preview_url: str | None = None
    before_path: str | None = None
    before_url: str | None = None
    is_active: bool
    last_processing_time_seconds: float | None
    created_at: datetime
    updated_at: datetime
