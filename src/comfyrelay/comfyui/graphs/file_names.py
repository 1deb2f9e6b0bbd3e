"""Fill in the texts that the editor replaces in file names: `%date:yyyy-MM-dd%` and `%Node.widget%`.

The editor does this when it submits a graph, with the values of that run.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph
from comfyrelay.comfyui.graphs.nodes import title_of

# The savers whose file names the editor fills in, and that of VideoHelperSuite. Other savers fill in their own.
_SAVERS = frozenset(
    {
        *("SaveImage", "SaveImageAdvanced", "SaveSVGNode", "SaveVideo", "SaveAnimatedWEBP", "SaveAnimatedPNG"),
        *("SaveWEBM", "SaveAudio", "SaveAudioMP3", "SaveAudioOpus", "SaveAudioAdvanced", "SaveGLB", "Save3DAdvanced"),
        *("SaveGaussianSplat", "SavePointCloud", "CLIPSave", "VAESave", "ModelSave", "LoraSave", "SaveLatent"),
        "VHS_VideoCombine",
    }
)
PREFIX = "filename_prefix"
_TEXT = re.compile(r"%([^%]+)%")
_DATE = "date:"
_DATE_PART = re.compile(r"dd?|MM?|hh?|mm?|ss?|yyy?y?")
# Characters that a file name must not contain on Windows. A date may contain folders.
_FORBIDDEN = re.compile(r'[/?<>\\:*|"\x00-\x1f\x7f]')
_FORBIDDEN_IN_PATH = re.compile(r'[?<>:*|"\x00-\x1f\x7f]')
# A file with a longer name, such as a whole prompt, could not be saved.
_MAX_VALUE_LENGTH = 100

# Returns the text for a node and a widget, or `None` if there is none.
ValueText = Callable[[str, str], str | None]


def fill_file_names(graph: Graph, at: datetime) -> Graph:
    """Return the graph with the file names of its savers filled in. Dates are in local time.

    A text refers to a node by id, class or title. A text that matches no node is not changed.
    """

    prefixes = {node_id: prefix for node_id, node in graph.items() if (prefix := texts_of(node)) is not None}
    if not prefixes:
        return graph
    named = _by_name(graph)

    def value_of(name: str, widget: str) -> str | None:
        value = named[name].get(widget) if name in named else None
        return None if value is None or isinstance(value, list | dict) else value_text(value)

    local = at.astimezone()
    return {
        node_id: _with_name(node, replace_texts(prefixes[node_id], value_of, local)) if node_id in prefixes else node
        for node_id, node in graph.items()
    }


def texts_of(node: dict[str, Any]) -> str | None:
    """Return the file name of a saver if it contains texts to fill in."""
    prefix = node["inputs"].get(PREFIX) if node["class_type"] in _SAVERS else None
    return prefix if isinstance(prefix, str) and "%" in prefix else None


def replace_texts(text: str, value_of: ValueText, at: datetime | None) -> str:
    """Replace the texts in a file name. If `at` is `None`, dates are not changed."""

    def replaced(match: re.Match[str]) -> str:
        parts = match[1].split(".")
        if len(parts) == 2:
            found = value_of(parts[0], parts[1])
            return match[0] if found is None else found
        if at is None or not parts[0].startswith(_DATE):
            return match[0]
        return _FORBIDDEN_IN_PATH.sub("_", _format_date(parts[0].removeprefix(_DATE), at))

    return _TEXT.sub(replaced, text)


def value_text(value: object) -> str:
    """Format a value for a file name as JavaScript would."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _FORBIDDEN.sub("_", str(value)[:_MAX_VALUE_LENGTH])


def _by_name(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the inputs of nodes by title, class and id. Of duplicates, the first is used; ids take precedence."""
    found: dict[str, dict[str, Any]] = {}
    for node_id in reversed(graph):
        found[title_of(graph, node_id)] = graph[node_id]["inputs"]
    for node in reversed(graph.values()):
        if node["class_type"] not in _SAVERS:
            found[node["class_type"]] = node["inputs"]
    return found | {node_id: node["inputs"] for node_id, node in graph.items()}


def _with_name(node: dict[str, Any], name: str) -> dict[str, Any]:
    return {**node, "inputs": {**node["inputs"], PREFIX: name}}


def _format_date(pattern: str, at: datetime) -> str:
    parts = {"d": at.day, "M": at.month, "h": at.hour, "m": at.minute, "s": at.second}

    def part(match: re.Match[str]) -> str:
        text = match[0]
        if text[0] != "y":
            return str(parts[text[0]]).zfill(len(text))
        return {"yy": str(at.year)[2:], "yyyy": str(at.year)}.get(text, text)

    return _DATE_PART.sub(part, pattern)
