"""Field types of bodies."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from comfyrelay.text import is_storable, one_line, storable

E = TypeVar("E", bound=StrEnum)
LARGEST_ID = 2**63 - 1
LARGEST_VERSION = 2**31 - 1
# Seeds are unsigned 64-bit integers.
SMALLEST_NUMBER, LARGEST_NUMBER = -(2**63), 2**64 - 1
# Deeper than any graph or report, and within the limits of common JSON parsers.
DEEPEST = 64
# A text may be a file in base64.
LONGEST_NAME, LONGEST_TEXT = 1000, 4_000_000
# For Rust's regular expressions and JSON Schema: everything except NUL, which PostgreSQL cannot store.
STORABLE = r"^[^\x00]*$"
ID = r"^[A-Za-z0-9_-]+$"
# With parameters, as object storage accepts it.
_WORD = r"[A-Za-z0-9!#$&^_.+-]+"
MEDIA_TYPE = rf"^{_WORD}/{_WORD}(; ?{_WORD}=({_WORD}|\"[ !#-\[\]-~]*\"))*$"


def _check_json(value: Any) -> Any:
    """Refuse values that JSON, a database or a JSON parser cannot handle."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        each, depth = pending.pop()
        if depth > DEEPEST:
            raise ValueError(f"This is nested too deeply: at most {DEEPEST} levels.")
        if isinstance(each, dict):
            if any(len(name) > LONGEST_NAME for name in each):
                raise ValueError(f"This contains a name of more than {LONGEST_NAME} characters.")
            pending.extend((inner, depth + 1) for pair in each.items() for inner in pair)
        elif isinstance(each, list):
            pending.extend((inner, depth + 1) for inner in each)
        else:
            _check_scalar(each)
    return value


def _check_scalar(value: Any) -> None:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise ValueError(f"This contains a text of more than {LONGEST_TEXT} characters.")
        if not is_storable(value):
            raise ValueError("This contains a character that cannot be stored.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("This contains a number that is not one.")
    if isinstance(value, int) and not SMALLEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError(f"This contains a whole number beyond 64 bits: at most {LARGEST_NUMBER}.")


def plain_json(value: Any, *, levels: int = DEEPEST) -> Any:
    """The report of a worker, truncated where it is nested too deeply."""
    if isinstance(value, Mapping):
        return {storable(key): plain_json(each, levels=levels - 1) for key, each in value.items()} if levels else "…"
    if isinstance(value, list):
        return [plain_json(each, levels=levels - 1) for each in value] if levels else "…"
    return storable(value)


Json = Annotated[dict[str, Any], AfterValidator(_check_json)]
# Reported by a worker.
Reported = BeforeValidator(plain_json)
JsonValue = Annotated[Any, AfterValidator(_check_json)]
# Python accepts `true` as 1 and digits as a number; in a request both are mistakes.
Whole = Annotated[int, Field(strict=True)]
# integers stay integers: seeds have more digits than a float
Number = (
    Annotated[Whole, Field(ge=SMALLEST_NUMBER, le=LARGEST_NUMBER)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)
Email = Annotated[str, Field(max_length=254, pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$")]
Line = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE), AfterValidator(one_line)]
# For responses: an unknown value of a newer server does not make the rest unreadable.
OpenEnum = Annotated[E | str, Field(union_mode="left_to_right")]
RowId = Annotated[int, Field(ge=1, le=LARGEST_ID)]

Id = Annotated[str, Field(min_length=1, max_length=64, pattern=ID)]
Key = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
MaxWait = Annotated[
    Whole,
    Field(ge=0, le=31_536_000, description="seconds it may wait before it may run where it costs more"),
]
Slug = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
PropertyKey = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$")]
Priority = Annotated[int, Field(ge=-(2**31), le=2**31 - 1, description="clamped to the server's range")]
