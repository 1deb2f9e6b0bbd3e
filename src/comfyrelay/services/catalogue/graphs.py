"""Store graphs of the catalogue by content hash, and graphs of tenants separately. Stored graphs never change, so they
can be cached.

The editor file of a tenant's graph is stored next to the graph. It is not part of the graph's identity: a graph with
another layout is the same graph, and only the editor file that was added last is kept.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from comfyrelay.comfyui.graphs.graph import (
    MAX_BYTES,
    Graph,
    input_texts,
    load_graph,
    replace_placeholders,
)
from comfyrelay.comfyui.graphs.hash import workflow_hash
from comfyrelay.comfyui.graphs.placeholders import placeholders_of
from comfyrelay.domain.ids import editor_path
from comfyrelay.domain.records.jobs import is_private_graph
from comfyrelay.errors import GraphError, NotFound, StorageUnavailable, TooLarge
from comfyrelay.protocol.fields import MAX_NAME_LENGTH, MAX_TEXT_LENGTH
from comfyrelay.services.catalogue.private_graphs import PrivateGraphs
from comfyrelay.storage.objects import ObjectStore

MAX_CACHED_GRAPHS = 256
# Allowed average number of values per node. Values are limited because every submission walks the whole graph.
VALUES_PER_NODE = 50
# Another server process may use the previous editor file for this long.
EDITOR_CACHE_SECONDS = 60


class StoredWorkflow(NamedTuple):
    """A graph and its size in bytes."""

    graph: Graph
    size: int


class CachedEditorFile(NamedTuple):
    """An editor file with placeholders, or `None`. It is kept as text, which needs a fraction of the memory."""

    text: bytes | None
    expires_at: float


class Graphs:
    def __init__(self, objects: ObjectStore, private: PrivateGraphs, *, max_nodes: int) -> None:
        self._objects = objects
        self._private = private
        self._max_nodes = max_nodes
        self._known: dict[str, StoredWorkflow] = {}
        self._editors: dict[str, CachedEditorFile] = {}

    def check_size(self, graph: Graph) -> None:
        """Raise `TooLarge` if the graph has too many nodes or values."""
        max_values = self._max_nodes * VALUES_PER_NODE
        if len(graph) > self._max_nodes or not _has_at_most(graph, max_values):
            raise TooLarge(
                f"A graph may have at most {self._max_nodes} nodes (COMFYRELAY_MAX_GRAPH_NODES), {max_values} values."
            )

    def check_texts(self, graph: Graph) -> None:
        """Apply the limits of request bodies to a converted graph, because the conversion may copy texts or use them as
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

        `editor` is only stored for a tenant, and left out if the graph would exceed its limit with it.
        """
        text = await asyncio.to_thread(_encode, graph)
        layout: bytes | None = None
        if editor is not None and tenant_id is not None:
            layout = (await asyncio.to_thread(json.dumps, editor)).encode()
            if len(text) + len(layout) > self._private.max_bytes:
                layout = None
        return await self._put(text, tenant_id, properties, layout=layout)

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
            text = await self._objects.get(path)
            known = StoredWorkflow(await asyncio.to_thread(load_graph, text), len(text))
            if len(self._known) >= MAX_CACHED_GRAPHS:
                self._known.pop(next(iter(self._known)))
            self._known[path] = known
        return known

    async def get_editor(self, path: str) -> bytes | None:
        """Return the editor file of a graph, as JSON with placeholders."""
        if not is_private_graph(path):
            return None
        known = self._editors.get(path)
        if known is not None:
            if asyncio.get_running_loop().time() < known.expires_at:
                return known.text
            # One caller reads the file again. Meanwhile, the others use the cached file.
            self._remember_editor(path, known.text)
        try:
            text = await self._objects.get(editor_path(path))
        except NotFound:
            text = None
        except StorageUnavailable:
            if known is None:
                raise
            return known.text
        self._remember_editor(path, text)
        return text

    def _remember_editor(self, path: str, text: bytes | None) -> None:
        self._editors.pop(path, None)
        if len(self._editors) >= MAX_CACHED_GRAPHS:
            self._editors.pop(next(iter(self._editors)))
        expires_at = asyncio.get_running_loop().time() + EDITOR_CACHE_SECONDS
        self._editors[path] = CachedEditorFile(text, expires_at)

    async def _put(
        self,
        text: bytes,
        tenant_id: str | None,
        properties: Sequence[Mapping[str, Any]],
        *,
        layout: bytes | None = None,
    ) -> str:
        if tenant_id is not None:
            editor_bytes = None if layout is None else len(layout)
            path = await self._private.reserve(tenant_id, text, properties, editor_bytes=editor_bytes)
        else:
            path = f"workflows/{hashlib.sha256(text).hexdigest()}.json"
        if not await self._objects.exists(path):
            await self._objects.put(path, text)
        if layout is not None:
            await self._objects.put(editor_path(path), layout)
            self._remember_editor(path, layout)
        return path


def _encode(graph: Graph) -> bytes:
    text = json.dumps(graph, sort_keys=True, ensure_ascii=False).encode()
    load_graph(text)
    return text


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

    Only model names change the hash, so the graph is hashed once per choice of models, not once per prompt.
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
