"""Update values stored by older versions of node packs, as the packs do when the editor opens a file."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from comfyrelay.comfyui.editor.workflow import as_dict, as_list, subgraphs_in

# Old versions of VideoHelperSuite stored values by position. `None` stands for a button.
_POSITIONS: Mapping[str, tuple[str | None, ...]] = {
    "VHS_LoadImages": ("directory", None, "image_load_cap", "skip_first_images", "select_every_nth"),
    "VHS_LoadImagesPath": ("directory", "image_load_cap", "skip_first_images", "select_every_nth"),
    "VHS_VideoCombine": ("frame_rate", "loop_count", "filename_prefix", "format", "pingpong", "save_image"),
    "VHS_LoadVideo": (
        *("video", "force_rate", "force_size"),
        *("frame_load_cap", "skip_first_frames", "select_every_nth"),
    ),
}
_POSITIONS_OF = {**_POSITIONS, "VHS_LoadVideoPath": _POSITIONS["VHS_LoadVideo"]}
_SIZES = ("custom_width", "custom_height")
# The choices of the former `force_size` that keep the video's width, and those that keep its height.
_WITHOUT_SIZE = (("Disabled", "Custom Height"), ("Disabled", "Custom Width"))

Values = list[Any] | dict[str, Any]


def current_values(class_type: str, stored: Values, names: Collection[str]) -> Values:
    """Return the values of a node for the current fields of its class: the same object if nothing changed."""
    if not class_type.startswith("VHS_"):
        return stored
    values = _by_name(class_type, stored) if isinstance(stored, list) else stored
    if values is None or not isinstance(values, dict):
        return stored
    if "save_image" in values and "save_output" in names and "save_output" not in values:
        values = {**values, "save_output": values["save_image"]}
    if "force_size" in values and "force_size" not in names:
        kept = {name: value for name, value in values.items() if name != "force_size"}
        values = {**kept, **_sizes(values["force_size"])}
    return values


def update_file(file: Mapping[str, Any], node_definitions: Mapping[str, Any]) -> None:
    """Update the values of all nodes of a file in place, so that new values can be written to their current fields."""
    for node in _nodes(file):
        stored = node.get("widgets_values")
        inputs = as_dict(as_dict(node_definitions.get(str(node.get("type")))).get("input"))
        if isinstance(stored, list | dict) and inputs:
            names = {*as_dict(inputs.get("required")), *as_dict(inputs.get("optional"))}
            node["widgets_values"] = current_values(str(node.get("type")), stored, names)


def _nodes(file: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pending = [file]
    while pending:
        sheet = pending.pop()
        yield from (node for node in as_list(sheet.get("nodes")) if isinstance(node, dict))
        pending.extend(subgraphs_in(sheet))


def _by_name(class_type: str, stored: list[Any]) -> dict[str, Any] | None:
    names = _POSITIONS_OF.get(class_type, ())
    if not names or len(stored) < len(names):
        return None
    return {name: value for name, value in zip(names, stored, strict=False) if name is not None}


def _sizes(force_size: object) -> dict[str, int]:
    """Return the sizes for a value of `force_size`, such as `512x?`. A size of 0 keeps that of the video."""
    if not isinstance(force_size, str):
        return {}
    if "x" in force_size:
        parts = force_size.split("x")
        return {name: int(part[:9]) if part.isdecimal() else 0 for name, part in zip(_SIZES, parts, strict=False)}
    return {name: 0 for name, choices in zip(_SIZES, _WITHOUT_SIZE, strict=True) if force_size in choices}
