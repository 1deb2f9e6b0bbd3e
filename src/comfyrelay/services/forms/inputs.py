"""Find the inputs of a graph that have a value, with the type of the node definition or guessed from the value."""

import math
import re
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeGuard

from comfyrelay.comfyui.graphs.dynamic_prompts import dynamic_prompts_of
from comfyrelay.comfyui.graphs.foreign_files import PATH_MARK
from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import FOLDER_MARKS
from comfyrelay.comfyui.graphs.preflight import choices_of, input_specs, is_upload
from comfyrelay.domain.properties import ASSET_TYPES, MAX_BOUND, PropertyType, kind_of
from comfyrelay.text import is_storable

# Node id and input name.
Position = tuple[str, str]
# Definitions of the inputs of a node, by name.
Specs = Mapping[str, list[Any]]

# `filename_prefix` is replaced before each run. The other inputs matter only to the editor.
_EXCLUDED = frozenset(
    {"filename_prefix", "control_after_generate", "upload", "choose file to upload", "viewport_state"}
)
# The output format is fixed for a workflow, so these inputs do not become properties.
FORMAT_INPUTS = frozenset({"format", "extension", "container", "file_type", "file_format", "output_format"})
# Maximum number of choices of a property. Inputs with more choices, mostly models, become texts.
_MAX_CHOICES = 1000
_MIN_NUMBER, _MAX_NUMBER = -(2**63), MAX_BOUND
_MAX_FILENAME_LENGTH = 255
# Matches an embedded file, which is not a text written by users.
_BASE64 = re.compile(r"data:[\w/+.;=-]+,|[A-Za-z0-9+/_-]{200,}={0,2}\s*\Z")
_PATH = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
# Video first: video inputs may also accept animated images.
_UPLOADS = {
    "video_upload": PropertyType.VIDEO,
    "audio_upload": PropertyType.AUDIO,
    "image_upload": PropertyType.IMAGE,
}
_NUMBERED = re.compile(r"(.*\D)\d{1,4}", re.DOTALL)
_ANIMATION = re.compile(r"\.(gif|webp|apng)\b", re.IGNORECASE)
# Tuples and not sets, because a type may be a list of choices, which is not hashable.
_NUMBERS, _TEXTS = ("INT", "FLOAT"), ("STRING",)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphInput:
    """An input with a value, which may become a property."""

    node_id: str
    name: str
    value: Any
    type: PropertyType
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    is_whole: bool = False
    # Taken from the node definition.
    display_name: str | None = None
    is_multiline: bool = False
    # The editor draws the choices of dynamic prompts for each run.
    is_dynamic_prompt: bool = False

    @property
    def position(self) -> Position:
        return self.node_id, self.name

    @property
    def is_asset(self) -> bool:
        return self.type in ASSET_TYPES


def specs_of(node: Mapping[str, Any], object_info: Mapping[str, Any]) -> Specs:
    return dict(input_specs(object_info.get(node["class_type"])))


def has_type(spec: list[Any], types: Collection[str]) -> bool:
    """Return whether an input has one of these types. The type of a choice may be the list of its choices."""
    return isinstance(spec[0], str) and spec[0] in types


def find_inputs(graph: Graph, object_info: Mapping[str, Any], *, savers: Set[str]) -> list[GraphInput]:
    """Return the inputs that can become properties, in graph order. `savers` are the output nodes."""
    found = []
    for node_id, node in graph.items():
        specs = specs_of(node, object_info)
        series = _numbered_series(specs)
        dynamic = dynamic_prompts_of(node)
        for name, value in node["inputs"].items():
            is_fixed = name in _EXCLUDED or (node_id in savers and name in FORMAT_INPUTS)
            spec = _find_spec(name, specs, series)
            if not is_fixed and _is_plain(value) and not _is_leftover(name, value, spec, specs):
                fields = _type_input(node["class_type"], name, value, spec, is_saver=node_id in savers)
                if fields is not None:
                    is_dynamic = name in dynamic
                    found.append(
                        GraphInput(node_id=node_id, name=name, value=value, is_dynamic_prompt=is_dynamic, **fields)
                    )
    return found


def _numbered_series(specs: Specs) -> Specs:
    """Return the definition of each numbered series, such as `string_1` and `string_2`, by its name without a number.
    Nodes can add inputs to a series at run time."""
    return {
        # Omit the display name, because it belongs to one input.
        numbered[1]: [spec[0], {key: value for key, value in _options(spec).items() if key != "display_name"}]
        for name, spec in specs.items()
        if (numbered := _NUMBERED.fullmatch(name)) is not None
    }


def _find_spec(name: str, specs: Specs, series: Specs) -> list[Any] | None:
    numbered = None if name in specs else _NUMBERED.fullmatch(name)
    return specs.get(name) if numbered is None else series.get(numbered[1])


def _is_leftover(name: str, value: object, spec: list[Any] | None, specs: Specs) -> bool:
    """Return whether a value is not meant for users: its input is not defined, or it is an embedded file."""
    if isinstance(value, str) and _BASE64.match(value):
        return True
    # A choice may add inputs: as `format.crf`, or as a list of fields for each format.
    has_formats = any("formats" in _options(known) for known in specs.values())
    return bool(specs) and spec is None and "." not in name and not has_formats


def _is_plain(value: object) -> bool:
    """Return whether a value is a single storable value rather than a link, list or object."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and _MIN_NUMBER <= value <= _MAX_NUMBER


def _type_input(
    class_type: str, name: str, value: Any, spec: list[Any] | None, *, is_saver: bool
) -> dict[str, Any] | None:
    """Return the type, choices and range of an input, or `None` if it cannot be a property."""
    if isinstance(value, str) and not is_saver and (kind := _asset(class_type, name, value, spec)) is not None:
        return {"type": kind}
    guessed = PropertyType.TEXT if isinstance(value, str) else PropertyType.NUMBER
    guess: dict[str, Any] = {"type": PropertyType.BOOLEAN if isinstance(value, bool) else guessed}
    if spec is None:
        return guess
    if str(spec[0]).startswith("COMFY_DYNAMICCOMBO"):
        # Other choices would need other inputs.
        return None
    options, choices = _options(spec), choices_of(spec)
    if isinstance(display_name := options.get("display_name"), str):
        guess["display_name"] = display_name
    if choices is not None and len(choices) < _MAX_CHOICES and all(map(_is_plain, choices)):
        # Keep the value of the graph even if the server does not list it, such as a missing model.
        return guess | {"type": PropertyType.CHOICE, "choices": (*choices, *([] if value in choices else [value]))}
    if guess["type"] is PropertyType.NUMBER and has_type(spec, _NUMBERS):
        return guess | _range(value, options) | _stepping(value, options, is_whole=spec[0] == "INT")
    return guess | {"is_multiline": options.get("multiline") is True}


def _range(value: float, options: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the defined bounds that the value satisfies. Nodes may accept values outside their bounds."""
    low, high = options.get("min"), options.get("max")
    return {
        "minimum": low if _is_number(low) and -MAX_BOUND <= low <= value else None,
        "maximum": high if _is_number(high) and MAX_BOUND >= high >= value else None,
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
    """Return the type of file that an input names, if each job must have its own file."""
    options = _options(spec) if spec is not None else {}
    for mark, kind in _UPLOADS.items():
        if options.get(mark):
            return kind
    named = _kind_named(value)
    if named is PropertyType.IMAGE and "video" in f"{class_type} {name}".lower() and _ANIMATION.search(value):
        # Video loaders accept animated images.
        named = PropertyType.VIDEO
    if PATH_MARK in options:
        endings = options[PATH_MARK]
        kinds = {kind_of(f"x.{str(ending).lstrip('.')}") for ending in endings} if isinstance(endings, list) else set()
        return next((kind for kind in (named, *_UPLOADS.values()) if kind is not None and kind in kinds), None)
    if spec is not None and (is_upload(spec) or choices_of(spec) is not None):
        return named
    is_text = spec is None or (has_type(spec, _TEXTS) and not options.get("multiline"))
    # A sentence may end in the same way as a file name, so require a path, a loader or no spaces.
    is_path = _PATH.match(value) or "load" in class_type.lower() or not any(map(str.isspace, value))
    return named if is_text and is_path else None


def _kind_named(value: str) -> PropertyType | None:
    for mark in FOLDER_MARKS:
        value = value.removesuffix(mark)
    # The choice of a saver may be only an extension.
    is_name = len(value) <= _MAX_FILENAME_LENGTH and "\n" not in value and not value.startswith(".")
    return kind_of(value) if is_name else None


def _options(spec: list[Any]) -> Mapping[str, Any]:
    return spec[1] if len(spec) > 1 and isinstance(spec[1], dict) else {}
