"""Inputs of a graph that hold a value, typed by the node definition or guessed from the value."""

import math
import re
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeGuard

from comfyrelay.comfyui.graphs.foreign_files import PATH_MARK
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import FOLDER_MARKS
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload
from comfyrelay.domain.properties import ASSET_TYPES, LARGEST_BOUND, PropertyType, kind_of
from comfyrelay.text import is_storable

# Node id and input name.
Position = tuple[str, str]
# Definitions of the inputs of a node, by name.
Specs = Mapping[str, list[Any]]

# `filename_prefix` is replaced before each run; the others matter only to the editor.
_EXCLUDED = frozenset({"filename_prefix", "control_after_generate", "upload", "choose file to upload"})
# The output format is fixed per workflow, so these are no properties.
FORMAT_INPUTS = frozenset({"format", "extension", "container", "file_type", "file_format", "output_format"})
# The limit of a property. Longer lists, mostly of models, become texts.
_MAX_CHOICES = 1000
_SMALLEST_NUMBER, _LARGEST_NUMBER = -(2**63), LARGEST_BOUND
_LONGEST_NAME = 255
_PATH = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
# Video first: video inputs may also accept animated images.
_UPLOADS = {
    "video_upload": PropertyType.VIDEO,
    "audio_upload": PropertyType.AUDIO,
    "image_upload": PropertyType.IMAGE,
}
_MOVING = re.compile(r"\.(gif|webp|apng)\b", re.IGNORECASE)
# tuples, not sets: a type may be a list of choices, which is not hashable
_NUMBERS, _TEXTS = ("INT", "FLOAT"), ("STRING",)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphInput:
    """An input with a value that may become a property."""

    node_id: str
    name: str
    value: Any
    type: PropertyType
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    is_whole: bool = False
    # from the node definition
    display_name: str | None = None
    is_multiline: bool = False

    @property
    def position(self) -> Position:
        return self.node_id, self.name

    @property
    def is_asset(self) -> bool:
        return self.type in ASSET_TYPES


def specs_of(node: Mapping[str, Any], object_info: Mapping[str, Any]) -> Specs:
    return dict(input_specs(object_info.get(node["class_type"])))


def has_type(spec: list[Any], types: Collection[str]) -> bool:
    """Whether an input has one of these types. The type of a choice may be the list of its choices."""
    return isinstance(spec[0], str) and spec[0] in types


def find_inputs(graph: Graph, object_info: Mapping[str, Any], *, savers: Set[str]) -> list[GraphInput]:
    """Inputs that can become properties, in graph order. `savers` are the output nodes."""
    found = []
    for node_id, node in graph.items():
        specs = specs_of(node, object_info)
        for name, value in node["inputs"].items():
            is_fixed = name in _EXCLUDED or (node_id in savers and name in FORMAT_INPUTS)
            if not is_fixed and _is_plain(value):
                fields = _type_input(node["class_type"], name, value, specs.get(name), is_saver=node_id in savers)
                if fields is not None:
                    found.append(GraphInput(node_id=node_id, name=name, value=value, **fields))
    return found


def _is_plain(value: object) -> bool:
    """Whether it is a single storable value, not a link, list or object."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and _SMALLEST_NUMBER <= value <= _LARGEST_NUMBER


def _type_input(
    class_type: str, name: str, value: Any, spec: list[Any] | None, *, is_saver: bool
) -> dict[str, Any] | None:
    """Type, choices and range of an input; `None` if it cannot be a property."""
    if isinstance(value, str) and not is_saver and (kind := _asset(class_type, name, value, spec)) is not None:
        return {"type": kind}
    guess: dict[str, Any] = {"type": _guess_type(value)}
    if spec is None:
        return guess
    if str(spec[0]).startswith("COMFY_DYNAMICCOMBO"):
        # another choice would need other inputs
        return None
    options, choices = _options(spec), choices_of(spec)
    if isinstance(name_shown := options.get("display_name"), str):
        guess["display_name"] = name_shown
    if choices is not None and len(choices) < _MAX_CHOICES and all(map(_is_plain, choices)):
        # keep the value of the graph even if the server does not list it, such as a missing model
        return guess | {"type": PropertyType.CHOICE, "choices": (*choices, *([] if value in choices else [value]))}
    if guess["type"] is PropertyType.NUMBER and has_type(spec, _NUMBERS):
        return guess | _range(value, options) | _stepping(value, options, is_whole=spec[0] == "INT")
    return guess | {"is_multiline": options.get("multiline") is True}


def _guess_type(value: Any) -> PropertyType:
    if isinstance(value, bool):
        return PropertyType.BOOLEAN
    return PropertyType.TEXT if isinstance(value, str) else PropertyType.NUMBER


def _range(value: float, options: Mapping[str, Any]) -> dict[str, float | None]:
    """The defined bounds, unless the value violates them: nodes may accept more than they define."""
    low, high = options.get("min"), options.get("max")
    return {
        "minimum": low if _is_number(low) and -LARGEST_BOUND <= low <= value else None,
        "maximum": high if _is_number(high) and LARGEST_BOUND >= high >= value else None,
    }


def _stepping(value: float, options: Mapping[str, Any], *, is_whole: bool) -> dict[str, Any]:
    step = options.get("step")
    is_whole = is_whole and isinstance(value, int)
    if not _is_number(step) or step <= 0 or (is_whole and step != int(step)):
        step = 1 if is_whole else None
    return {"step": int(step) if is_whole and step is not None else step, "is_whole": is_whole}


def _is_number(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, int | float) and -1e300 < value < 1e300


def _asset(class_type: str, name: str, value: str, spec: list[Any] | None) -> PropertyType | None:
    """The kind of file that an input names, if each job must bring it."""
    options = _options(spec) if spec is not None else {}
    for mark, kind in _UPLOADS.items():
        if options.get(mark):
            return kind
    named = _kind_named(value)
    if named is PropertyType.IMAGE and "video" in f"{class_type} {name}".lower() and _MOVING.search(value):
        # video loaders accept animations
        named = PropertyType.VIDEO
    if PATH_MARK in options:
        endings = options[PATH_MARK]
        kinds = {kind_of(f"x.{str(ending).lstrip('.')}") for ending in endings} if isinstance(endings, list) else set()
        return next((each for each in (named, *_UPLOADS.values()) if each is not None and each in kinds), None)
    if spec is not None and (is_upload(spec) or choices_of(spec) is not None):
        return named
    is_text = spec is None or (has_type(spec, _TEXTS) and not options.get("multiline"))
    # a sentence may end like a file name, so require a path, a loader or no spaces
    is_path = _PATH.match(value) or "load" in class_type.lower() or not any(map(str.isspace, value))
    return named if is_text and is_path else None


def _kind_named(value: str) -> PropertyType | None:
    for mark in FOLDER_MARKS:
        value = value.removesuffix(mark)
    # a choice of a saver may be an extension only
    is_name = len(value) <= _LONGEST_NAME and "\n" not in value and not value.startswith(".")
    return kind_of(value) if is_name else None


def _options(spec: list[Any]) -> Mapping[str, Any]:
    return spec[1] if len(spec) > 1 and isinstance(spec[1], dict) else {}
