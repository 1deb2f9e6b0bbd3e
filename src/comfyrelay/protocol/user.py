"""The user API: accounts, effects, presets, own workflows, and webhooks."""

import json
import operator
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from comfyrelay.domain.deliveries import DeliveryStatus
from comfyrelay.domain.properties import PropertyType, Role
from comfyrelay.domain.queue.states import Stage, WorkerState
from comfyrelay.domain.records.accounts import SESSION, TokenScope
from comfyrelay.protocol.base import GRAPH_EXAMPLE, AnswerBody, Request, example
from comfyrelay.protocol.fields import ID, STORABLE, Email, Json, Line, Number, OpenEnum, PropertyKey
from comfyrelay.protocol.requirements import Missing


def _limit_size(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value)) > 64 * 1024:
        raise ValueError("This is too large: the limit is 64 KiB.")
    return value


Scalar = str | bool | Number
CoverUrl = Annotated[str | None, Field(description="temporary URL of your latest output")]
Password = Annotated[str, Field(min_length=1, max_length=1024)]


class Credentials(Request):
    model_config = example(email="ada@example.com", password="correct horse battery", name="Ada")

    email: Email
    password: Password
    name: Line | None = None


class SignInOptions(AnswerBody):
    """The kind of server, and how to sign in. `stage` is the stage of new jobs. `needs_setup`: no administrator
    exists yet. `sends_mail`: links to sign up and to set a new password are mailed. `url_seconds` is the lifetime of
    file URLs; URLs of posters and previews are valid for at least half as long."""

    stage: OpenEnum[Stage]
    is_desk: bool
    can_sign_up: bool
    sign_up: Annotated[Literal["open", "invitation", "closed"] | str, Field(union_mode="left_to_right")]
    sends_mail: bool
    needs_setup: bool
    url_seconds: float
    studio: "Studio"


class Studio(AnswerBody):
    """How the operator presents the server. All fields may be null."""

    name: str | None
    logo_url: str | None
    color: Annotated[str | None, Field(examples=["#2f6fed"])]
    imprint_url: str | None
    terms_url: str | None


class Setup(Credentials):
    """The account of the first administrator. The server prints `code` when it starts."""

    model_config = example(
        code="K7QFA-3WXYZ-ABCDE-23456", email="ada@example.com", password="correct horse battery", name="Ada"
    )

    code: Annotated[str, Field(min_length=1, max_length=100)]


class ResetToken(Request):
    model_config = example(token="G3sW0fAl1nkThat1sNone")

    token: Annotated[str, Field(min_length=1, max_length=200)]


class NewPassword(ResetToken):
    model_config = example(token="G3sW0fAl1nkThat1sNone", password="correct horse battery")

    password: Password


class ResetAccount(AnswerBody):
    """The account whose password the link sets. `is_new`: the link creates the account. A webhook stays active after a
    reset."""

    email: str
    has_webhook: bool
    is_new: bool


class User(AnswerBody):
    id: str
    email: str
    name: str
    tenant_id: str
    is_admin: bool


class OwnWorkflowTerms(AnswerBody):
    """The cost of a run of your own workflow. At most `reserved_tokens`, which are reserved first, are charged; the run
    is stopped after `max_seconds` (null: no limit)."""

    tokens_per_second: float = 0
    max_seconds: int | None = None
    reserved_tokens: int = 0


class Me(User):
    """`own_workflows` is null if you may only run effects."""

    own_workflows: OwnWorkflowTerms | None = None
    has_editor: Annotated[bool, Field(description="whether you may open ComfyUI's editor")] = False


class SignedIn(AnswerBody):
    token: str
    user: User


def _not_reserved(name: str) -> str:
    if name == SESSION:
        raise ValueError("This name is reserved for browser sessions. Choose another.")
    return name


class NewToken(Request):
    model_config = example(name="laptop", expires_in_days=90)

    name: Annotated[Line, AfterValidator(_not_reserved)]
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None
    scope: Annotated[TokenScope | None, Field(description="the only API that accepts it; null: all of them")] = None


class Token(AnswerBody):
    id: str
    name: str
    created_at: datetime
    expires_at: datetime | None
    scope: Annotated[OpenEnum[TokenScope] | None, Field(description="the only API that accepts it; null: all of them")]
    is_session: Annotated[bool, Field(description="whether the token is a browser session")]
    is_current: Annotated[bool, Field(description="whether this request was sent with this token")]


class IssuedToken(Token):
    token: str


class NewEditorLink(Request):
    """The workflow that the editor opens: the workflow of a job, one of your own, for administrators one of the
    catalogue, or by default the one that was open last."""

    model_config = example(workflow="portrait-1a2b3c4d5e6f")

    job_id: Annotated[str | None, Field(max_length=64, pattern=ID)] = None
    workflow: Annotated[Line | None, Field(description="the slug of one of your workflows")] = None
    catalogue: Annotated[Line | None, Field(description="only for administrators: the slug of any workflow")] = None


class EditorLink(AnswerBody):
    """A link that opens the editor once. It expires after `seconds`."""

    url: str
    seconds: int


class EditorFile(AnswerBody):
    """A workflow that was saved in the editor."""

    path: str
    modified_at: datetime


class EditorWorkflow(AnswerBody):
    graph: Json


class SlotJob(AnswerBody):
    """A running job. `node` is the type of the running node, `node_title` the title that the author of the workflow
    gave it. `progress` is from 0 to 1; `is_estimated`: it is estimated from the duration of the last such job, because
    the worker reports no progress. `expected_seconds` is the expected remaining time, null if unknown."""

    id: str
    batch_id: str | None
    label: str | None
    item_no: int
    total: int
    node: str | None
    node_title: str | None
    step: float | None
    steps: float | None
    progress: float | None
    is_estimated: Annotated[bool, Field(exclude_if=operator.not_)] = False
    started_at: datetime | None
    expected_seconds: float | None


class WorkerSlot(AnswerBody):
    """A ComfyUI with its GPU, which runs one job at a time. Memory is in bytes, `load` is from 0 to 1; both are null if
    the worker does not report them. `on_gpu` is the number of ComfyUI processes that share the GPU, and `packing` the
    reason for that number. `unavailable_reason` is the reason why ComfyUI cannot be used, or null."""

    worker_id: str
    name: str
    server: str | None
    gpu: str | None
    memory_total: int | None
    memory_used: int | None
    load: float | None
    on_gpu: int | None
    packing: str | None
    state: OpenEnum[WorkerState]
    unavailable_reason: str | None
    job: SlotJob | None


class Deleted(AnswerBody):
    id: str


class Transaction(AnswerBody):
    id: int
    type: str
    amount: int
    job_id: str | None
    job_label: Annotated[str | None, Field(description="label of the job; null after the job was deleted")] = None
    description: str | None
    created_at: datetime


class Wallet(AnswerBody):
    """The wallet. `owed_tokens` belong to refunded payments but were already spent: they are deducted from the next
    credit, and until then that part of `balance` cannot be spent."""

    balance: int
    owed_tokens: int = 0
    top_up_url: Annotated[
        str | None, Field(description="page where you can buy tokens; if null, ask the administrator")
    ]
    transactions: list[Transaction]
    next_cursor: str | None


class Input(AnswerBody):
    """An input that users may set. The primary input is sent as `input_file_id` or `video_id`. `label` is the display
    name, `group` the title of the node. An input that is `scaled_from` another input keeps its ratio to that input
    until a user sets it. In a text that `is_dynamic_prompt`, each job chooses one option of `{a|b}`."""

    key: str
    type: OpenEnum[PropertyType]
    required: bool
    default_value: Any
    is_primary_input: bool
    choices: list[Any]
    minimum: Number | None
    maximum: Number | None
    step: Number | None
    is_whole: bool
    role: OpenEnum[Role] | None
    scaled_from: str | None
    is_dynamic_prompt: bool
    label: str
    group: str | None


class PublicEffect(AnswerBody):
    """An effect in the form that visitors see. With `max_credits_cost`, its price depends on the inputs and is at least
    `credits_cost`."""

    slug: str
    name: str
    description: str | None = None
    category: str | None = None
    credits_cost: int
    max_credits_cost: int | None = None
    output_mime_type: str
    preview_url: Annotated[str | None, Field(description="temporary URL of an example output")] = None
    before_url: Annotated[str | None, Field(description="temporary URL of the input of the example")] = None


class Effect(PublicEffect):
    """An effect. With `max_credits_cost`, its price depends on the inputs and is at least `credits_cost`."""

    id: int
    properties: list[Input]
    price_needs_input: Annotated[bool, Field(description="whether the price depends on the primary input")]
    workflow_slug: Annotated[str, Field(description="slug of the workflow; you can filter the job list by it")]
    output_extension: str
    # This changes with each job, so it would tell visitors how busy the server is.
    last_processing_time_seconds: float | None
    cover_url: CoverUrl = None


class NewPreset(Request):
    model_config = example(name="Night", values={"prompt": "a city at night"})

    name: Line
    values: Annotated[Json, AfterValidator(_limit_size)]


class Preset(AnswerBody):
    id: str
    name: str
    values: dict[str, Any]
    created_at: datetime


class NewView(Request):
    model_config = example(area="queue", name="Failed today", search={"status": "failed", "q": "portrait"})

    area: Literal["queue"]
    name: Annotated[Line, Field(max_length=40)]
    search: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[a-z_]{1,20}$")],
            Annotated[str, Field(max_length=200, pattern=STORABLE)],
        ],
        Field(max_length=10),
    ]


class PropertyFields(Request):
    """The common fields of the properties of all workflows."""

    key: PropertyKey
    type: PropertyType
    required: bool = False
    is_primary_input: bool = False
    choices: list[Scalar] = Field(default_factory=list, max_length=1000)
    minimum: Number | None = None
    maximum: Number | None = None
    step: Number | None = None
    is_whole: bool = False
    role: Role | None = None
    scaled_from: PropertyKey | None = None
    is_dynamic_prompt: bool = False
    label: Line | None = None
    group: Line | None = None


class OwnWorkflowProperty(PropertyFields):
    """An input of your graph. Its value replaces the placeholder in the graph."""

    placeholder: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
    default_value: Scalar | None = None
    user_configurable: bool = True


Properties = Annotated[list[OwnWorkflowProperty], Field(max_length=200)]
NodeId = Annotated[str, Field(max_length=200, pattern=STORABLE)]
Extension = Annotated[str, Field(pattern=r"^[a-z0-9]{1,8}$")]
MediaType = Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[a-z0-9.+-]+$")]


# The action if another workflow of the user has the name, or was added with it, but has another graph.
SameName = Literal["allow", "refuse", "number"]


class OwnWorkflowPatch(Request):
    """Changes to a workflow. Absent fields keep their value. `properties` and the output fields require `graph`."""

    model_config = example(name="Mine, with more steps")

    name: Line | None = None
    graph: Json | None = None
    properties: Properties | None = None
    output_node_id: NodeId | None = None
    output_extension: Extension | None = None
    output_mime_type: MediaType | None = None


class NewWorkflow(OwnWorkflowPatch):
    """A new workflow of the user. Absent fields are derived from the graph: without `properties`, every value of the
    graph becomes a property."""

    model_config = example(name="Mine", graph=GRAPH_EXAMPLE)

    graph: Annotated[Json, Field(description="in ComfyUI's API format, or a workflow file of ComfyUI's editor")]
    wait_for_missing: Annotated[bool, Field(description="accept a workflow file with nodes that no worker has")] = False
    same_name: Annotated[
        SameName,
        Field(
            description="if you have a workflow with this name and another graph: allow a second one, refuse with "
            "`workflow_name_taken`, or number the new one"
        ),
    ] = "allow"


class EmbeddedWorkflow(AnswerBody):
    """The workflow that is embedded in a file, or null."""

    graph: Json | None


class Workflow(AnswerBody):
    slug: str
    name: str
    properties: list[Input]
    draws_seed: Annotated[bool, Field(description="whether each job gets a random seed that is not a property")] = False
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool
    cover_url: CoverUrl = None
    waiting: Annotated[
        str | None, Field(description="why the workflow cannot run yet: it waits for nodes that no worker has")
    ] = None
    missing: Annotated[
        Missing | None, Field(description="missing requirements; only sent for new and for waiting workflows")
    ] = None


class OwnWorkflowVersion(AnswerBody):
    """A version of your workflow. `changes` are sentences about the differences from the previous version."""

    number: int
    created_at: datetime
    is_current: bool
    changes: list[str]


class RequirementCheck(AnswerBody):
    missing: Annotated[Missing | None, Field(description="missing requirements with the default values")]


class AddedWorkflow(Workflow):
    """A new workflow. `graph` is in ComfyUI's API format. `roles` are the property keys by role, such as prompt or
    seed. `positions` are the node inputs that each property sets. `remarks` are notes for the user."""

    graph: dict[str, Any]
    roles: dict[str, str]
    positions: dict[str, list[str]]
    remarks: list[str]


class PutWebhook(Request):
    model_config = example(url="https://example.com/hooks/comfyrelay")

    url: Annotated[
        str | None, Field(max_length=2048, description="receives the events of jobs without their own URL")
    ] = None
    rotate_secret: Annotated[bool, Field(description="create a new secret, which signs all deliveries from now on")] = (
        False
    )


class Webhook(AnswerBody):
    url: str | None
    has_secret: bool
    updated_at: datetime | None
    secret: Annotated[str | None, Field(description="sent only once, when it is created or rotated")] = None


class WebhookTestResult(AnswerBody):
    """The result of a test delivery: the status of the receiver's response, or the error."""

    is_delivered: bool
    status_code: int | None
    error: str | None


class DeliveryAttempts(AnswerBody):
    """The attempts to deliver a webhook."""

    id: Annotated[str, Field(description="the header `webhook-id` of every attempt")]
    job_id: str
    url: str
    attempts: int
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class Delivery(DeliveryAttempts):
    """A webhook delivery."""

    status: OpenEnum[DeliveryStatus]


class Deliveries(AnswerBody):
    deliveries: list[Delivery]
