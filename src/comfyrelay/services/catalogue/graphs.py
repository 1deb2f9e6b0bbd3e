"""Graphs by content hash: stored once, never changed, so they may be remembered."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from comfyrelay.comfy.graphs.graph import Graph, input_texts, load_graph, replace_placeholders
from comfyrelay.comfy.graphs.hash import workflow_hash
from comfyrelay.storage.objects import ObjectStore

GRAPHS_IN_MEMORY = 256


class Graphs:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: dict[str, Graph] = {}

    async def store(self, graph: Graph) -> str:
        """Keep a graph; returns its path. Jobs refer to it by that path, so it must never change."""
        text = json.dumps(graph, sort_keys=True, ensure_ascii=False).encode()
        load_graph(text)
        path = f"workflows/{hashlib.sha256(text).hexdigest()}.json"
        if not await self._objects.exists(path):
            await self._objects.put(path, text)
        return path

    async def get(self, path: str) -> Graph:
        if path not in self._known:
            graph = load_graph(await self._objects.get(path))
            if len(self._known) >= GRAPHS_IN_MEMORY:
                self._known.pop(next(iter(self._known)))
            self._known[path] = graph
        return self._known[path]


class WorkflowHasher:
    """Workflow hashes of one graph with many sets of values.

    Values change the hash only where they name a model, so the whole graph is hashed once for each choice of models,
    not once for each of thousands of prompts.
    """

    def __init__(self, graph: Graph, placeholders: Iterable[str]) -> None:
        self._graph = graph
        self._hashes: dict[str, str] = {}
        names = list(placeholders)
        filled = [text for text in input_texts(graph) if any(name in text for name in names)]
        inputs = {str(position): text for position, text in enumerate(filled)}
        self._texts: Graph = {"texts": {"class_type": "", "inputs": inputs}}

    def hash(self, values: Mapping[str, Any]) -> str:
        models = workflow_hash(replace_placeholders(self._texts, values))
        if models not in self._hashes:
            self._hashes[models] = workflow_hash(replace_placeholders(self._graph, values))
        return self._hashes[models]
