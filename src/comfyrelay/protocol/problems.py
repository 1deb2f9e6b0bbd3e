"""Problem details (RFC 9457), and their conversion to exceptions."""

import httpx
from pydantic import BaseModel, ValidationError

from comfyrelay.errors import (
    ChangedMeanwhile,
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
    WorkflowNameTaken,
)
from comfyrelay.http_client import object_in
from comfyrelay.protocol.base import DEFERRED
from comfyrelay.protocol.requirements import MissingItem

KIND = "urn:comfyrelay:"
# The `WWW-Authenticate` header of a desk. A desk has an owner instead of accounts.
DESK_CHALLENGE = 'Bearer realm="desk"'
_BY_STATUS: dict[int, type[ComfyRelayError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: ChangedMeanwhile,
    413: TooLarge,
}


class Problem(BaseModel):
    """The body of every error response. `detail` is a sentence for the user, `errors` has a sentence for each invalid
    field, `required_tokens` is the price, `missing` are the requirements that no worker meets, and `workflow_slug` is
    the caller's workflow that already has the name."""

    model_config = DEFERRED

    type: str
    title: str
    status: int
    detail: str
    errors: dict[str, str] | None = None
    required_tokens: int | None = None
    missing: list[MissingItem] | None = None
    workflow_slug: str | None = None


def error_from_response(response: httpx.Response) -> ComfyRelayError | None:
    """Return the exception for an error response, or `None` if the response is not from ComfyRelay but from a proxy."""
    try:
        problem = Problem.model_validate(object_in(response))
    except ValidationError:
        return None
    if not problem.type.startswith(KIND):
        return None
    code = problem.type.removeprefix(KIND)
    match code, response.status_code:
        case TooManyRequests.code, _:
            seconds = _seconds(response.headers.get("Retry-After"))
            found: ComfyRelayError = TooManyRequests(problem.detail, retry_after_seconds=seconds)
        case MissingOnWorkers.code, _:
            found = MissingOnWorkers(problem.detail, missing=[item.model_dump() for item in problem.missing or ()])
        case WorkflowNameTaken.code, _:
            found = WorkflowNameTaken(problem.detail, workflow_slug=problem.workflow_slug or "")
        case LeaseLost.code, _:
            found = LeaseLost(problem.detail)
        case _, 422:
            found = InvalidInput(problem.detail, errors=problem.errors)
        case _:
            found = _BY_STATUS.get(response.status_code, ComfyRelayError)(problem.detail)
    return found


def _seconds(text: str | None) -> float:
    try:
        return float(text or 1.0)
    except ValueError:
        return 1.0
