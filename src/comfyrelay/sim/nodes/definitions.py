"""What a node class looks like from outside: its inputs and outputs, as `/object_info` tells them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

# [type or list of choices] or [type or list of choices, options]
InputSpec = Sequence[Any]


class Listing(Enum):
    """Choices that are not fixed: they are looked up each time."""

    INPUT_IMAGES = "input images"
    INPUT_VIDEOS = "input videos"
    CHECKPOINTS = "checkpoints"


Listings = Mapping[Listing, Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDefinition:
    class_type: str
    display_name: str | None
    module: str
    category: str
    required: Mapping[str, InputSpec] = field(default_factory=dict)
    optional: Mapping[str, InputSpec] = field(default_factory=dict)
    has_metadata: bool = False
    output: tuple[str, ...] = ()
    output_name: tuple[str, ...] | None = None
    is_output: bool = False
    is_experimental: bool = False
    # ComfyUI describes the nodes of its newer interface with a few more fields
    is_new_style: bool = False
    # the input that the node checks itself: its file must exist
    file_input: str | None = None
    file_noun: str = "image"

    def inputs(self, listings: Listings) -> dict[str, InputSpec]:
        """The inputs that a graph may give, required ones first."""
        return {name: resolve(spec, listings) for name, spec in {**self.required, **self.optional}.items()}

    def info(self, listings: Listings) -> dict[str, Any]:
        groups: dict[str, dict[str, Any]] = {"required": {n: resolve(s, listings) for n, s in self.required.items()}}
        if self.optional:
            groups["optional"] = {name: resolve(spec, listings) for name, spec in self.optional.items()}
        if self.has_metadata:
            hidden = {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"}
            groups["hidden"] = {name: [kind] if self.is_new_style else kind for name, kind in hidden.items()}
        info: dict[str, Any] = {
            "input": groups,
            "input_order": {group: list(names) for group, names in groups.items()},
            "output": list(self.output),
            "output_is_list": [False] * len(self.output),
            "output_name": list(self.output_name or self.output),
            "name": self.class_type,
            "display_name": self.display_name,
            "description": "",
            "python_module": self.module,
            "category": self.category,
            "output_node": self.is_output,
        }
        return {**info, **self._new_style_fields()} if self.is_new_style else info

    def _new_style_fields(self) -> dict[str, Any]:
        return {
            "output_tooltips": [None] * len(self.output),
            "output_matchtypes": None,
            "deprecated": False,
            "experimental": self.is_experimental,
            "api_node": False,
        }


def resolve(spec: InputSpec, listings: Listings) -> list[Any]:
    """The spec with its listing, if it has one, replaced by the choices of this moment."""
    return [_resolved(part, listings) for part in spec]


def choices(spec: InputSpec) -> Sequence[Any] | None:
    """The values that the input may have, if it is one of a list; nodes write that in two ways."""
    if isinstance(spec[0], list):
        return spec[0]
    return list(spec[1].get("options", ())) if spec[0] == "COMBO" else None


def _resolved(part: Any, listings: Listings) -> Any:
    if isinstance(part, Listing):
        return list(listings[part])
    if isinstance(part, dict):
        return {name: _resolved(value, listings) for name, value in part.items()}
    return part
