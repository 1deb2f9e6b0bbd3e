"""Sign and verify URLs that allow one operation on one object for a limited time."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import quote, urlencode

from comfyrelay.errors import Forbidden
from comfyrelay.storage.paths import too_large

# 15 digits are enough for every size and time, and are parsed quickly.
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, kw_only=True, slots=True)
class UrlGrant:
    """The operation that a URL allows. GET includes HEAD, and `expires` is in seconds since 1970.

    The signature covers the fields in this order.
    """

    method: Literal["GET", "PUT"]
    path: str
    expires: int
    content_type: str | None = None
    size: int | None = None
    max_size: int | None = None
    filename: str | None = None
    # Whether the URL must not replace an object.
    once: bool = False
    # Whether the URL belongs to a lease.
    for_worker: bool = False

    def check_upload(self, *, content_type: str | None, content_length: int | None) -> None:
        """Raise an error if the headers of an upload do not match. If it has no length, its size is checked at the
        end."""
        if content_type != self.content_type:
            given = content_type or "data without a content type"
            raise Forbidden(f"This URL accepts {self.content_type}, not {given}.")
        if content_length is None:
            return
        if self.size is not None and content_length != self.size:
            raise Forbidden(f"This URL accepts {self.size} bytes, not {content_length}.")
        if self.max_size is not None and content_length > self.max_size:
            raise too_large(self.max_size)


def sign(grant: UrlGrant, *, secret: str) -> str:
    """Return the query string of a signed URL."""
    fields = {
        "expires": grant.expires,
        "type": grant.content_type,
        "size": grant.size,
        "max": grant.max_size,
        "name": grant.filename,
        "once": 1 if grant.once else None,
        "worker": 1 if grant.for_worker else None,
        "signature": _signature(grant, secret),
    }
    given = {key: value for key, value in fields.items() if value is not None}
    return urlencode(given, quote_via=quote)


def verify(method: str, path: str, query: Mapping[str, str], *, secrets: Sequence[str], now: datetime) -> UrlGrant:
    """Return the grant of a URL that was signed with one of the secrets. Raises `Forbidden`."""
    grant = UrlGrant(
        method=_granting(method),
        path=path,
        expires=_number(query, "expires") or 0,
        content_type=query.get("type"),
        size=_number(query, "size"),
        max_size=_number(query, "max"),
        filename=query.get("name"),
        once=query.get("once") == "1",
        for_worker=query.get("worker") == "1",
    )
    given = query.get("signature", "").encode(errors="replace")
    # Compare with all secrets, so that the response time does not reveal which one matched.
    matches = [hmac.compare_digest(given, _signature(grant, secret).encode()) for secret in secrets]
    if not any(matches):
        raise _invalid()
    if now.timestamp() >= grant.expires:
        raise Forbidden("This URL has expired.")
    return grant


def _granting(method: str) -> Literal["GET", "PUT"]:
    match method:
        case "GET" | "HEAD":
            return "GET"
        case "PUT":
            return "PUT"
        case _:
            raise _invalid()


def _number(query: Mapping[str, str], key: str) -> int | None:
    text = query.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise _invalid()
    return int(text)


def _signature(grant: UrlGrant, secret: str) -> str:
    # JSON separates the fields, and the first item is a domain separator.
    message = json.dumps(["comfyrelay files 1", *astuple(grant)])
    return hmac.new(secret.encode(), message.encode(), hashlib.sha256).hexdigest()


def _invalid() -> Forbidden:
    return Forbidden("This URL is invalid, or does not allow this request.")
