"""Errors in the format of the Comfy API: a code for programs and a sentence for people."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from comfyrelay.errors import (
    ComfyRelayError,
    FederationLoop,
    Forbidden,
    GraphError,
    InsufficientTokens,
    InvalidInput,
    MissingAsset,
    MissingOnWorkers,
    NotFound,
    TooManyActiveJobs,
    TooManyRequests,
    Unauthorized,
)
from comfyrelay.protocol.comfy_api import ComfyProblem, ComfyProblemDetail
from comfyrelay.server.http.bodies import BodyRoute
from comfyrelay.server.http.problems import error_response, problem_response, validation_error
from comfyrelay.server.http.routing import Router

# The first matching class decides. Other errors keep the status and the code of ComfyRelay's own API.
_CODES: list[tuple[type[ComfyRelayError], int, str]] = [
    (MissingAsset, 422, "missing_asset"),
    (FederationLoop, 422, "federation_loop"),
    (GraphError, 422, "invalid_workflow"),
    (MissingOnWorkers, 422, "invalid_workflow"),
    (InvalidInput, 422, "invalid_request"),
    (Unauthorized, 401, "unauthorized"),
    (Forbidden, 403, "forbidden"),
    (NotFound, 404, "not_found"),
    (InsufficientTokens, 402, "insufficient_credits"),
    (TooManyActiveJobs, 429, "queue_full"),
    (TooManyRequests, 429, "rate_limited"),
]
_DETAILS = ("errors", "required_tokens", "missing", "node_errors")
# Clients retry a refused submission after this time.
QUEUE_FULL_SECONDS = 2
SERVER_ERROR = "upstream_error"


class ComfyRoute(BodyRoute):
    """A route whose errors have the format of the Comfy API."""

    def __init__(self, *args: Any, responses: dict[int | str, dict[str, Any]] | None = None, **options: Any) -> None:
        takes_body = "POST" in (options.get("methods") or ())
        errors = comfy_responses(401, 422, 429, 503, *((408, 413) if takes_body else ()))
        super().__init__(*args, responses={**errors, **(responses or {})}, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                if all(field["loc"][:1] == ("path",) for field in error.errors()):
                    # The contract defines no other response to a malformed id.
                    return refuse(404, "not_found", "You have nothing with this id.")
                return await _response(request, validation_error(request, error))
            except (ComfyRelayError, HTTPException) as error:
                return await _response(request, error)

        return answer


def comfy_router(prefix: str) -> Router:
    return Router(prefix=prefix, tags=["comfy api v2"], route_class=ComfyRoute)


def comfy_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route in the API documentation."""
    return {status: {"description": "An error", "model": ComfyProblem} for status in statuses}


def refuse(
    status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None, **details: Any
) -> JSONResponse:
    """Return an error response."""
    problem = ComfyProblem(error=ComfyProblemDetail(code=code, message=message, details=details or None))
    return JSONResponse(problem.model_dump(), status_code=status, headers=headers)


async def _response(request: Request, error: ComfyRelayError | HTTPException) -> Response:
    own = problem_response(error) if isinstance(error, ComfyRelayError) else None
    # This logs unexpected errors and hides their cause.
    own = own or await error_response(request, error)
    status, code = own.status_code, SERVER_ERROR if own.status_code >= 500 else "invalid_request"
    if not isinstance(error, ComfyRelayError):
        return refuse(status, code, str(error.detail), headers=error.headers)
    if status == 500:
        return refuse(status, code, "The server failed. Try again later.")
    if status < 500:
        code = error.code
        for kind, own_status, own_code in _CODES:
            if isinstance(error, kind):
                status, code = own_status, own_code
                break
    headers = {name: own.headers[name] for name in ("Retry-After", "WWW-Authenticate") if name in own.headers}
    if status == 429:
        headers.setdefault("Retry-After", str(QUEUE_FULL_SECONDS))
    details = {name: value for name in _DETAILS if (value := getattr(error, name, None))}
    return refuse(status, code, message_of(error), headers=headers, **details)


async def http_problem(request: Request, error: HTTPException) -> Response:
    """Return the response for an error of the framework, such as an unknown path."""
    return await _response(request, error)


def message_of(error: ComfyRelayError) -> str:
    """Return the message of an error, with the invalid fields if the message does not name them."""
    fields = error.errors if isinstance(error, InvalidInput) and not isinstance(error, MissingAsset) else {}
    return " ".join([error.detail, *(f"{name}: {text}" for name, text in fields.items())])
