"""What all bodies are made of, and the envelope of every good answer."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
_ABSENT = object()


class SentBody(BaseModel):
    """What is sent to the server. Some characters no database keeps, and each text may end up in one. Fields that hold
    any JSON look for themselves; models within this one, too."""

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        # for each field of each request: most are one text, or a number
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
        """By name, as they were read, for whoever has the same names and takes no others: all, or those `of` a model
        that this one is made of."""
        part = of or type(self)
        _check_names(part, but)
        return {name: getattr(self, name) for name in part.model_fields if name not in but}


class Request(SentBody):
    """A request to the user or admin API. An unknown field is a mistake that is better refused than ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerRequest(SentBody):
    """A request of a worker, which may be newer or older than the server."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _take_null_for_absent(cls, data: Any) -> Any:
        return without_nulls(data)


class AnswerBody(BaseModel):
    """What the server answers. What a newer one adds is kept, for whoever passes it on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @classmethod
    def of(cls, *sources: object, **fields: Any) -> Self:
        """Made of the attributes of these objects: each field from the first that has it, unless it is given."""
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
    """What a worker is answered, by a server that may be newer or older."""

    @model_validator(mode="before")
    @classmethod
    def _take_null_for_absent(cls, data: Any) -> Any:
        return without_nulls(data)


def without_nulls(data: Any) -> Any:
    """Between versions, a null says as little as an absent field: the default counts."""
    return {key: each for key, each in data.items() if each is not None} if isinstance(data, Mapping) else data


class Answer(BaseModel, Generic[T]):
    data: T
    message: str = "OK"


class Page(BaseModel, Generic[T]):
    """One page of a list; `next_cursor`, sent back as `cursor`, gives the next one."""

    items: list[T]
    next_cursor: str | None = None


def checked(model: type[M], **fields: Any) -> M:
    """A request as its receiver checks it; `InvalidInput` with what it would refuse."""
    if model.model_config["extra"] != "forbid":
        _check_names(model, fields)
    try:
        return model(**fields)
    except ValidationError as error:
        raise InvalidInput(errors=field_errors(error.errors())) from None


def _check_names(model: type[BaseModel], names: Iterable[str]) -> None:
    """Who sends knows every field; a model that is tolerant to whoever receives would let a misspelt one pass."""
    if unknown := set(names) - model.model_fields.keys():
        raise TypeError(f"{model.__name__} has no field {', '.join(sorted(unknown))}")


def field_errors(errors: Any) -> dict[str, str]:
    """What is wrong, by field."""
    return {".".join(map(str, each["loc"])) or "body": each["msg"].removeprefix("Value error, ") for each in errors}


def example(**fields: Any) -> ConfigDict:
    """What the documentation shows of a body."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


GRAPH_EXAMPLE = {
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{PROMPT}}", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "ComfyUI"}},
}
PROPERTY_EXAMPLE = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "user_configurable": True}
