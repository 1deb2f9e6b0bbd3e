"""Put the placeholders of a converted graph into the editor file."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from comfyrelay.comfyui.editor.convert import inputs_of, open_workflow, running_nodes
from comfyrelay.comfyui.editor.filling import MAX_EDITOR_BYTES
from comfyrelay.comfyui.editor.older_values import update_file
from comfyrelay.comfyui.editor.sources import Scope, Sources
from comfyrelay.comfyui.editor.widgets import StoredValue
from comfyrelay.comfyui.editor.workflow import as_list, subgraphs_in
from comfyrelay.comfyui.graphs.graph import Graph, dump_json

# Limited, because the editor shows each copy of a subgraph.
_MAX_COPIES = 200


def put_placeholders(
    file: dict[str, Any], node_definitions: Mapping[str, Any], graph: Graph, placeholders: Collection[str]
) -> None:
    """Put the placeholders of a converted graph into the file that it was converted from.

    If the uses of a subgraph have different placeholders, each use gets its own copy of the subgraph.
    """
    update_file(file, node_definitions)
    found = _find_places(file, node_definitions, graph, placeholders)
    if _has_conflict(found) and (separated := _separate_uses(file, max_bytes=MAX_EDITOR_BYTES)) is not None:
        file |= separated
        found = _find_places(file, node_definitions, graph, placeholders)
    # Set after the search, because a value decides which fields follow it.
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
    """Whether one place would get two different texts."""
    texts: dict[tuple[int, Any], Any] = {}
    changed = ((source, text) for source, text in found if text != source.value)
    return any(texts.setdefault((id(source.values), source.at), text) != text for source, text in changed)


def _separate_uses(file: Mapping[str, Any], *, max_bytes: int) -> dict[str, Any] | None:
    """Return a copy of a file in which no subgraph is used twice; `None` if none is or the copy is too large."""
    copy: dict[str, Any] = json.loads(dump_json(file))
    known = {str(definition.get("id")): definition for definition in _definitions(copy)}
    used: set[str] = set()
    new: list[dict[str, Any]] = []
    pending: list[Mapping[str, Any]] = [copy]
    while pending:
        for node in as_list(pending.pop().get("nodes")):
            kind = str(node.get("type")) if isinstance(node, dict) else ""
            if kind not in known:
                continue
            if kind in used:
                if len(new) == _MAX_COPIES:
                    return None
                # Deterministic, so that equal files get equal ids.
                new_id = str(uuid5(NAMESPACE_OID, f"{kind} {len(new)}"))
                new.append(json.loads(dump_json(known[kind])) | {"id": new_id})
                known[new_id] = new[-1]
                node["type"] = kind = new_id
            used.add(kind)
            pending.append(known[kind])
    if not new:
        return None
    copy["definitions"]["subgraphs"] += new
    return copy if len(dump_json(copy)) <= max_bytes else None


def _definitions(file: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pending: list[Mapping[str, Any]] = [file]
    while pending:
        for definition in subgraphs_in(pending.pop()):
            if isinstance(definition, dict):
                yield definition
                pending.append(definition)
