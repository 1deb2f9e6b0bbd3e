"""The webhook of a payment provider: each signed event credits a tenant, or takes tokens back, once."""

import asyncio
from typing import Annotated, Literal, Self

from fastapi import Header, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from comfyrelay.domain.credentials import normalize_email
from comfyrelay.domain.payments import Payment, Refund
from comfyrelay.errors import RequestTimeout, TooLarge
from comfyrelay.protocol.base import Answer
from comfyrelay.server.http.context import ContextOf
from comfyrelay.server.http.problems import error_responses
from comfyrelay.server.http.routing import Router
from comfyrelay.text import is_storable

router = Router(prefix="/api/webhooks", tags=["payments"])

MAX_BYTES = 64 * 1024
MAX_TOKENS = 10**12
SUCCEEDED = "payment.succeeded"
REFUNDED = "payment.refunded"
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class AnyEvent(BaseModel):
    """The fields of every event. Providers may add others."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: ShortText
    event_id: ShortText


class PaymentSucceeded(AnyEvent):
    """A payment for a tenant, which is named by its id or by the email of its user."""

    type: Literal["payment.succeeded"]
    amount: Annotated[int, Field(strict=True, gt=0, le=MAX_TOKENS, description="tokens to credit")]
    tenant_id: ShortText | None = None
    email: ShortText | None = None
    currency: ShortText | None = None
    description: ShortText | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if (self.tenant_id is None) == (self.email is None):
            raise ValueError("Name the tenant either by its id or by the email of its user.")
        texts = (self.event_id, self.tenant_id, self.email, self.currency, self.description)
        if not all(is_storable(text) for text in texts if text is not None):
            raise ValueError("A text contains a character that cannot be stored.")
        return self


class PaymentRefunded(AnyEvent):
    """A full or partial refund of an earlier payment. `payment_id` is the `event_id` of the payment."""

    type: Literal["payment.refunded"]
    payment_id: ShortText
    amount: Annotated[int, Field(strict=True, gt=0, le=MAX_TOKENS, description="tokens to take back")] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if not (is_storable(self.event_id) and is_storable(self.payment_id)):
            raise ValueError("A text contains a character that cannot be stored.")
        return self


class Taken(BaseModel):
    event_id: str
    status: Literal["credited", "refunded", "ignored"]


_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [PaymentSucceeded.model_json_schema(), PaymentRefunded.model_json_schema()]},
                "example": {
                    "event_id": "evt_1",
                    "type": SUCCEEDED,
                    "email": "ada@example.com",
                    "amount": 100,
                    "currency": "EUR",
                },
            }
        },
    }
}


@router.post("/payments", responses=error_responses(401, 404, 408, 409, 413, 422, 503), openapi_extra=_BODY)
async def payment(request: Request, context: ContextOf, x_signature: Annotated[str, Header()] = "") -> Answer[Taken]:
    """Report a payment, signed: `X-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">`. An event may be
    sent any number of times. `payment.refunded` takes the tokens of a payment back. Events of other types are
    acknowledged and ignored."""
    payments = context.engine.accounts.payments
    body = await _read_body(request, context.settings.anonymous_body_seconds)
    await payments.check_signature(body, x_signature)
    try:
        event = AnyEvent.model_validate_json(body)
        if event.type == REFUNDED:
            refunded = PaymentRefunded.model_validate_json(body)
            await payments.refund(Refund(**refunded.model_dump(exclude={"type"})))
            return Answer(data=Taken(event_id=event.event_id, status="refunded"), message="Refunded.")
        if event.type != SUCCEEDED:
            return Answer(data=Taken(event_id=event.event_id, status="ignored"), message="Ignored.")
        paid = PaymentSucceeded.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from None
    fields = paid.model_dump(exclude={"type", "email"})
    await payments.credit(Payment(**fields, email=normalize_email(paid.email) if paid.email else None))
    return Answer(data=Taken(event_id=paid.event_id, status="credited"), message="Credited.")


async def _read_body(request: Request, seconds: float) -> bytes:
    """Read the raw body, which the signature covers."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise TooLarge(f"A payment event has at most {MAX_BYTES} bytes.")
    except TimeoutError:
        raise RequestTimeout(
            f"The body did not arrive within {seconds:g} seconds (COMFYRELAY_ANONYMOUS_BODY_SECONDS)."
        ) from None
    return bytes(body)
