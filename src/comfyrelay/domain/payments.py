"""Payments reported by a provider, and the check of the provider's signature."""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime

# Messages with an older or later timestamp are rejected, because they may be replayed.
TOLERANCE_SECONDS = 300
VERSION = "v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Payment:
    """Tokens that a tenant has purchased. The tenant is identified by its id or by the email of a user."""

    event_id: str
    amount: int
    tenant_id: str | None = None
    email: str | None = None
    currency: str | None = None
    description: str | None = None

    @property
    def reference(self) -> str:
        """Unique reference that prevents a second credit."""
        return f"payment:{self.event_id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Refund:
    """A refunded payment. Without an amount, it applies to all tokens that have not been refunded before."""

    event_id: str
    payment_id: str
    amount: int | None = None

    @property
    def reference(self) -> str:
        """Unique reference that prevents a second withdrawal."""
        return f"refund:{self.event_id}"


def signature_problem(header: str, body: bytes, *, secret: str, now: datetime) -> str | None:
    """Return why the signature `t=<unix seconds>,v1=<hex>` is invalid, or `None`.

    There may be several `v1` while the secret is rotated.
    """
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    given = [value for name, _, value in parts if name == VERSION]
    if len(times) != 1 or not given or not (times[0].isascii() and times[0].isdigit() and len(times[0]) <= 12):
        return "The signature must be t=<unix seconds>,v1=<hex>."
    expected = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    # Compare all signatures, so that timing does not reveal which one matched.
    if not sum(hmac.compare_digest(expected.encode(), signature.encode()) for signature in given):
        return "The signature is wrong."
    if abs(now.timestamp() - int(times[0])) > TOLERANCE_SECONDS:
        return "The timestamp of the signature is too old or in the future."
    return None
