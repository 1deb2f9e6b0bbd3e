"""What object storage answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectStat:
    """What is known of an object without reading it."""

    size: int
    content_type: str | None
    modified_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectEntry:
    """One object of a listing."""

    path: str
    size: int
    modified_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedUpload:
    """How one object may be uploaded, by whoever holds this; `headers` must be sent as they are."""

    url: str
    method: Literal["PUT"] = "PUT"
    headers: Mapping[str, str]
    expires_at: datetime
