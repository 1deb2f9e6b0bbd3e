"""The words that bodies of the user API are made of, and the bodies of accounts, effects, presets and workflows."""

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, Field

from comfyrelay.domain.properties import PropertyType
from comfyrelay.server.base.answers import GRAPH_EXAMPLE, Body, example
from comfyrelay.server.base.fields import STORABLE, Json, Line, Number

ID = r"^[A-Za-z0-9_-]+$"


def _small(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value)) > 64 * 1024:
        raise ValueError("This is too large: at most 64 KiB are kept.")
    return value


Id = Annotated[str, Field(min_length=1, max_length=64, pattern=ID)]
Email = Annotated[str, Field(max_length=254, pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$")]
Scalar = str | bool | Number
Password = Annotated[str, Field(min_length=1, max_length=1024)]

IdInPath = Annotated[str, Path(max_length=64, pattern=ID)]
Cursor = Annotated[str | None, Query(max_length=64, pattern=ID, description="`next_cursor` of the page before")]


class Credentials(Body):
    model_config = example(email="ada@example.com", password="correct horse battery", name="Ada")

    email: Email
    password: Password
    name: Line | None = None


class UserBody(Body):
    id: str
    email: str
    name: str
    tenant_id: str
    is_admin: bool


class SignedIn(Body):
    token: str
    user: UserBody


class NewTokenBody(Body):
    model_config = example(name="laptop", expires_in_days=90)

    name: Line
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None


class TokenBody(Body):
    id: str
    name: str
    created_at: datetime
    expires_at: datetime | None


class IssuedToken(TokenBody):
    token: str


class Deleted(Body):
    id: str


class TransactionBody(Body):
    id: int
    type: str
    amount: int
    job_id: str | None
    description: str | None
    created_at: datetime


class Wallet(Body):
    balance: int
    transactions: list[TransactionBody]
    next_cursor: str | None


class InputBody(Body):
    """An input that is the user's to set. The primary input is sent as `input_file_id` or `video_id`."""

    key: str
    type: PropertyType
    required: bool
    default_value: Any
    is_primary_input: bool
    choices: list[Any]
    minimum: Number | None
    maximum: Number | None


class EffectBody(Body):
    id: int
    slug: str
    name: str
    credits_cost: int
    properties: list[InputBody]
    output_mime_type: str
    output_extension: str
    last_processing_time_seconds: float | None


class NewPreset(Body):
    model_config = example(name="Night", values={"prompt": "a city at night"})

    name: Line
    values: Annotated[Json, AfterValidator(_small)]


class PresetBody(Body):
    id: str
    name: str
    values: dict[str, Any]
    created_at: datetime


class PropertyBody(Body):
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


class NewWorkflowBody(Body):
    model_config = example(name="Mine", graph=GRAPH_EXAMPLE, output_node_id="9", output_extension="png")

    graph: Json
    name: Line | None = None
    properties: list[PropertyBody] = Field(default_factory=list, max_length=200)
    output_node_id: Annotated[str, Field(max_length=200, pattern=STORABLE)] | None = None
    output_extension: Annotated[str, Field(pattern=r"^[a-z0-9]{1,8}$")] = "mp4"
    output_mime_type: Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[a-z0-9.+-]+$")] | None = None


class WorkflowBody(Body):
    slug: str
    name: str
    properties: list[InputBody]
    output_node_id: str | None
    output_extension: str
    output_mime_type: str
    is_active: bool
