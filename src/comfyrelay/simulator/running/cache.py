"""Cache of node results by signature: two nodes with the same computation share a result. As in ComfyUI's classic
cache, only results that the latest prompt used are kept."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedNode:
    outputs: tuple[Any, ...]
    # {"output": …, "meta": …} of a node that sends a message to the client.
    ui: dict[str, Any] | None


class Cache:
    def __init__(self) -> None:
        self._nodes: dict[str, CachedNode] = {}
        self._signatures: dict[str, str] = {}

    def begin(self, signatures: dict[str, str]) -> None:
        """Start a new prompt and drop the results that it does not use."""
        self._signatures = signatures
        used = set(signatures.values())
        self._nodes = {signature: node for signature, node in self._nodes.items() if signature in used}

    def get(self, node_id: str) -> CachedNode | None:
        return self._nodes.get(self._signatures.get(node_id, ""))

    def put(self, node_id: str, node: CachedNode) -> None:
        if node_id in self._signatures:
            self._nodes[self._signatures[node_id]] = node

    def clear(self) -> None:
        self._nodes.clear()


def signatures_of(graph: Graph, folders: Folders) -> dict[str, str]:
    """Return the hash of each node's class, values, input files and ancestors. A node with a dangling link or a missing
    file has no hash and is never cached."""
    found: dict[str, str | None] = {}

    def sign(node_id: str) -> str | None:
        if node_id not in found:
            # In a cycle, a link back to this node gets this value, because the hash is not yet known.
            found[node_id] = None
            with suppress(AttributeError, KeyError, OSError):
                node = graph[node_id]
                content = (node["class_type"], _file_version(node, folders), describe_inputs(node["inputs"]))
                found[node_id] = _sha256(json.dumps(content, sort_keys=True).encode())
        return found[node_id]

    def describe_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            if not is_link(value):
                values[name] = ["value", value]
                continue
            if (signature := sign(value[0])) is None:
                raise KeyError(value[0])
            values[name] = ["link", signature, value[1]]
        return values

    for node_id in graph:
        sign(node_id)
    return {node_id: signature for node_id, signature in found.items() if signature is not None}


def _file_version(node: dict[str, Any], folders: Folders) -> str | None:
    definition = DEFINITIONS[node["class_type"]]
    file = node["inputs"].get(definition.file_input) if definition.file_input else None
    if not isinstance(file, str):
        return None
    path = folders.resolve(file)
    # ComfyUI hashes image contents, but only the modification time of videos.
    return str(path.stat().st_mtime) if definition.file_noun == "video" else _sha256(path.read_bytes())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
