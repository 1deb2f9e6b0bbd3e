"""The envelope of every good answer."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

__all__ = ["Answer", "Body", "Page"]

T = TypeVar("T")


class Answer(BaseModel, Generic[T]):
    data: T
    message: str = "OK"


class Page(BaseModel, Generic[T]):
    """One page of a list; `next_cursor`, sent back as `cursor`, gives the next one."""

    items: list[T]
    next_cursor: str | None = None


class Body(BaseModel):
    """What is sent to us. A field that we do not know is a mistake that is better told than ignored."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False, frozen=True)
