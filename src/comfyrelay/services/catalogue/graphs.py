"""Store graphs of the catalogue by content hash, and graphs of tenants separately. Stored graphs never change, so they
can be cached."""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from comfyrelay.comfyui.editor.workflow import is_editor_file
from comfyrelay.comfyui.graphs.graph import (
    MAX_BYTES,
    Graph,
    check_graph,
    input_texts,
    load_graph,
    read_json,
    replace_placeholders,
)
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.errors import GraphError, TooLarge
from comfyrelay.protocol.fields import MAX_NAME_LENGTH, MAX_TEXT_LENGTH
from comfyrelay.services.catalogue.private_graphs import PrivateGraphs
from comfyrelay.storage.objects import ObjectStore

MAX_CACHED_GRAPHS = 256
# Average number of values per node. The number of values is limited because every submission walks the whole graph.
VALUES_PER_NODE = 50
# Keys of a stored file that also has the editor's file. A graph has no node that is called so and has no class.
_GRAPH, _EDITOR = "graph", "editor"


class StoredWorkflow(NamedTuple):
    """A graph, the editor's file that it was converted from, with placeholders, and the size of both in bytes."""

    graph: Graph
    editor: bytes | None
    size: int


class Graphs:
    def __init__(self, objects: ObjectStore, private: PrivateGraphs, *, max_nodes: int) -> None:
        self._objects = objects
        self._private = private
        self._max_nodes = max_nodes
        self._known: dict[str, StoredWorkflow] = {}

    def check_size(self, graph: Graph) -> None:
        """Raise `TooLarge` if the graph has too many nodes or values."""
        max_values = self._max_nodes * VALUES_PER_NODE
        if len(graph) > self._max_nodes or not _has_at_most(graph, max_values):
            raise TooLarge(
                f"A graph may have at most {self._max_nodes} nodes (COMFYRELAY_MAX_GRAPH_NODES), {max_values} values."
            )

    def check_texts(self, graph: Graph) -> None:
        """Apply the limits of request bodies to a converted graph. The conversion may copy texts, or use them as
        names."""
        for node_id, node in graph.items():
            if any(len(name) > MAX_NAME_LENGTH for name in (node_id, node["class_type"], *node["inputs"])):
                raise GraphError(f"The graph contains a name of more than {MAX_NAME_LENGTH} characters.")
        length = 0
        pending: list[Any] = [graph]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                pending.extend(value)
                pending.extend(value.values())
            elif isinstance(value, list):
                pending.extend(value)
            elif isinstance(value, str):
                length += len(value)
                if len(value) > MAX_TEXT_LENGTH:
                    raise GraphError(f"The graph contains a text of more than {MAX_TEXT_LENGTH} characters.")
                if length > MAX_BYTES:
                    raise TooLarge(f"The texts of a graph may have at most {MAX_BYTES} characters in total.")

    async def store(
        self,
        graph: Graph,
        *,
        tenant_id: str | None = None,
        properties: Sequence[Mapping[str, Any]] = (),
        editor: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a graph, and return its path. With `tenant_id`, it counts towards the limit of the tenant.

        `editor` is left out if the graph would exceed its limit with it.
        """
        text = await asyncio.to_thread(_encode, graph)
        if editor is not None:
            both = await asyncio.to_thread(json.dumps, {_GRAPH: graph, _EDITOR: editor}, sort_keys=True)
            text = both.encode() if len(both) <= self._private.max_bytes else text
        return await self._put(text, tenant_id, properties)

    async def store_import(self, new: Mapping[str, Any], *, tenant_id: str | None = None) -> str:
        """Store an import that cannot be converted yet, and return its path."""
        text = await asyncio.to_thread(lambda: json.dumps(new, sort_keys=True).encode())
        if len(text) > MAX_BYTES:
            raise TooLarge(f"A workflow may have at most {MAX_BYTES} bytes.")
        return await self._put(text, tenant_id, ())

    async def load_import(self, path: str) -> dict[str, Any]:
        text = await self._objects.get(path)
        found: dict[str, Any] = await asyncio.to_thread(json.loads, text)
        return found

    async def get(self, path: str) -> Graph:
        return (await self.get_stored(path)).graph

    async def get_stored(self, path: str) -> StoredWorkflow:
        known = self._known.get(path)
        if known is None:
            known = await asyncio.to_thread(_decode, await self._objects.get(path))
            if len(self._known) >= MAX_CACHED_GRAPHS:
                self._known.pop(next(iter(self._known)))
            self._known[path] = known
        return known

    async def _put(self, text: bytes, tenant_id: str | None, properties: Sequence[Mapping[str, Any]]) -> str:
        if tenant_id is not None:
            path = await self._private.reserve(tenant_id, text, properties)
        else:
            path = f"workflows/{hashlib.sha256(text).hexdigest()}.json"
        if not await self._objects.exists(path):
            await self._objects.put(path, text)
        return path


def _encode(graph: Graph) -> bytes:
    text = json.dumps(graph, sort_keys=True, ensure_ascii=False).encode()
    load_graph(text)
    return text


def _decode(text: bytes) -> StoredWorkflow:
    found = read_json(text)
    if isinstance(found, dict) and is_editor_file(found.get(_EDITOR)):
        # Kept as a text, which needs a fraction of the memory.
        return StoredWorkflow(check_graph(found[_GRAPH]), json.dumps(found[_EDITOR]).encode(), len(text))
    return StoredWorkflow(check_graph(found), None, len(text))


def _has_at_most(graph: Graph, max_values: int) -> bool:
    count = 0
    pending: list[dict[str, Any] | list[Any]] = [graph]
    while pending and count <= max_values:
        inner = pending.pop()
        values = inner.values() if isinstance(inner, dict) else inner
        count += len(values)
        pending.extend(value for value in values if isinstance(value, (dict, list)))
    return count <= max_values


class WorkflowHasher:
    """Compute the workflow hashes of one graph for many sets of values.

    Only model names change the hash, so the graph is hashed once per choice of models and not once per prompt.
    """

    def __init__(self, graph: Graph, placeholders: Iterable[str]) -> None:
        self._graph = graph
        self._hashes: dict[str, str] = {}
        wanted = placeholders_of(placeholders)
        filled = [text for text in input_texts(graph) if next(wanted.spans(text), None) is not None]
        self.filled = len(filled)
        inputs = {str(position): text for position, text in enumerate(filled)}
        self._texts: Graph = {"texts": {"class_type": "", "inputs": inputs}}

    def hash(self, values: Mapping[str, Any]) -> str:
        models = workflow_hash(replace_placeholders(self._texts, values))
        if models not in self._hashes:
            self._hashes[models] = workflow_hash(replace_placeholders(self._graph, values))
        return self._hashes[models]
