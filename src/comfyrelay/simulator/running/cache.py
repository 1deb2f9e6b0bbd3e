"""Results of earlier prompts, keyed by what a node computes rather than by its id.

Only results used by the latest prompt are kept, as in ComfyUI's classic cache.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, is_link
from comfyrelay.simulator.folders import Folders
from comfyrelay.simulator.nodes.catalogue import DEFINITIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedNode:
    outputs: tuple[Any, ...]
    # {"output": …, "meta": …} of a node with a client message
    shown: dict[str, Any] | None


class Cache:
    def __init__(self) -> None:
        self._kept: dict[str, CachedNode] = {}
        self._signatures: dict[str, str] = {}

    def begin(self, signatures: dict[str, str]) -> None:
        """Start a new prompt and drop results it does not use."""
        self._signatures = signatures
        used = set(signatures.values())
        self._kept = {signature: kept for signature, kept in self._kept.items() if signature in used}

    def get(self, node_id: str) -> CachedNode | None:
        return self._kept.get(self._signatures.get(node_id, ""))

    def put(self, node_id: str, kept: CachedNode) -> None:
        if node_id in self._signatures:
            self._kept[self._signatures[node_id]] = kept

    def clear(self) -> None:
        self._kept.clear()


def signatures_of(graph: Graph, folders: Folders) -> dict[str, str]:
    """Node id → hash of its class, values, input files and ancestors.

    A node with a dangling link or a missing file has no hash and is never cached.
    """
    found: dict[str, str | None] = {}
    for node_id in graph:
        _signature(graph, node_id, folders, found)
    return {node_id: signature for node_id, signature in found.items() if signature is not None}


def _signature(graph: Graph, node_id: str, folders: Folders, found: dict[str, str | None]) -> str | None:
    if node_id not in found:
        # a cycle returns here before the value is known
        found[node_id] = None
        try:
            described = _described(graph, node_id, lambda before: _signature(graph, before, folders, found), folders)
            found[node_id] = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        except (AttributeError, KeyError, OSError):
            found[node_id] = None
    return found[node_id]


def _described(
    graph: Graph, node_id: str, signature: Callable[[str], str | None], folders: Folders
) -> tuple[str, str | None, dict[str, Any]]:
    node = graph[node_id]
    values: dict[str, Any] = {}
    for name, value in node["inputs"].items():
        if not is_link(value):
            values[name] = ["value", value]
            continue
        before = signature(value[0])
        if before is None:
            raise KeyError(value[0])
        values[name] = ["link", before, value[1]]
    return node["class_type"], _fingerprint(node, folders), values


def _fingerprint(node: dict[str, Any], folders: Folders) -> str | None:
    definition = DEFINITIONS[node["class_type"]]
    file = node["inputs"].get(definition.file_input) if definition.file_input else None
    if not isinstance(file, str):
        return None
    path = folders.resolve(file)
    # ComfyUI hashes image contents, but only the modification time of videos
    return str(path.stat().st_mtime) if definition.file_noun == "video" else _sha256(path.read_bytes())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
