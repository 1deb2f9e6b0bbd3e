"""The envelope of every good answer."""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

__all__ = ["GRAPH_EXAMPLE", "PROPERTY_EXAMPLE", "Answer", "Body", "Page", "example"]

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


def example(**fields: Any) -> ConfigDict:
    """What the documentation shows of a body."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


GRAPH_EXAMPLE = {
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{PROMPT}}", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "ComfyUI"}},
}
PROPERTY_EXAMPLE = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "user_configurable": True}
