"""The base classes of all bodies, and the envelope of successful responses."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
_ABSENT = object()


class SentBody(BaseModel):
    """A body sent to the server. Refuses characters that no database can store. Fields with arbitrary JSON and nested
    models check their own values."""

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        # runs for each field of each request: most are a string or a number
        if isinstance(value, str):
            is_fit = is_storable(value)
        elif isinstance(value, list | tuple):
            is_fit = all(is_storable(each) for each in value if isinstance(each, str))
        else:
            return value
        if not is_fit:
            raise ValueError("This contains a character that cannot be stored.")
        return value

    def fields(self, of: type[BaseModel] | None = None, *, but: Collection[str] = ()) -> dict[str, Any]:
        """The parsed fields by name: all, or only the fields of the base model `of`."""
        part = of or type(self)
        _check_names(part, but)
        return {name: getattr(self, name) for name in part.model_fields if name not in but}


class Request(SentBody):
    """A request to the user or admin API. An unknown field is refused, because it is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerRequest(SentBody):
    """A request of a worker, which may be newer or older than the server."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return without_nulls(data)


class AnswerBody(BaseModel):
    """A response of the server. Fields that a newer server adds are kept, for callers that pass them on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @classmethod
    def of(cls, *sources: object, **fields: Any) -> Self:
        """Take each field from `fields`, or from the first source with an attribute of that name."""
        _check_names(cls, fields)
        if len(sources) == 1 and not fields:
            return cls.model_validate(sources[0], from_attributes=True)
        for name in cls.model_fields.keys() - fields.keys():
            for source in sources:
                if (value := getattr(source, name, _ABSENT)) is not _ABSENT:
                    fields[name] = value
                    break
        return cls.model_validate(fields, from_attributes=True)


class WorkerAnswer(AnswerBody):
    """A response to a worker, from a server that may be newer or older."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return without_nulls(data)


def without_nulls(data: Any) -> Any:
    """Between versions, null and an absent field both mean the default."""
    return {key: each for key, each in data.items() if each is not None} if isinstance(data, Mapping) else data


class Answer(BaseModel, Generic[T]):
    data: T
    message: str = "OK"


class Page(BaseModel, Generic[T]):
    """One page of a list. `next_cursor`, sent as `cursor`, returns the next page."""

    items: list[T]
    next_cursor: str | None = None


def checked(model: type[M], **fields: Any) -> M:
    """Validate a request before it is sent, as its receiver will; raises `InvalidInput`."""
    if model.model_config["extra"] != "forbid":
        _check_names(model, fields)
    try:
        return model(**fields)
    except ValidationError as error:
        raise InvalidInput(errors=field_errors(error.errors())) from None


def _check_names(model: type[BaseModel], names: Iterable[str]) -> None:
    """Senders know every field. A model that tolerates unknown fields would let a typo pass."""
    if unknown := set(names) - model.model_fields.keys():
        raise TypeError(f"{model.__name__} has no field {', '.join(sorted(unknown))}")


def field_errors(errors: Any) -> dict[str, str]:
    """Validation messages by field."""
    return {".".join(map(str, error["loc"])) or "body": error["msg"].removeprefix("Value error, ") for error in errors}


def example(**fields: Any) -> ConfigDict:
    """The example of a body in the API documentation."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


GRAPH_EXAMPLE = {
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{PROMPT}}", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "ComfyUI"}},
}
PROPERTY_EXAMPLE = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "user_configurable": True}
