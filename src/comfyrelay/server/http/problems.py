"""Errors as problem details (RFC 9457): what happened, in a sentence, with the fields that are wrong."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from comfyrelay.errors import (
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
)
from comfyrelay.protocol.problems import KIND, Problem
from comfyrelay.protocol.requirements import MissingItem

log = structlog.get_logger(__name__)

# The most general last: the first class that fits decides.
STATUS: list[tuple[type[ComfyRelayError], int, str]] = [
    (InvalidInput, 422, "The input is not valid"),
    (GraphNotAllowed, 422, "This graph may not run here"),
    (GraphError, 422, "This is not a graph that can be run"),
    (InsufficientTokens, 422, "Not enough tokens"),
    (Unauthorized, 401, "Not signed in"),
    (Forbidden, 403, "Not allowed"),
    (NotFound, 404, "Not found"),
    (MissingOnWorkers, 409, "No worker has what this needs"),
    (PriceChanged, 409, "The price has changed"),
    (Conflict, 409, "In conflict with what is there"),
    (RequestTimeout, 408, "The request took too long"),
    (TooLarge, 413, "Too large"),
    (TooManyActiveJobs, 429, "Too many active jobs"),
    (TooManyRequests, 429, "Too many requests"),
    (NotReady, 503, "Not ready"),
    (NotWritable, 503, "A database takes no changes"),
    (DatabaseUnavailable, 503, "A database cannot be reached"),
    (StorageUnavailable, 503, "Object storage cannot be reached"),
]
MEDIA_TYPE = "application/problem+json"


def may_answer(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's documentation: the errors that it may answer with."""
    described = {status: title for _, status, title in STATUS}
    return {
        status: {
            "description": described.get(status, "An error"),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def add_problem_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ComfyRelayError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, _unknown)


def _answer(
    status: int,
    *,
    code: str,
    title: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    errors: dict[str, str] | None = None,
    required_tokens: int | None = None,
    missing: list[MissingItem] | None = None,
) -> JSONResponse:
    problem = Problem(
        type=f"{KIND}{code}",
        title=title,
        status=status,
        detail=detail,
        errors=errors or None,
        required_tokens=required_tokens or None,
        missing=missing or None,
    )
    return JSONResponse(
        problem.model_dump(exclude_none=True), status_code=status, headers=headers, media_type=MEDIA_TYPE
    )


async def _known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ComfyRelayError)
    return problem_response(error) or await _unknown(request, error)


def problem_response(error: ComfyRelayError) -> JSONResponse | None:
    """How one of our errors is answered; `None` for one that is nobody's fault but the server's."""
    for kind, status, title in STATUS:
        if isinstance(error, kind):
            return _answer(
                status,
                code=error.code,
                title=title,
                detail=error.detail,
                headers=_headers(error),
                errors=error.errors if isinstance(error, InvalidInput | NotReady) else None,
                required_tokens=error.required_tokens if isinstance(error, InsufficientTokens | PriceChanged) else None,
                missing=_missing(error) if isinstance(error, MissingOnWorkers) else None,
            )
    return None


def _missing(error: MissingOnWorkers) -> list[MissingItem]:
    return [MissingItem.model_validate(each) for each in error.missing]


def _headers(error: ComfyRelayError) -> dict[str, str]:
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(max(1, round(error.retry_after_seconds)))}
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    return {}


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = {_field(each["loc"]): _sentence(request, each) for each in error.errors()}
    return await _known(request, InvalidInput(errors=errors))


def _sentence(request: Request, error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        body = getattr(request.scope.get("route"), "body_field", None)
        *place, _unknown_name = error["loc"][1:]
        if body is not None and (model := _model_at(body.field_info.annotation, place)) is not None:
            return f"There is no such field. Fields: {', '.join(sorted(model.model_fields))}."
    if error["type"] == "string_pattern_mismatch" and "@" in error["ctx"]["pattern"]:
        return "This is not an email address."
    return str(error["msg"]).removeprefix("Value error, ")


def _model_at(annotation: Any, place: Sequence[int | str]) -> type[BaseModel] | None:
    """The model that a place in a body holds."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return next(filter(None, (_model_at(inner, place) for inner in get_args(annotation))), None)
    names = [each for each in place if isinstance(each, str)]
    if not names:
        return annotation
    field = annotation.model_fields.get(names[0])
    return _model_at(field.annotation, names[1:]) if field is not None else None


def _field(place: tuple[int | str, ...]) -> str:
    """`body.items.0.seed` is `items.0.seed` to whoever sent it."""
    inside = [str(part) for part in place[1:]] if place and place[0] in ("body", "query", "path", "header") else place
    return ".".join(map(str, inside)) or "body"


async def refused(request: Request, error: Exception) -> JSONResponse:
    """A refusal of the framework's own, such as of an address that does not exist."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        # the only one that FastAPI gives: the body could not even be decoded
        return await _known(request, InvalidInput(errors={"body": "This is not JSON."}))
    titles = {404: "Not found", 405: "This method is not allowed here"}
    title = titles.get(error.status_code, "The request cannot be answered")
    return _answer(error.status_code, code="http", title=title, detail=str(error.detail), headers=error.headers)


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    log.error("request.failed", path=request.url.path, exc_info=error)
    # what went wrong inside is for the log, not for the caller
    return _answer(
        500, code="internal", title="Something went wrong here", detail="The server failed. Try again later."
    )
