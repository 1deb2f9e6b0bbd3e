"""Describe how two versions of a graph differ."""

import json
from collections.abc import Iterator
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.domain.properties import list_names

# A prompt may have thousands of characters.
MAX_VALUE_LENGTH = 40


def describe_graph_changes(before: Graph, after: Graph) -> list[str]:
    """Return a sentence for each kind of change. A node is the same if it has the same id and class."""
    kept = [id_ for id_, node in after.items() if id_ in before and before[id_]["class_type"] == node["class_type"]]
    values: list[str] = []
    links: list[str] = []
    for id_ in kept:
        for name, old, new in _changed_inputs(before[id_]["inputs"], after[id_]["inputs"]):
            place = f"{_name(after, id_)} {name}"
            if is_link(old) or is_link(new):
                links.append(place)
            else:
                values.append(f"{place} ({_shorten(old)}, now {_shorten(new)})")
    changes = {
        "Added nodes": [_name(after, id_) for id_ in after if id_ not in kept],
        "Removed nodes": [_name(before, id_) for id_ in before if id_ not in kept],
        "Changed values": values,
        "Changed links": links,
    }
    return [f"{title}: {list_names(names)}." for title, names in changes.items() if names]


def _changed_inputs(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        # Compare JSON, because `True == 1` in Python.
        if json.dumps(old) != json.dumps(new):
            yield name, old, new


def _name(graph: Graph, id_: str) -> str:
    return f"{graph[id_]['class_type']} ({id_})"


def _shorten(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"
