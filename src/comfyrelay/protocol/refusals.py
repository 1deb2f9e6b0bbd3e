"""What ComfyRelay says no with, for whoever speaks to it over HTTP: problem details as one of our errors."""

import httpx

from comfyrelay.errors import (
    ComfyRelayError,
    Conflict,
    Forbidden,
    InvalidInput,
    LeaseLost,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unauthorized,
)
from comfyrelay.net import object_in

__all__ = ["refusal_in"]

_KIND = "urn:comfyrelay:"
_BY_STATUS: dict[int, type[ComfyRelayError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}


def refusal_in(response: httpx.Response) -> ComfyRelayError | None:
    """The error that an answer stands for, a plain one where the server is in trouble; `None` when it is not
    ComfyRelay's answer, but that of a proxy in between."""
    answer, status = object_in(response), response.status_code
    kind = str(answer.get("type") or "")
    if not kind.startswith(_KIND):
        return None
    detail = str(answer.get("detail") or answer.get("title") or f"The server answered with {status}.")
    if status == 422:
        errors = answer.get("errors")
        fields = {str(key): str(text) for key, text in errors.items()} if isinstance(errors, dict) else {}
        return InvalidInput(detail, errors=fields)
    if kind == f"{_KIND}{TooManyRequests.code}":
        return TooManyRequests(retry_after_seconds=_seconds(response.headers.get("Retry-After")))
    if kind == f"{_KIND}{LeaseLost.code}":
        return LeaseLost(detail)
    return _BY_STATUS.get(status, ComfyRelayError)(detail)


def _seconds(text: str | None) -> float:
    try:
        return float(text or 1.0)
    except ValueError:
        return 1.0
