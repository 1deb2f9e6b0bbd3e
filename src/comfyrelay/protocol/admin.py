"""The admin API: the catalogue, fleets, workers, the queue, and tenants."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.json_schema import SkipJsonSchema

from comfyrelay.domain.capabilities import Fit
from comfyrelay.domain.deliveries import DeliveryState
from comfyrelay.domain.properties import PropertyType, Role
from comfyrelay.domain.queue.states import DispatchStatus, Provider, Stage, WorkerState, WorkflowProvider
from comfyrelay.domain.queue.wait_reasons import Reason
from comfyrelay.protocol.autoscaling import FleetMachines, FleetMachinesDetails, FleetScaling, FleetScalingDetails
from comfyrelay.protocol.base import GRAPH_EXAMPLE, PROPERTY_EXAMPLE, AnswerBody, Page, Request, example
from comfyrelay.protocol.fields import (
    LARGEST_ID,
    STORABLE,
    Email,
    Id,
    Json,
    JsonValue,
    Line,
    MaxWait,
    Number,
    OpenEnum,
    PropertyKey,
    Reported,
    Whole,
)
from comfyrelay.protocol.progress import ToldProgress


def _refuse_change(_value: object) -> None:
    raise ValueError("This never changes. Make a new one instead.")


def _refuse_mapping(_value: object) -> None:
    raise ValueError("Workflows are mapped by PUT /api/admin/fleets/{stage}/{slug}/workflows.")


Slug = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", examples=["face-swap"])]
Extension = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9]{1,10}$", examples=["mp4"])]
MediaType = Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$", examples=["video/mp4"])]
# Told apart from a field that nobody knows, so that the answer can say why.
Unchanging = SkipJsonSchema[Annotated[None, BeforeValidator(_refuse_change)]]
MappedElsewhere = SkipJsonSchema[Annotated[None, BeforeValidator(_refuse_mapping)]]
Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Cost = Annotated[Whole, Field(ge=0, le=1_000_000_000)]
Tokens = Annotated[Whole, Field(ge=1, le=1_000_000_000_000)]
WorkerLimit = Annotated[Whole, Field(ge=0, le=1_000_000)]
Priority = Annotated[Whole, Field(ge=-1_000_000, le=1_000_000)]
# Money: millionths of the currency that the operator counts in, so that nothing is rounded away.
Micros = Annotated[Whole, Field(ge=0, le=1_000_000_000_000_000)]
Price = Annotated[Whole, Field(ge=1, le=1_000_000_000_000)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
AssetPath = Annotated[str, Field(min_length=1, max_length=300, pattern=STORABLE)]
Scalar = str | bool | Number


class Patch(Request):
    """What is not sent stays as it is."""

    may_be_null: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*")
    @classmethod
    def _not_null(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name not in cls.may_be_null:
            raise ValueError("This cannot be null. Leave it out to keep it as it is.")
        return value

    def changes(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


PRICES = ("self_hosted_micros_per_second", "cloud_micros_per_second", "burst_micros_per_hour")


class WorkflowProperty(Request):
    """A named input of a workflow: its value takes the place of the placeholder."""

    key: PropertyKey
    type: PropertyType
    placeholder: Line
    default_value: JsonValue = None
    default_value_hash: Sha256 | None = None
    required: bool = False
    user_configurable: bool = False
    is_primary_input: bool = False
    choices: list[Annotated[Scalar, Field()]] = Field(default_factory=list, max_length=1000)
    minimum: Number | None = None
    maximum: Number | None = None
    step: Number | None = None
    is_whole: bool = False
    role: Role | None = None
    scaled_from: PropertyKey | None = None
    label: Line | None = None
    group: Line | None = None


Properties = Annotated[list[WorkflowProperty], Field(max_length=200)]


KeepLoaded = Annotated[
    bool, Field(description="the ComfyUI that runs it keeps its models, and leaves other workflows to others")
]


class NewCatalogueWorkflow(Request):
    model_config = example(slug="text-to-image", graph=GRAPH_EXAMPLE, properties=[PROPERTY_EXAMPLE], output_node_id="9")

    slug: Slug
    name: Line | None = None
    graph: Annotated[Json, Field(description="in ComfyUI's API format, or as ComfyUI's editor saves it")]
    properties: Annotated[Properties | None, Field(description="found out where they are not given")] = None
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

    slug: Unchanging = None
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
    """`warnings` tell what is probably a mistake, though it can be run."""

    graph: dict[str, Any]
    warnings: list[str]


class WorkerCheck(AnswerBody):
    worker_id: str
    fleet_slug: str
    stage: OpenEnum[Stage]
    fit: OpenEnum[Fit]
    text: str
    missing_node_types: list[str]
    missing_models: list[str]


class Validated(AnswerBody):
    """What a workflow needs, and which of the workers that have it lack something of that."""

    text: str
    node_types: list[str]
    models: list[str]
    assigned_workers: int
    workers: Page[WorkerCheck]


class NewAsset(Request):
    model_config = example(mime_type="image/png", size=1048576, original_filename="logo.png")

    mime_type: MediaType
    size: Annotated[Whole, Field(ge=1, le=LARGEST_ID)]
    original_filename: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]


class AssetUpload(AnswerBody):
    """Send the bytes with PUT to `upload_url`, with exactly these headers; then name `path` where a file is wanted."""

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
    max_wait_seconds: MaxWait | None = None
    preview_path: AssetPath | None = None
    is_active: bool = True


class EffectPatch(Patch):
    model_config = example(credits_cost=7)

    may_be_null: ClassVar[frozenset[str]] = frozenset({"max_wait_seconds", "preview_path"})

    slug: Unchanging = None
    name: Line | None = None
    workflow_slug: Slug | None = None
    property_overrides: Json | None = None
    credits_cost: Cost | None = None
    max_wait_seconds: MaxWait | None = None
    preview_path: AssetPath | None = None
    is_active: bool | None = None


class EffectDetails(AnswerBody):
    """`preview_url` shows what it makes, for a while; both are null without a picture."""

    id: int
    slug: str
    name: str
    workflow_slug: str
    property_overrides: dict[str, Any]
    credits_cost: int
    max_wait_seconds: int | None = None
    preview_path: str | None = None
    preview_url: str | None = None
    is_active: bool
    last_processing_time_seconds: float | None
    created_at: datetime
    updated_at: datetime


class NewFleet(Request):
    """Without `max_workers` the server's own limit holds."""

    model_config = example(slug="home", max_workers=10, workflow_slugs=["text-to-image"])

    slug: Slug
    stage: Stage = Stage.PRODUCTION
    name: Line | None = None
    max_workers: WorkerLimit | None = None
    machines: FleetMachines | None = None
    scaling: FleetScaling | None = None
    workflow_slugs: list[Slug] = Field(default_factory=list, max_length=1000)
    force: Annotated[bool, Field(description="map workflows also where something is missing for them")] = False


class FleetPatch(Patch):
    model_config = example(max_workers=20)

    may_be_null: ClassVar[frozenset[str]] = frozenset({"max_workers", "machines", "scaling"})

    slug: Unchanging = None
    stage: Unchanging = None
    workflow_slugs: MappedElsewhere = None
    name: Line | None = None
    max_workers: WorkerLimit | None = None
    machines: FleetMachines | None = None
    scaling: FleetScaling | None = None


class FleetMapping(Request):
    model_config = example(workflow_slugs=["text-to-image", "face-swap"])

    workflow_slugs: list[Slug] = Field(max_length=1000)
    force: Annotated[bool, Field(description="also where something is missing for them")] = False


class Fleet(AnswerBody):
    """`machines` and `scaling` are null where nobody has said anything of them."""

    id: int
    slug: str
    stage: OpenEnum[Stage]
    name: str
    max_workers: int | None
    machines: FleetMachinesDetails | None = None
    scaling: FleetScalingDetails | None = None
    workflow_slugs: list[str]
    workers: int
    created_at: datetime


class QueueMetrics(AnswerBody):
    """`completed`, `failed` and the mean are of the last hour."""

    queued: int
    oldest_age_seconds: float | None
    completed: int
    failed: int
    mean_duration_seconds: float | None


class WorkflowMetrics(QueueMetrics):
    workflow_slug: str


class FleetMetrics(QueueMetrics):
    workers: dict[OpenEnum[WorkerState], int]
    leases: int
    workflows: list[WorkflowMetrics]


class Gpu(AnswerBody):
    """A ComfyUI with its GPU, by the name that `progress.server` has. Memory is in bytes, `load` goes from 0 to 1.
    `on_gpu` is how many ComfyUI share it, `packing` why as many; `away` why it cannot be used."""

    server: str | None = None
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    load: float | None = None
    slots: int | None = None
    on_gpu: int | None = None
    packing: str | None = None
    away: str | None = None


class WorkerJob(AnswerBody):
    """What a worker has; with `is_prefetch` it may not have begun it."""

    dispatch_id: int
    job_id: str
    tenant_id: str
    workflow_slug: str
    leased_at: datetime
    is_prefetch: bool
    progress: Annotated[ToldProgress | None, Reported]


class WorkerSummary(AnswerBody):
    """`blocked` is how many workflows it is kept from at the moment."""

    worker_id: str
    display_name: str | None
    fleet_slug: str
    stage: OpenEnum[Stage]
    state: OpenEnum[WorkerState]
    leases: int
    max_concurrency: int
    is_approved: bool
    is_draining: bool
    registration_source: str
    capacity_type: str | None
    instance_type: str | None
    protocol: int = 1
    version: str | None = None
    last_seen_at: datetime
    created_at: datetime
    blocked: int = 0
    gpus: list[Gpu] = Field(default_factory=list)
    jobs: list[WorkerJob] = Field(default_factory=list)


class WorkerPage(Page[WorkerSummary]):
    """`counts` is how many there are in each state, among those that the other filters leave."""

    counts: dict[str, int]


class WorkflowBlock(AnswerBody):
    """`workflow_slug` is null where it is not known any more which workflow it was."""

    workflow_hash: str
    workflow_slug: str | None = None
    failure_count: int
    blocked_until: datetime | None


class Loaded(AnswerBody):
    """A workflow that a worker has in memory."""

    workflow_hash: str
    workflow_slug: str | None


class Lack(AnswerBody):
    """What a worker lacks of what jobs of a workflow need: it is not given them."""

    workflow_hash: str
    workflow_slug: str | None
    node_types: list[str]
    models: list[str]


class Registration(AnswerBody):
    """`proof` is what it registered with: `secret`, `identity_document` or `desk`. `decision` is `approve` or `revoke`,
    of the last who decided about it; null when nobody has."""

    proof: str
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None


class WorkerMachine(AnswerBody):
    """The machine that was ordered for it."""

    key: str
    provider_id: str | None
    instance_type: str | None
    price_per_hour: float | None
    ordered_at: datetime
    launched_at: datetime | None
    registered_at: datetime | None
    ending_at: datetime | None
    ended_at: datetime | None
    reason: str | None


class WorkerDetails(WorkerSummary):
    workflow_slugs: list[str]
    blocks: list[WorkflowBlock]
    loaded: list[Loaded]
    lacks: list[Lack]
    registration: Registration
    machine: WorkerMachine | None
    capabilities: Annotated[dict[str, Any], Reported]


class WorkerLogs(AnswerBody):
    """The last lines of a worker's log, oldest first, each an object of JSON as a text. While `received_at` is null it
    was asked, and answers `within_seconds`, if it is there and not older than this server."""

    worker_id: str
    lines: list[str]
    received_at: datetime | None
    within_seconds: float


class RotatedToken(AnswerBody):
    """The token is shown this once."""

    worker_id: str
    token: str


class AuditEntry(AnswerBody):
    id: int
    created_at: datetime
    worker_id: str
    event: str
    dispatch_id: int | None
    data: Annotated[dict[str, Any] | None, Reported]


class DispatchAttempt(AnswerBody):
    """A lease of a dispatch: who had it, from when to when, and what came of it. `attempt` counts those that were not
    given back without penalty; `cost` is what it cost of its machine, once it was counted."""

    epoch: int
    attempt: int
    worker_id: str
    leased_at: datetime
    ended_at: datetime | None
    outcome: str | None
    ended_by: str | None
    reason: str | None
    status_after: str | None
    cost: float | None


class DispatchAudit(AnswerBody):
    """`attempts` are the newest 200, newest first, `entries` what was written down of it."""

    attempts: list[DispatchAttempt]
    entries: Page[AuditEntry]


class DispatchSummary(AnswerBody):
    """`worker_id` holds the lease, `last_worker_id` held the newest one. A lease's token is its holder's alone."""

    id: int
    status: OpenEnum[DispatchStatus]
    stage: OpenEnum[Stage]
    provider: OpenEnum[Provider]
    tenant_id: str
    job_id: str
    batch_id: str | None
    workflow_slug: str
    workflow_hash: str
    effect_id: int | None
    priority: int
    attempts: int
    max_attempts: int
    worker_id: str | None
    last_worker_id: str | None
    progress: Annotated[ToldProgress | None, Reported]
    last_error: str | None
    cancel_requested_at: datetime | None
    pause_requested_at: datetime | None
    available_at: datetime
    created_at: datetime
    leased_at: datetime | None
    lease_expires_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    # what its leases cost of their machines; counted within a minute or two of the end of each
    machine_cost: float | None
    max_wait_seconds: int | None = None
    cost_micros: int = 0
    expected_cost_micros: int | None = None


class Usage(AnswerBody):
    """`name` is the slug of the fleet or workflow, or the id of the tenant. `cost` is that of busy and lost seconds;
    `machine_cost` is all that a fleet's machines cost. What only machines have is null where there are none to tell of.
    """

    name: str
    stage: OpenEnum[Stage] | None
    jobs: int
    busy_seconds: float
    lost_seconds: float
    cost: float
    idle_seconds: float | None
    boot_seconds: float | None
    machine_cost: float | None


class NewPriority(Request):
    model_config = example(priority=10)

    priority: Priority


class Retried(AnswerBody):
    """`dispatch` is null when the queue does not have the new job yet."""

    job_id: str
    retry_of: str
    dispatch: DispatchSummary | None


class WaitingDetails(AnswerBody):
    reason: OpenEnum[Reason]
    text: str
    until: datetime | None
    position: int | None
    expected_start_seconds: float | None
    workers: int


class Tenant(AnswerBody):
    """`balance` is null while the tenant's shard cannot be reached."""

    id: str
    shard: str
    user_id: str
    email: str
    name: str
    is_admin: bool
    balance: int | None
    max_wait_seconds: int | None = None
    max_active_jobs: int | None = None
    is_disabled: bool = False
    created_at: datetime


class TenantUser(AnswerBody):
    """`last_sign_in_at` is of a browser; `api_tokens` are those that work."""

    id: str
    email: str
    name: str
    is_admin: bool
    is_disabled: bool
    has_password: bool
    last_sign_in_at: datetime | None
    api_tokens: int
    created_at: datetime


class TenantLimits(AnswerBody):
    """Null is as for everybody: jobs wait as long as it takes, and as many as `usual_active_jobs` are under way."""

    max_wait_seconds: int | None
    max_active_jobs: int | None
    usual_active_jobs: int


class TenantDetails(AnswerBody):
    """`balance` and `active_jobs` are null while the tenant's shard cannot be reached."""

    id: str
    shard: str
    name: str
    balance: int | None
    active_jobs: int | None
    users: list[TenantUser]
    limits: TenantLimits
    created_at: datetime


class TenantPatch(Patch):
    """How long the tenant's jobs may wait before they may go where they cost more, null: as long as it takes; and how
    many its user may have under way, null: as many as everybody."""

    model_config = example(max_wait_seconds=300, max_active_jobs=20)

    may_be_null: ClassVar[frozenset[str]] = frozenset({"max_wait_seconds", "max_active_jobs"})

    max_wait_seconds: MaxWait | None = None
    max_active_jobs: Annotated[Whole, Field(ge=0, le=1_000_000)] | None = None


class ChangedTenant(AnswerBody):
    id: str
    max_wait_seconds: int | None
    max_active_jobs: int | None = None


class TenantTransaction(AnswerBody):
    id: int
    type: str
    amount: int
    job_id: str | None
    reference: str | None
    description: str | None
    created_at: datetime


class UserPatch(Patch):
    """Who is disabled gets in by nothing. Somebody always remains who administers."""

    model_config = example(is_disabled=True)

    name: Line | None = None
    is_admin: bool | None = None
    is_disabled: bool | None = None


class Burst(AnswerBody):
    """A job that went to Comfy Cloud: why, what that should cost and what it has cost there, and whether it came
    back. Money is in millionths of the operator's currency."""

    id: int
    dispatch_id: int
    workflow_slug: str
    stage: OpenEnum[Stage]
    reason: str
    back_reason: str | None
    expected_cost_micros: int
    cost_micros: int
    seen: Annotated[dict[str, Any], Reported]
    created_at: datetime
    ended_at: datetime | None


class NewCredits(Request):
    """The same `reference` is credited once, however often it is sent."""

    model_config = example(amount=500, reference="invoice-2026-001", description="Thank you")

    amount: Tokens
    # references of payments have a beginning of their own, so that no credit by hand swallows one
    reference: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00:][^\x00:]*$")]
    description: Text | None = None


class Credited(AnswerBody):
    tenant_id: str
    reference: str
    amount: int
    balance: int


class DeletedSlug(AnswerBody):
    slug: str


class NewUser(Request):
    """An account without a password: its user sets one by the link that is answered."""

    model_config = example(email="ada@example.com", name="Ada")

    email: Email
    name: Line | None = None
    is_admin: bool = False


class ResetLink(AnswerBody):
    """Sets a new password, once. It is shown this once."""

    user_id: str
    email: str
    url: str
    expires_at: datetime


class StorageTried(AnswerBody):
    """`problem` is null where it works."""

    part: str
    problem: str | None


class StorageCheck(AnswerBody):
    """What was tried. A browser tries by itself with the rest, which is null where nothing can be stored."""

    url: str
    tried: list[StorageTried]
    upload_url: str | None
    upload_headers: dict[str, str] | None
    upload_text: str
    download_url: str | None


class JoinCommand(AnswerBody):
    """What makes a machine a worker of a fleet, with the secret of its stage: for a shell of Linux and macOS, for
    PowerShell on Windows, and its `variables` one by one. `install` comes before it, once, in a clone of this
    version."""

    install: str
    command: str
    powershell: str
    variables: dict[str, str]


class OverviewNow(AnswerBody):
    """How things stand. `busy` of `slots` run a job; those of workers that are offline do not count.
    `wait_hour_seconds` is how long jobs that began in the last hour had waited, on the mean; null where none began."""

    waiting: int
    oldest_wait_seconds: float
    running: int
    busy: int
    slots: int
    workers_online: int
    wait_hour_seconds: float | None
    done_hour: int
    failed_hour: int
    tokens_hour: int


class OverviewSeries(AnswerBody):
    """Of each stretch of time, which begins at `at`: means of what stood, sums of what happened, null where nothing is
    known. `wait_seconds` is how long jobs that were begun had waited, and where none was, for how long the oldest has.
    """

    at: list[datetime]
    waiting: list[float | None]
    wait_seconds: list[float | None]
    done: list[int | None]
    failed: list[int | None]
    busy: list[float | None]
    slots: list[float | None]
    tokens: list[int | None]


class Overview(AnswerBody):
    range: str
    bucket_seconds: int
    now: OverviewNow
    series: OverviewSeries


class TenantDelivery(AnswerBody):
    """A webhook: `dead` was given up, `failing` was tried in vain and is tried again, `pending` has not been tried."""

    id: str
    tenant_id: str
    tenant_email: str | None
    job_id: str
    url: str
    status: OpenEnum[DeliveryState]
    attempts: int
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class DeliveryCounts(AnswerBody):
    """`pending` are all that are still to be delivered, tried in vain or not. A number that is `most` may be more."""

    dead: int
    pending: int
    most: int


class StuckStep(AnswerBody):
    """What should have crossed between the databases long ago: `to_queue`, jobs that are not in the queue; `to_shard`,
    what the queue has decided of jobs. It is tried again and again."""

    id: int
    direction: str
    shard: str
    job_ids: list[str]
    created_at: datetime


class StuckSteps(AnswerBody):
    items: list[StuckStep]


class Finding(AnswerBody):
    kind: str
    text: str
    shard: str
    tenant_id: str | None = None
    job_id: str | None = None
    dispatch_id: int | None = None


class ReconcileRun(AnswerBody):
    """`ended_at` is null while it goes on. Of `count` findings the first 1,000 are shown; `problem` is why it came to
    nothing."""

    id: int
    started_at: datetime
    ended_at: datetime | None
    jobs: int | None
    count: int | None
    findings: list[Finding]
    shards_down: list[str]
    problem: str | None


class Findings(AnswerBody):
    """`last` is the newest run that has ended, `running` the one that goes on."""

    last: ReconcileRun | None
    running: ReconcileRun | None


class Setting(AnswerBody):
    """`source` is `environment`, `file` or `default`. A secret has no value here, but a source."""

    name: str
    variable: str
    value: Any
    source: str
    is_secret: bool
    description: str


class EffectiveSettings(AnswerBody):
    version: str
    items: list[Setting]


class WorkflowVersion(AnswerBody):
    """What a workflow ran, from `created_at` on until the next one."""

    number: int
    properties: list[dict[str, Any]]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    created_at: datetime


class WorkflowVersionDetails(WorkflowVersion):
    graph: dict[str, Any]


class TestRun(Request):
    """Values by the keys of the properties, as a user would send them; on this worker alone, if it is named."""

    model_config = example(worker_id="gpu-1", values={"prompt": "a cat in the rain"})

    worker_id: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)] | None = None
    values: Json = Field(default_factory=dict)
    input_file_id: Id | None = None


class StartedTest(AnswerBody):
    """A job of the administrator's own: follow it as any other."""

    job_id: str
    only_worker: str | None
