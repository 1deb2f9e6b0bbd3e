"""Node classes as `/object_info` describes them: inputs and outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

# [type or list of choices] or [type or list of choices, options]
InputSpec = Sequence[Any]


class ChoiceSource(Enum):
    """Choices that are looked up each time."""

    INPUT_IMAGES = "image"
    INPUT_VIDEOS = "video"
    CHECKPOINTS = "checkpoint"
    LORAS = "lora"


_MODELS = frozenset({ChoiceSource.CHECKPOINTS, ChoiceSource.LORAS})
Listings = Mapping[ChoiceSource, Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDefinition:
    """`described` is the class's part of `/object_info`; `listed` is the input whose choices are listed."""

    described: Mapping[str, Any]
    required: Mapping[str, InputSpec]
    optional: Mapping[str, InputSpec]
    output: Sequence[str]
    is_output: bool
    listed: str | None
    listing: ChoiceSource | None

    @property
    def file_input(self) -> str | None:
        """The input that the node validates: its file must exist."""
        return None if self.listing in _MODELS else self.listed

    @property
    def file_noun(self) -> str:
        return "" if self.listing is None else self.listing.value

    def inputs(self, listings: Listings) -> dict[str, InputSpec]:
        """Inputs that a graph may set, required ones first."""
        given = {**self.required, **self.optional}
        if self.listed is not None and self.listing is not None:
            given[self.listed] = _with_choices(given[self.listed], list(listings[self.listing]))
        return given

    def info(self, listings: Listings) -> dict[str, Any]:
        inputs = self.inputs(listings)
        required = {name: inputs[name] for name in self.required}
        return {**self.described, "input": {**self.described["input"], "required": required}}


def choices(spec: InputSpec) -> Sequence[Any] | None:
    """Allowed values of a choice input; nodes declare them in two ways."""
    if isinstance(spec[0], list):
        return spec[0]
    return list(spec[1].get("options", ())) if spec[0] == "COMBO" else None


def _with_choices(spec: InputSpec, names: list[str]) -> InputSpec:
    return [names, *spec[1:]] if isinstance(spec[0], list) else [spec[0], {**spec[1], "options": names}]
