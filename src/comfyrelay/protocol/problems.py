"""Problem details (RFC 9457), and their conversion to exceptions."""

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
from comfyrelay.protocol.base import DEFERRED
from comfyrelay.protocol.requirements import MissingItem

KIND = "urn:comfyrelay:"
# The header `WWW-Authenticate` of a desk, which has an owner instead of accounts.
DESK_CHALLENGE = 'Bearer realm="desk"'
_BY_STATUS: dict[int, type[ComfyRelayError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}


class Problem(BaseModel):
    """The body of every error response. `detail` is a sentence for the user, `errors` has a sentence for each invalid
    field, `required_tokens` is the price, and `missing` are the requirements that no worker meets."""

    model_config = DEFERRED

    type: str
    title: str
    status: int
    detail: str
    errors: dict[str, str] | None = None
    required_tokens: int | None = None
    missing: list[MissingItem] | None = None


def error_from_response(response: httpx.Response) -> ComfyRelayError | None:
    """Return the exception for an error response, or `None` if the response is not from ComfyRelay but from a proxy."""
    try:
        problem = Problem.model_validate(object_in(response))
    except ValidationError:
        return None
    if not problem.type.startswith(KIND):
        return None
    code = problem.type.removeprefix(KIND)
    if code == TooManyRequests.code:
        return TooManyRequests(problem.detail, retry_after_seconds=_seconds(response.headers.get("Retry-After")))
    if code == MissingOnWorkers.code:
        return MissingOnWorkers(problem.detail, missing=[item.model_dump() for item in problem.missing or ()])
    if response.status_code == 422:
        return InvalidInput(problem.detail, errors=problem.errors)
    error = LeaseLost if code == LeaseLost.code else _BY_STATUS.get(response.status_code, ComfyRelayError)
    return error(problem.detail)


def _seconds(text: str | None) -> float:
    try:
        return float(text or 1.0)
    except ValueError:
        return 1.0
