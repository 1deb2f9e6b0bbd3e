"""Payments as a provider reports them, and the signature that shows who reports."""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime

# A message that is older, or from the future, may be a recording of one that was sent before.
TOLERANCE_SECONDS = 300
VERSION = "v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Payment:
    """Tokens that were paid for, by the provider's id of the event. The tenant is named by its id or a user's email."""

    event_id: str
    amount: int
    tenant_id: str | None = None
    email: str | None = None
    currency: str | None = None
    description: str | None = None

    @property
    def reference(self) -> str:
        """What keeps it from being credited twice."""
        return f"payment:{self.event_id}"


def signature_problem(header: str, body: bytes, *, secret: str, now: datetime) -> str | None:
    """What is wrong with `t=<unix seconds>,v1=<hex>`, if anything. Several `v1` may be there while secrets change."""
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    given = [value for name, _, value in parts if name == VERSION]
    if len(times) != 1 or not given or not (times[0].isascii() and times[0].isdigit() and len(times[0]) <= 12):
        return "The signature must be t=<unix seconds>,v1=<hex>."
    expected = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    # all are compared, so that the time taken does not tell which one was right
    if not sum(hmac.compare_digest(expected.encode(), each.encode()) for each in given):
        return "The signature is wrong."
    if abs(now.timestamp() - int(times[0])) > TOLERANCE_SECONDS:
        return "The signature is too old, or from the future."
    return None
