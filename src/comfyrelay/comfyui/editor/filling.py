"""Write the values of a run into the editor file, so that a picture opens with its author's layout.

The file is stored with the placeholders of its workflow, which are replaced for each run.
"""

import json
from collections.abc import Mapping
from typing import Any

from comfyrelay.comfyui.graphs.graph import dump_json, fill_texts
from comfyrelay.errors import GraphError

# The file is sent with every job and written into every picture. The largest public template has 0.3 MB.
MAX_EDITOR_BYTES = 2**20
_VALUES = "widgets_values"


def copy_editor_file(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a copy of an editor file for pictures, or `None` if it is too large or cannot be represented in JSON."""
    try:
        text = dump_json(value)
    except GraphError:
        return None
    if len(text) > MAX_EDITOR_BYTES:
        return None
    copy: dict[str, Any] = json.loads(text)
    if isinstance(extra := copy.get("extra"), dict):
        # The last visible part of the canvas. Files that differ only in this are equal.
        extra.pop("ds", None)
    return copy


def fill_editor_file(file: Mapping[str, Any], values: Mapping[str, object]) -> dict[str, Any]:
    """Return the file with each placeholder in the values of its nodes replaced."""
    return {key: fill_texts(part, values) if key == _VALUES else _fill_part(part, values) for key, part in file.items()}


def _fill_part(part: Any, values: Mapping[str, object]) -> Any:
    if isinstance(part, dict):
        return fill_editor_file(part, values)
    return [_fill_part(item, values) for item in part] if isinstance(part, list) else part
