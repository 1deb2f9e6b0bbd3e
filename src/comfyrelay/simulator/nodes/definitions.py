"""Inputs and outputs of node classes, as in `/object_info`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

# [type or list of choices] or [type or list of choices, options]
InputSpec = Sequence[Any]


class ChoiceSource(Enum):
    """Choices that depend on the files of this server."""

    INPUT_IMAGES = "image"
    INPUT_VIDEOS = "video"
    CHECKPOINTS = "checkpoint"
    LORAS = "lora"


_MODELS = frozenset({ChoiceSource.CHECKPOINTS, ChoiceSource.LORAS})
Listings = Mapping[ChoiceSource, Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDefinition:
    """`described` is the class's entry in `/object_info`. `listing` provides the choices of the input `listed`."""

    described: Mapping[str, Any]
    required: Mapping[str, InputSpec]
    optional: Mapping[str, InputSpec]
    output: Sequence[str]
    is_output: bool
    listed: str | None
    listing: ChoiceSource | None

    @property
    def file_input(self) -> str | None:
        """The name of the input for an existing file."""
        return None if self.listing in _MODELS else self.listed

    @property
    def file_noun(self) -> str:
        return "" if self.listing is None else self.listing.value

    def inputs(self, listings: Listings) -> dict[str, InputSpec]:
        """Return the inputs that a graph may set, required inputs first."""
        inputs = {**self.required, **self.optional}
        if self.listed is not None and self.listing is not None:
            spec, names = inputs[self.listed], list(listings[self.listing])
            is_list = isinstance(spec[0], list)
            inputs[self.listed] = [names, *spec[1:]] if is_list else [spec[0], {**spec[1], "options": names}]
        return inputs

    def info(self, listings: Listings) -> dict[str, Any]:
        inputs = self.inputs(listings)
        required = {name: inputs[name] for name in self.required}
        return {**self.described, "input": {**self.described["input"], "required": required}}


def choices(spec: InputSpec) -> Sequence[Any] | None:
    """Return the allowed values of a choice input. Nodes declare them in two ways."""
    if isinstance(spec[0], list):
        return spec[0]
    return list(spec[1].get("options", ())) if spec[0] == "COMBO" else None
