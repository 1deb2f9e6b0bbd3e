"""Write the values of a run into the editor's file, so that a picture opens as its author laid it out.

The file is stored with the placeholders of its workflow, and filled for each run.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from comfyrelay.comfyui.editor.convert import inputs_of, open_workflow, running_nodes
from comfyrelay.comfyui.editor.older_values import update_file
from comfyrelay.comfyui.editor.sources import Scope, Sources
from comfyrelay.comfyui.editor.subgraph_uses import separate_uses
from comfyrelay.comfyui.editor.widgets import StoredValue
from comfyrelay.comfyui.graphs.graph import Graph, dump_json, fill_texts
from comfyrelay.errors import GraphError

# The file travels with every job and is written into every picture. The largest public template has 0.3 MB.
MAX_EDITOR_BYTES = 2**20
_VALUES = "widgets_values"


def copy_editor_file(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Copy an editor file for pictures. `None` if it is too large, or if JSON cannot represent it."""
    try:
        text = dump_json(value)
    except GraphError:
        return None
    if len(text) > MAX_EDITOR_BYTES:
        return None
    copy: dict[str, Any] = json.loads(text)
    if isinstance(extra := copy.get("extra"), dict):
        # The part of the canvas that was last seen: files that differ only in it are equal.
        extra.pop("ds", None)
    return copy


def put_placeholders(
    file: dict[str, Any], node_definitions: Mapping[str, Any], graph: Graph, placeholders: Collection[str]
) -> None:
    """Put the placeholders of a converted graph into the file that it was converted from.

    A subgraph with different placeholders in its uses is copied for each use.
    """
    update_file(file, node_definitions)
    found = _find_places(file, node_definitions, graph, placeholders)
    if _has_conflict(found) and (separated := separate_uses(file, max_bytes=MAX_EDITOR_BYTES)) is not None:
        file |= separated
        found = _find_places(file, node_definitions, graph, placeholders)
    # Set at the end: a value decides which fields follow it.
    for source, text in found:
        source.set(text)


def _find_places(
    file: Mapping[str, Any], node_definitions: Mapping[str, Any], graph: Graph, placeholders: Collection[str]
) -> list[tuple[StoredValue, Any]]:
    workflow = open_workflow(file, node_definitions)
    sources = Sources(workflow, node_definitions)
    found: list[tuple[StoredValue, Any]] = []
    for scope, node in running_nodes(Scope(workflow.root), sources):
        described = graph.get(scope.id_of(node), {}).get("inputs", {})
        changed = [
            (source, text)
            for name, source in inputs_of(sources, scope, node).items()
            if isinstance(source, StoredValue)
            if isinstance(text := described.get(name), str) and text in placeholders
        ]
        if any(source.is_default for source, _ in changed):
            found += [(field, field.value) for field in sources.fields(scope, node).values() if field.is_default]
        found += changed
    return found


def _has_conflict(found: Sequence[tuple[StoredValue, Any]]) -> bool:
    """Return whether one place would get two different texts."""
    texts: dict[tuple[int, Any], Any] = {}
    changed = ((source, text) for source, text in found if text != source.value)
    return any(texts.setdefault((id(source.values), source.at), text) != text for source, text in changed)


def fill_editor_file(file: Mapping[str, Any], values: Mapping[str, object]) -> dict[str, Any]:
    """Return the file with each placeholder in the values of its nodes replaced."""
    return {key: fill_texts(part, values) if key == _VALUES else _fill_part(part, values) for key, part in file.items()}


def _fill_part(part: Any, values: Mapping[str, object]) -> Any:
    if isinstance(part, dict):
        return fill_editor_file(part, values)
    return [_fill_part(item, values) for item in part] if isinstance(part, list) else part
