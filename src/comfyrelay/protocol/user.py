"""The user API: accounts, effects, presets, workflows of one's own, and webhooks."""

import json
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from comfyrelay.domain.properties import PropertyType
from comfyrelay.protocol.base import GRAPH_EXAMPLE, AnswerBody, Request, example
from comfyrelay.protocol.fields import STORABLE, Json, Line, Number, OpenEnum


def _small(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value)) > 64 * 1024:
        raise ValueError("This is too large: at most 64 KiB are kept.")
    return value


Email = Annotated[str, Field(max_length=254, pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$")]
Scalar = str | bool | Number
Password = Annotated[str, Field(min_length=1, max_length=1024)]


class Credentials(Request):
    model_config = example(email="ada@example.com", password="correct horse battery", name="Ada")

    email: Email
    password: Password
    name: Line | None = None


class User(AnswerBody):
    id: str
    email: str
    name: str
    tenant_id: str
    is_admin: bool


class SignedIn(AnswerBody):
    token: str
    user: User


class NewToken(Request):
    model_config = example(name="laptop", expires_in_days=90)

    name: Line
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None


class Token(AnswerBody):
    id: str
    name: str
    created_at: datetime
    expires_at: datetime | None


class IssuedToken(Token):
    token: str


class Deleted(AnswerBody):
    id: str


class Transaction(AnswerBody):
    id: int
    type: str
    amount: int
    job_id: str | None
    description: str | None
    created_at: datetime


class Wallet(AnswerBody):
    balance: int
    transactions: list[Transaction]
    next_cursor: str | None


class Input(AnswerBody):
    """An input that is the user's to set. The primary input is sent as `input_file_id` or `video_id`."""

    key: str
    type: OpenEnum[PropertyType]
    required: bool
    default_value: Any
    is_primary_input: bool
    choices: list[Any]
    minimum: Number | None
    maximum: Number | None


class Effect(AnswerBody):
    id: int
    slug: str
    name: str
    credits_cost: int
    properties: list[Input]
    output_mime_type: str
    output_extension: str
    last_processing_time_seconds: float | None


class NewPreset(Request):
    model_config = example(name="Night", values={"prompt": "a city at night"})

    name: Line
    values: Annotated[Json, AfterValidator(_small)]


class Preset(AnswerBody):
    id: str
    name: str
    values: dict[str, Any]
    created_at: datetime


class Property(Request):
    """An input of a graph of your own: the value takes the placeholder's place."""

    key: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$")]
    type: PropertyType
    placeholder: Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
    default_value: Scalar | None = None
    required: bool = False
    user_configurable: bool = True
    is_primary_input: bool = False
    choices: list[Scalar] = Field(default_factory=list, max_length=1000)
    minimum: Number | None = None
    maximum: Number | None = None


class NewWorkflow(Request):
    model_config = example(name="Mine", graph=GRAPH_EXAMPLE, output_node_id="9", output_extension="png")

    graph: Json
    name: Line | None = None
    properties: list[Property] = Field(default_factory=list, max_length=200)
    output_node_id: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    output_extension: Annotated[str, Field(pattern=r"^[a-z0-9]{1,8}$")] = "mp4"
    output_mime_type: Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[a-z0-9.+-]+$")] | None = None


class Workflow(AnswerBody):
    slug: str
    name: str
    properties: list[Input]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool


class PutWebhook(Request):
    model_config = example(url="https://example.com/hooks/comfyrelay")

    url: Annotated[str | None, Field(max_length=2048, description="for jobs that bring no URL of their own")] = None
    rotate_secret: Annotated[bool, Field(description="whether to sign with a new secret from now on")] = False


class Webhook(AnswerBody):
    url: str | None
    has_secret: bool
    updated_at: datetime | None
    secret: Annotated[str | None, Field(description="shown once: when the webhook is first set, or rotated")] = None


class Delivery(AnswerBody):
    id: Annotated[str, Field(description="the `webhook-id` of every attempt")]
    url: str
    status: str
    attempts: int
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class Deliveries(AnswerBody):
    deliveries: list[Delivery]
