"""The words that bodies, paths and queries of the admin API are made of."""

from typing import Annotated, Any, ClassVar

from fastapi import Path, Query
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.json_schema import SkipJsonSchema

from comfyrelay.server.base.answers import Body
from comfyrelay.server.base.fields import DEEPEST, LARGEST_ID, STORABLE
from comfyrelay.text import storable

__all__ = [
    "AnyId",
    "DispatchId",
    "Extension",
    "MediaType",
    "Patch",
    "Slug",
    "TenantId",
    "TextCursor",
    "Unchanging",
    "WorkerId",
    "plain_json",
]

SLUG = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


def plain_json(value: Any, *, levels: int = DEEPEST) -> Any:
    """What a worker reported, cut off where it is nested too deeply to be passed on."""
    if isinstance(value, dict):
        return {storable(key): plain_json(each, levels=levels - 1) for key, each in value.items()} if levels else "…"
    if isinstance(value, list):
        return [plain_json(each, levels=levels - 1) for each in value] if levels else "…"
    return storable(value)


def _refuse_change(_value: object) -> None:
    raise ValueError("This never changes. Make a new one instead.")


Slug = Annotated[str, Field(max_length=100, pattern=SLUG, examples=["face-swap"])]
Extension = Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9]{1,10}$", examples=["mp4"])]
MediaType = Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$", examples=["video/mp4"])]
# Told apart from a field that nobody knows, so that the answer can say why.
Unchanging = SkipJsonSchema[Annotated[None, BeforeValidator(_refuse_change)]]

# A worker chooses its own name, which may hold a slash.
WorkerId = Annotated[str, Path(min_length=1, max_length=200, pattern=STORABLE)]
TenantId = Annotated[str, Path(max_length=64, pattern=r"^[^\x00/]+$")]
DispatchId = Annotated[int, Path(ge=1, le=LARGEST_ID)]
AnyId = Annotated[str | None, Query(max_length=200, pattern=STORABLE)]
TextCursor = Annotated[
    str | None, Query(max_length=200, pattern=STORABLE, description="`next_cursor` of the page before")
]


class Patch(Body):
    """What is not sent stays as it is."""

    may_be_null: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*")
    @classmethod
    def _not_null(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name not in cls.may_be_null:
            raise ValueError("This cannot be null. Leave it out to keep it as it is.")
        return value

    def changes(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)
