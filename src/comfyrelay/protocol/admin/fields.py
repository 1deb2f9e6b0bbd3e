"""Field types of the admin API, and the base class of its PATCH bodies."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.json_schema import SkipJsonSchema

from comfyrelay.protocol.base import AnswerBody, Request
from comfyrelay.protocol.fields import StrictInt


def _refuse_change(_value: object) -> None:
    raise ValueError("This cannot be changed. Create a new one instead.")


Slug = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", examples=["face-swap"])]
MediaType = Annotated[str, Field(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$", examples=["video/mp4"])]
# Declared so that the error is more helpful than "unknown field".
Immutable = SkipJsonSchema[Annotated[None, BeforeValidator(_refuse_change)]]
# Millionths of the operator's currency, so that no amount is rounded.
Micros = Annotated[StrictInt, Field(ge=0, le=1_000_000_000_000_000)]


class Patch(Request):
    """Changes. Absent fields keep their value."""

    may_be_null: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*")
    @classmethod
    def _not_null(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name not in cls.may_be_null:
            raise ValueError("This cannot be null. Omit it to keep its value.")
        return value

    def changes(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class DeletedSlug(AnswerBody):
    slug: str
