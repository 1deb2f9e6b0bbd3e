"""Base classes of all bodies, and the envelope of successful responses."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
_ABSENT = object()
# Models are built on first use, because building all of them takes a tenth of a server's startup time.
DEFERRED = ConfigDict(defer_build=True)


class SentBody(BaseModel):
    """A body sent to the server. Its strings contain only characters that every database can store. Nested models and
    fields with arbitrary JSON check their own values."""

    model_config = DEFERRED

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
        if not all(is_storable(text) for text in texts if isinstance(text, str)):
            raise ValueError("This contains a character that cannot be stored.")
        return value

    def fields(self, of: type[BaseModel] | None = None, *, but: Collection[str] = ()) -> dict[str, Any]:
        """Return the parsed fields by name: all of them, or only the fields of the base model `of`."""
        part = of or type(self)
        _check_names(part, but)
        return {name: getattr(self, name) for name in part.model_fields if name not in but}


class Request(SentBody):
    """A request to the user or admin API. Unknown fields are refused: they are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _NullIsDefault(BaseModel):
    """Between different versions, both null and an absent field mean the default."""

    model_config = DEFERRED

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


class WorkerRequest(SentBody, _NullIsDefault):
    """A request of a worker, which may be newer or older than the server."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class AnswerBody(BaseModel):
    """A response of the server. Fields of a newer server are kept, for callers that pass them on."""

    model_config = ConfigDict(**DEFERRED, extra="allow", frozen=True)

    @classmethod
    def of(cls, *sources: object, **fields: Any) -> Self:
        """Create a response. Each field comes from `fields`, or from a source with an attribute of that name.

        Sources with different values for a field are an error, because a limit and a count may have the same name.
        """
        _check_names(cls, fields)
        if len(sources) == 1 and not fields:
            return cls.model_validate(sources[0], from_attributes=True)
        for name in cls.model_fields.keys() - fields.keys():
            found = [value for source in sources if (value := getattr(source, name, _ABSENT)) is not _ABSENT]
            if any(other is not found[0] and other != found[0] for other in found[1:]):
                raise TypeError(f"The sources have different values of {cls.__name__}.{name}: pass it by keyword.")
            if found:
                fields[name] = found[0]
        return cls.model_validate(fields, from_attributes=True)


class WorkerAnswer(AnswerBody, _NullIsDefault):
    """A response to a worker, from a server that may be newer or older."""


class Answer(BaseModel, Generic[T]):
    model_config = DEFERRED

    data: T
    message: str = "OK"


class Items(BaseModel, Generic[T]):
    """A complete list."""

    model_config = DEFERRED

    items: list[T]


class Page(BaseModel, Generic[T]):
    """One page of a list. Send `next_cursor` as `cursor` to get the next page; it is null on the last page."""

    model_config = DEFERRED

    items: list[T]
    next_cursor: str | None = None


def checked(model: type[M], **fields: Any) -> M:
    """Validate a request before it is sent, in the same way as its receiver. Raises `InvalidInput`."""
    if model.model_config["extra"] != "forbid":
        _check_names(model, fields)
    try:
        return model(**fields)
    except ValidationError as error:
        raise InvalidInput(errors=field_errors(error.errors())) from None


def _check_names(model: type[BaseModel], names: Iterable[str]) -> None:
    """Catch the sender's typos, which models that ignore unknown fields would accept."""
    if unknown := set(names) - model.model_fields.keys():
        raise TypeError(f"{model.__name__} has no field {', '.join(sorted(unknown))}")


def field_errors(errors: Any) -> dict[str, str]:
    """Return the validation messages by field."""
    return {".".join(map(str, error["loc"])) or "body": error["msg"].removeprefix("Value error, ") for error in errors}


def build_models() -> None:
    """Build all models that are defined so far, before a request needs them."""
    pending: list[type[BaseModel]] = [SentBody, AnswerBody]
    while pending:
        model = pending.pop()
        model.model_rebuild()
        pending += model.__subclasses__()


def example(**fields: Any) -> ConfigDict:
    """Return a model configuration with an example for the API documentation."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


GRAPH_EXAMPLE = {
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "{{PROMPT}}", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "ComfyUI"}},
}
PROPERTY_EXAMPLE = {"key": "prompt", "type": "text", "placeholder": "{{PROMPT}}", "user_configurable": True}
