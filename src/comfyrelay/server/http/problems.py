"""Error responses as problem details (RFC 9457)."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from comfyrelay.domain.queue.customer_texts import NOT_AVAILABLE, OUT_OF_SERVICE
from comfyrelay.errors import (
    ChangedMeanwhile,
    ComfyRelayError,
    Conflict,
    DatabaseUnavailable,
    Forbidden,
    GraphError,
    GraphNotAllowed,
    InsufficientTokens,
    InvalidInput,
    MissingOnWorkers,
    NotFound,
    NotReady,
    NotWritable,
    PriceChanged,
    RequestTimeout,
    StorageUnavailable,
    TooLarge,
    TooManyActiveJobs,
    TooManyRequests,
    Unauthorized,
    UploadLimitReached,
    WorkflowLimitReached,
    WorkflowNameTaken,
)
from comfyrelay.protocol.problems import KIND, Problem

log = structlog.get_logger(__name__)

# A response with an error for each of 200,000 fields would block all other requests for seconds.
MAX_NAMED_ERRORS = 500

# The first matching class decides, so subclasses come first.
STATUS: list[tuple[type[ComfyRelayError], int, str]] = [
    (InvalidInput, 422, "The input is invalid"),
    (GraphNotAllowed, 422, "This graph is not allowed"),
    (GraphError, 422, "This graph cannot be run"),
    (InsufficientTokens, 422, "Not enough tokens"),
    (Unauthorized, 401, "Not signed in"),
    (Forbidden, 403, "Not allowed"),
    (NotFound, 404, "Not found"),
    (MissingOnWorkers, 409, "No worker meets the requirements"),
    (WorkflowNameTaken, 409, "You have a workflow with this name"),
    (UploadLimitReached, 409, "Too many uploads"),
    (WorkflowLimitReached, 409, "Too many workflows and jobs"),
    (PriceChanged, 409, "The price has changed"),
    (ChangedMeanwhile, 412, "Someone else has changed this"),
    (Conflict, 409, "Conflict with the current state"),
    (RequestTimeout, 408, "The request took too long"),
    (TooLarge, 413, "Too large"),
    (TooManyActiveJobs, 429, "Too many active jobs"),
    (TooManyRequests, 429, "Too many requests"),
    (NotReady, 503, "Not ready"),
    (NotWritable, 503, "A database is not writable"),
    (DatabaseUnavailable, 503, "A database is unreachable"),
    (StorageUnavailable, 503, "Object storage is unreachable"),
]
MEDIA_TYPE = "application/problem+json"
# Only operators see their details, which name databases.
_OUTAGES = (DatabaseUnavailable, StorageUnavailable)
_CUSTOMER_PATHS = ("/api", "/files")
_OPERATOR_PATHS = ("/api/admin", "/api/worker")
_OPTIONAL_FIELDS = ("errors", "required_tokens", "missing", "workflow_slug")


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route in the API documentation."""
    described = {status: title for _, status, title in STATUS}
    return {
        status: {
            "description": described.get(status, "An error"),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def add_problem_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ComfyRelayError, _handle_known)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(Exception, _handle_unexpected)


async def error_response(request: Request, error: ComfyRelayError | HTTPException) -> JSONResponse:
    """Return the response for an error that a route raised."""
    handle = _handle_known if isinstance(error, ComfyRelayError) else handle_http_exception
    return await handle(request, error)


def _response(
    status: int, code: str, *, title: str, detail: str, headers: Mapping[str, str] | None = None, **optional: Any
) -> JSONResponse:
    """Build the response. Empty `optional` fields of the problem are left out."""
    fields = {name: value for name, value in optional.items() if value}
    problem = Problem(type=f"{KIND}{code}", title=title, status=status, detail=detail, **fields)
    content = problem.model_dump(exclude_none=True)
    return JSONResponse(content, status_code=status, headers=headers, media_type=MEDIA_TYPE)


async def _handle_known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ComfyRelayError)
    if not _is_for_operators(request):
        if isinstance(error, _OUTAGES):
            return _response(503, error.code, title="Out of service", detail=OUT_OF_SERVICE)
        if isinstance(error, MissingOnWorkers) and error.is_of_effect:
            return _response(409, error.code, title="Not available", detail=NOT_AVAILABLE)
    return problem_response(error) or await _handle_unexpected(request, error)


def _is_for_operators(request: Request) -> bool:
    path = request.url.path
    is_for_customers = path.startswith(_CUSTOMER_PATHS) and not path.startswith(_OPERATOR_PATHS)
    return getattr(request.state, "is_admin", False) or not is_for_customers


def problem_response(error: ComfyRelayError) -> JSONResponse | None:
    """Return the response for an error; `None` for an internal error."""
    for kind, status, title in STATUS:
        if isinstance(error, kind):
            optional = {name: getattr(error, name, None) for name in _OPTIONAL_FIELDS}
            return _response(status, error.code, title=title, detail=error.detail, headers=_headers(error), **optional)
    return None


def _headers(error: ComfyRelayError) -> dict[str, str]:
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(max(1, round(error.retry_after_seconds)))}
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    return {}


async def _handle_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _handle_known(request, validation_error(request, error))


def validation_error(request: Request, error: RequestValidationError) -> InvalidInput:
    """Return the error with a sentence for each invalid field."""
    return InvalidInput(
        errors={
            _field(field_error["loc"]): _sentence(request, field_error)
            for field_error in error.errors()[:MAX_NAMED_ERRORS]
        }
    )


def _sentence(request: Request, error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        body = getattr(request.scope.get("route"), "body_field", None)
        *path, _unknown_name = error["loc"][1:]
        if body is not None and (model := _model_at(body.field_info.annotation, path)) is not None:
            return f"Unknown field. Valid fields: {', '.join(sorted(model.model_fields))}."
    if error["type"] == "string_pattern_mismatch" and "@" in error["ctx"]["pattern"]:
        return "This is not an email address."
    return str(error["msg"]).removeprefix("Value error, ")


def _model_at(annotation: Any, path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model at this path in a body."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return next(filter(None, (_model_at(inner, path) for inner in get_args(annotation))), None)
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return annotation
    field = annotation.model_fields.get(names[0])
    return _model_at(field.annotation, names[1:]) if field is not None else None


def _field(location: tuple[int | str, ...]) -> str:
    """Return the field name for the caller: `items.0.seed` for `body.items.0.seed`."""
    has_source = bool(location) and location[0] in ("body", "query", "path", "header")
    return ".".join(map(str, location[1:] if has_source else location)) or "body"


async def handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error of the framework, such as an unknown path."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        # FastAPI raises 400 only if the body cannot be decoded.
        return await _handle_known(request, InvalidInput(errors={"body": "This is not valid JSON."}))
    titles = {404: "Not found", 405: "Method not allowed"}
    title = titles.get(error.status_code, "The request cannot be processed")
    return _response(error.status_code, "http", title=title, detail=str(error.detail), headers=error.headers)


async def _handle_unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("request.failed", path=request.url.path, exc_info=error)
    # The cause is hidden from the caller, because it may contain internal details.
    return _response(500, "internal", title="Internal error", detail="The server failed. Try again later.")
