"""Field types of request and response bodies."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from comfyrelay.domain.credentials import MAX_EMAIL_LENGTH, email_problem
from comfyrelay.text import is_storable, one_line, storable

E = TypeVar("E", bound=StrEnum)
MAX_ID = 2**63 - 1
MAX_VERSION = 2**31 - 1
# Seeds are unsigned 64-bit integers.
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
# Deeper than any graph or report, and within the limits of common JSON parsers.
MAX_JSON_DEPTH = 64
# A string may be a file in base64.
MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 1000, 4_000_000
# A pattern for Rust's regular expressions and JSON Schema: all characters except NUL, which PostgreSQL cannot store.
STORABLE = r"^[^\x00]*$"
ID = r"^[A-Za-z0-9_-]+$"
# A media type with parameters, in the form that object storage accepts.
_WORD = r"[A-Za-z0-9!#$&^_.+-]+"
MEDIA_TYPE = rf"^{_WORD}/{_WORD}(; ?{_WORD}=({_WORD}|\"[ !#-\[\]-~]*\"))*$"


def check_json(value: Any) -> Any:
    """Refuse values that cannot be stored or that common JSON parsers cannot read."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        current, depth = pending.pop()
        if depth > MAX_JSON_DEPTH:
            raise ValueError(f"This is nested too deeply. At most {MAX_JSON_DEPTH} levels are allowed.")
        if isinstance(current, dict):
            if any(len(name) > MAX_NAME_LENGTH for name in current):
                raise ValueError(f"This contains a name of more than {MAX_NAME_LENGTH} characters.")
            pending.extend((inner, depth + 1) for pair in current.items() for inner in pair)
        elif isinstance(current, list):
            pending.extend((inner, depth + 1) for inner in current)
        else:
            _check_scalar(current)
    return value


def _check_scalar(value: Any) -> None:
    if isinstance(value, str):
        if len(value) > MAX_TEXT_LENGTH:
            raise ValueError(f"This contains a text of more than {MAX_TEXT_LENGTH} characters.")
        if not is_storable(value):
            raise ValueError("This contains a character that cannot be stored.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("This contains NaN or an infinite number. Send a finite one.")
    if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise ValueError(f"This contains a whole number that is not between {MIN_INTEGER} and {MAX_INTEGER}.")


def storable_json(value: Any, *, levels: int = MAX_JSON_DEPTH) -> Any:
    """Return a worker's report with only storable text, truncated where it is nested too deeply."""
    if isinstance(value, Mapping):
        return (
            {storable(key): storable_json(inner, levels=levels - 1) for key, inner in value.items()} if levels else "…"
        )
    if isinstance(value, list):
        return [storable_json(inner, levels=levels - 1) for inner in value] if levels else "…"
    return storable(value)


def _check_email(email: str) -> str:
    if (problem := email_problem(email)) is not None:
        raise ValueError(problem)
    return email


Json = Annotated[dict[str, Any], AfterValidator(check_json)]
# For values that a worker reported.
Reported = BeforeValidator(storable_json)
JsonValue = Annotated[Any, AfterValidator(check_json)]
# Python accepts `true` as 1 and a string of digits as a number. In a request, both are mistakes.
StrictInt = Annotated[int, Field(strict=True)]
# Keep integers: seeds have more digits than a float.
Number = (
    Annotated[StrictInt, Field(ge=MIN_INTEGER, le=MAX_INTEGER)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)
Email = Annotated[
    str,
    Field(max_length=MAX_EMAIL_LENGTH, pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$"),
    AfterValidator(_check_email),
]
MAX_LINE_LENGTH = 200
Line = Annotated[str, Field(min_length=1, max_length=MAX_LINE_LENGTH, pattern=STORABLE), AfterValidator(one_line)]
# For responses: an unknown value from a newer server does not make the rest unreadable.
OpenEnum = Annotated[E | str, Field(union_mode="left_to_right")]
RowId = Annotated[int, Field(ge=1, le=MAX_ID)]


def _refuse_empty(size: object) -> object:
    if size == 0:
        raise ValueError("This file is empty. Choose another one.")
    return size


# For the size of a file.
NotEmpty = BeforeValidator(_refuse_empty)

Id = Annotated[str, Field(min_length=1, max_length=64, pattern=ID)]
Key = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
MaxWait = Annotated[
    StrictInt,
    Field(
        ge=0, le=31_536_000, description="a job that would wait longer than this many seconds may move to Comfy Cloud"
    ),
]
Slug = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
PropertyKey = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$")]
Priority = Annotated[
    int, Field(ge=-(2**31), le=2**31 - 1, description="higher priorities run first; clamped to the server's range")
]
