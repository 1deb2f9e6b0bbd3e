"""Give each use of a subgraph its own copy, so that each can have its own values."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from comfyrelay.comfyui.editor.workflow import as_list, subgraphs_in
from comfyrelay.comfyui.graphs.graph import dump_json

# The editor shows each copy as a subgraph.
_MAX_COPIES = 200


def separate_uses(file: Mapping[str, Any], *, max_bytes: int) -> dict[str, Any] | None:
    """Return a copy of a file in which no subgraph is used twice, or `None` if none is or it would be too large."""
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
                # The same file always has the same ids.
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
