"""Problem details, the body of every error response, and their conversion to exceptions."""

import httpx
from pydantic import BaseModel, ValidationError

from comfyrelay.errors import (
    ComfyRelayError,
    Conflict,
    Forbidden,
    InvalidInput,
    LeaseLost,
    MissingOnWorkers,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unauthorized,
)
from comfyrelay.http_client import object_in
from comfyrelay.protocol.requirements import MissingItem

KIND = "urn:comfyrelay:"
_BY_STATUS: dict[int, type[ComfyRelayError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}


class Problem(BaseModel):
    """The body of every error response."""

    type: str
    title: str
    status: int
    detail: str
    errors: dict[str, str] | None = None
    required_tokens: int | None = None
    missing: list[MissingItem] | None = None


def refusal_in(response: httpx.Response) -> ComfyRelayError | None:
    """The exception for an error response; `ComfyRelayError` for a server error. `None` if the response is not
    ComfyRelay's, but that of a proxy."""
    try:
        problem = Problem.model_validate(object_in(response))
    except ValidationError:
        return None
    if not problem.type.startswith(KIND):
        return None
    if response.status_code == 422:
        return InvalidInput(problem.detail, errors=problem.errors)
    if problem.type == f"{KIND}{TooManyRequests.code}":
        return TooManyRequests(retry_after_seconds=_seconds(response.headers.get("Retry-After")))
    return _known(problem) or _BY_STATUS.get(response.status_code, ComfyRelayError)(problem.detail)


def _known(problem: Problem) -> ComfyRelayError | None:
    """An error with its own exception class."""
    if problem.type == f"{KIND}{LeaseLost.code}":
        return LeaseLost(problem.detail)
    if problem.type == f"{KIND}{MissingOnWorkers.code}":
        return MissingOnWorkers(problem.detail, missing=[each.model_dump() for each in problem.missing or ()])
    return None


def _seconds(text: str | None) -> float:
    try:
        return float(text or 1.0)
    except ValueError:
        return 1.0
