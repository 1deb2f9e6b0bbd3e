"""Read described workflows: their properties, the inputs they set, and the graph with values filled in."""

from collections.abc import Mapping
from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph, replace_placeholders
from comfyrelay.domain.properties import ASSET_TYPES
from comfyrelay.services.forms.describe import DescribedWorkflow


def property_of(described: DescribedWorkflow, key: str) -> dict[str, Any]:
    return next(property_ for property_ in described.properties if property_["key"] == key)


def places(described: DescribedWorkflow, key: str) -> set[tuple[str, str]]:
    """Return the node inputs that a property sets."""
    placeholder = property_of(described, key)["placeholder"]
    return {
        (node_id, name)
        for node_id, node in described.graph.items()
        for name, value in node["inputs"].items()
        if value == placeholder
    }


def filled_graph(described: DescribedWorkflow, files: Mapping[str, str] | None = None) -> Graph:
    """Return the graph as a worker runs it, with the default values and these files."""
    values = {
        property_["placeholder"]: (files or {})[property_["key"]]
        if property_["type"] in ASSET_TYPES
        else property_["default_value"]
        for property_ in described.properties
    }
    return replace_placeholders(described.graph, values)


def files_of(graph: Graph, described: DescribedWorkflow) -> dict[str, str]:
    """Return the files that the graph itself names."""
    return {
        property_["key"]: graph[node_id]["inputs"][name]
        for property_ in described.properties
        if property_["type"] in ASSET_TYPES
        for node_id, name in places(described, property_["key"])
    }


def request_body(described: DescribedWorkflow) -> dict[str, Any]:
    """Return the request body for the user API."""
    return {
        "graph": described.graph,
        "properties": described.properties,
        "output_node_id": described.output_node_id,
        "output_extension": described.output_extension,
        "output_mime_type": described.output_mime_type,
    }
