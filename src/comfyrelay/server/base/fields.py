"""The words that bodies, paths and queries of every audience are made of."""

import math
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, Field

from comfyrelay.text import is_storable

__all__ = [
    "LARGEST_ID",
    "STORABLE",
    "Json",
    "JsonValue",
    "Limit",
    "Line",
    "Number",
    "NumberCursor",
    "RowId",
    "SlugInPath",
]

LARGEST_ID = 2**63 - 1
# Seeds have 64 bits without a sign.
SMALLEST_NUMBER, LARGEST_NUMBER = -(2**63), 2**64 - 1
# No graph or report goes this deep, and not every reader of JSON goes much deeper.
DEEPEST = 64
# Rust's regular expressions, and JSON: everything but NUL, which PostgreSQL does not keep.
STORABLE = r"^[^\x00]*$"


def _check_json(value: Any) -> Any:
    """Refuse what JSON itself, a database or a reader does not take."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        each, depth = pending.pop()
        if depth > DEEPEST:
            raise ValueError(f"This is nested too deeply: at most {DEEPEST} levels.")
        if isinstance(each, dict):
            pending.extend((inner, depth + 1) for pair in each.items() for inner in pair)
        elif isinstance(each, list):
            pending.extend((inner, depth + 1) for inner in each)
        else:
            _check_scalar(each)
    return value


def _check_scalar(value: Any) -> None:
    if isinstance(value, str) and not is_storable(value):
        raise ValueError("This contains a character that cannot be stored.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("This contains a number that is not one.")
    if isinstance(value, int) and not SMALLEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError(f"This contains a whole number beyond 64 bits: at most {LARGEST_NUMBER}.")


Json = Annotated[dict[str, Any], AfterValidator(_check_json)]
JsonValue = Annotated[Any, AfterValidator(_check_json)]
# whole ones stay whole: those of seeds have more digits than a float
Number = Annotated[int, Field(ge=SMALLEST_NUMBER, le=LARGEST_NUMBER)] | Annotated[float, Field(allow_inf_nan=False)]
Line = Annotated[str, Field(min_length=1, max_length=200, pattern=STORABLE)]
RowId = Annotated[int, Field(ge=1, le=LARGEST_ID)]

SlugInPath = Annotated[str, Path(max_length=200, pattern=r"^[^\x00/]+$")]
Limit = Annotated[int, Query(ge=1, le=200, description="how many at most")]
NumberCursor = Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="`next_cursor` of the page before")]
