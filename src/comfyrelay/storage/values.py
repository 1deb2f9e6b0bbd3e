"""Values that object storage returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectStat:
    """Metadata of an object. The `etag` changes when the object is replaced."""

    size: int
    content_type: str | None
    modified_at: datetime
    etag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectEntry:
    """An object in a listing."""

    path: str
    size: int
    modified_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedUpload:
    """A signed URL for an upload. The client must send `headers` unchanged."""

    url: str
    method: Literal["PUT"] = "PUT"
    headers: Mapping[str, str]
    expires_at: datetime
